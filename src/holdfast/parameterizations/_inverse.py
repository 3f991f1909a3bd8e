"""lam = -1/w, or 1 - 1/w, with w held at 1/2 or above: named in "Inverse Approximation Theory", Table 1."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.parameterizations._base import AbstractParameterization, Range, below_one

MIN_SHARE = 0.5


class Inverse(AbstractParameterization):
    """f(w) = -1/max(w, 1/2); G = 1 for w > 1/2, else 0; g(beta) = 2 beta.

    The paper gives no formula; this is the authors' code (1 - 1/w in discrete time), carried to continuous time.
    """

    key = "inverse"
    time: Time = "continuous"

    @property
    def range(self) -> Range:
        return Range(-1 / MIN_SHARE, 0.0, low_open=False)

    def _value(self, w: Tensor) -> Tensor:
        return -1 / w.clamp(min=MIN_SHARE)

    def _inverse(self, lam: Tensor) -> Tensor:
        return -1 / lam

    def _derivative(self, w: Tensor) -> Tensor:
        return torch.where(w >= MIN_SHARE, w.clamp(min=MIN_SHARE) ** -2, torch.zeros_like(w))

    def _scale(self, w: Tensor) -> Tensor:
        return (w >= MIN_SHARE).to(w.dtype)

    def _modulus(self, beta: float) -> float:
        return beta / MIN_SHARE


class DiscreteInverse(AbstractParameterization):
    """f(w) = 1 - 1/max(w, 1/2); G = 1 for w >= 1, 1/(2w - 1)^2 for 1/2 < w < 1, else inf.

    f(1/2) = -1 lies on the circle, so there is no modulus.
    """

    key = "inverse"
    time: Time = "discrete"

    @property
    def range(self) -> Range:
        return Range(1 - 1 / MIN_SHARE, 1.0, low_open=False)

    def _value(self, w: Tensor) -> Tensor:
        return (1 - 1 / w.clamp(min=MIN_SHARE)).clamp(max=below_one(w.dtype))

    def _inverse(self, lam: Tensor) -> Tensor:
        return 1 / (1 - lam)

    def _derivative(self, w: Tensor) -> Tensor:
        return torch.where(w >= MIN_SHARE, w.clamp(min=MIN_SHARE) ** -2, torch.zeros_like(w))

    def _margin(self, w: Tensor) -> Tensor:
        m = 1 / w.clamp(min=MIN_SHARE)
        return torch.minimum(m, 2 - m)

    def _scale(self, w: Tensor) -> Tensor:
        negative = (2 * w - 1) ** -2
        scale = torch.where(w >= 1, torch.ones_like(w), negative)
        return torch.where(w > MIN_SHARE, scale, torch.full_like(w, math.inf))

    def _modulus(self, beta: float) -> float:
        return math.inf
