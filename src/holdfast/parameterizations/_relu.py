"""lam = -relu(w), or its exponential: stable only while w stays positive."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.parameterizations._base import AbstractParameterization, Range


class ReLU(AbstractParameterization):
    """f(w) = -relu(w); G = 1/w^2 for w > 0, else inf (StableSSM, Table 1, prints 0).

    At w <= 0 the mode is an integrator (f = 0), whose response is not integrable; so there is no modulus either.
    """

    key = "relu"
    time: Time = "continuous"

    @property
    def range(self) -> Range:
        return Range(-math.inf, 0.0, high_open=False)

    def _value(self, w: Tensor) -> Tensor:
        return -torch.relu(w)

    def _inverse(self, lam: Tensor) -> Tensor:
        return -lam

    def _derivative(self, w: Tensor) -> Tensor:
        return torch.where(w > 0, -torch.ones_like(w), torch.zeros_like(w))

    def _scale(self, w: Tensor) -> Tensor:
        return torch.where(w > 0, w**-2, torch.full_like(w, math.inf))

    def _printed_scale(self, w: Tensor) -> Tensor:
        return torch.where(w > 0, self._scale(w), torch.zeros_like(w))

    def _modulus(self, beta: float) -> float:
        return math.inf


class DiscreteReLU(AbstractParameterization):
    """f(w) = exp(-relu(w)); G = e^-w / (1 - e^-w)^2 for w > 0, else inf (StableSSM, Table 1, prints 0)."""

    key = "relu"
    time: Time = "discrete"

    @property
    def range(self) -> Range:
        return Range(0.0, 1.0, high_open=False)

    def _value(self, w: Tensor) -> Tensor:
        return torch.exp(-torch.relu(w)) + torch.finfo(w.dtype).tiny

    def _inverse(self, lam: Tensor) -> Tensor:
        return -torch.log(lam)

    def _derivative(self, w: Tensor) -> Tensor:
        return torch.where(w > 0, -torch.exp(-torch.relu(w)), torch.zeros_like(w))

    def _margin(self, w: Tensor) -> Tensor:
        return -torch.expm1(-torch.relu(w))

    def _scale(self, w: Tensor) -> Tensor:
        # e^-w / (1 - e^-w)^2 = 1 / (4 sinh^2(w/2)): neither overflows to nan nor cancels
        return torch.where(w > 0, (2 * torch.sinh(w / 2)) ** -2, torch.full_like(w, math.inf))

    def _printed_scale(self, w: Tensor) -> Tensor:
        return torch.where(w > 0, self._scale(w), torch.zeros_like(w))

    def _modulus(self, beta: float) -> float:
        return math.inf
