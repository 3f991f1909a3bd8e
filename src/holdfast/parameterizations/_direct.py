"""lam = w: the plain weight, the baseline that has no stability of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.parameterizations._base import AbstractParameterization, Range


class AbstractDirect(AbstractParameterization):
    """f(w) = w; no modulus (StableSSM, Sec. 3.2)."""

    key = "direct"

    @property
    def range(self) -> Range:
        return Range(-math.inf, math.inf)

    def _value(self, w: Tensor) -> Tensor:
        return w

    def _inverse(self, lam: Tensor) -> Tensor:
        return lam

    def _derivative(self, w: Tensor) -> Tensor:
        return torch.ones_like(w)

    def _modulus(self, beta: float) -> float:
        return math.inf


class Direct(AbstractDirect):
    """f(w) = w; G = 1/w^2 for w < 0, inf elsewhere."""

    time: Time = "continuous"


class DiscreteDirect(AbstractDirect):
    """f(w) = w; G = 1/(1 - |w|)^2 for |w| < 1, inf elsewhere."""

    time: Time = "discrete"
