"""lam = tanh(w), discrete time only."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.parameterizations._base import AbstractParameterization, Range, below_one


class DiscreteTanh(AbstractParameterization):
    """f(w) = tanh(w); G = e^{2|w|}; g(beta) = e^{2 beta} - 1.

    StableSSM, Table 1 prints G = e^{2w}, right for w >= 0 only.
    """

    key = "tanh"
    time: Time = "discrete"

    @property
    def range(self) -> Range:
        return Range(-1.0, 1.0)

    def _value(self, w: Tensor) -> Tensor:
        return torch.tanh(w) * below_one(w.dtype)

    def _inverse(self, lam: Tensor) -> Tensor:
        return torch.atanh(lam)

    def _derivative(self, w: Tensor) -> Tensor:
        # 1 - tanh^2 = 4 sigmoid(2w) sigmoid(-2w), without cancellation
        return 4 * torch.sigmoid(2 * w) * torch.sigmoid(-2 * w)

    def _margin(self, w: Tensor) -> Tensor:
        return 2 * torch.sigmoid(-2 * w.abs())

    def _scale(self, w: Tensor) -> Tensor:
        return torch.exp(2 * w.abs())

    def _modulus(self, beta: float) -> float:
        return math.expm1(2 * beta)
