"""lam = -log(1 + e^w), or 1/(1 + e^w) = exp of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from holdfast._types import Time
from holdfast.parameterizations._base import AbstractParameterization, Range, below_one


class Softplus(AbstractParameterization):
    """f(w) = -log(1 + e^w); G = e^w / ((1 + e^w) log(1 + e^w)^2); g(beta) = e^beta - 1 (StableSSM, Table 1)."""

    key = "softplus"
    time: Time = "continuous"

    @property
    def range(self) -> Range:
        return Range(-math.inf, 0.0)

    def _value(self, w: Tensor) -> Tensor:
        # torch's own softplus switches to w past 20, an error of 1e-10 in float64; logsigmoid has none
        return logsigmoid(-w) - torch.finfo(w.dtype).tiny

    def _inverse(self, lam: Tensor) -> Tensor:
        # log(e^-lam - 1) without overflow for large -lam
        return -lam + torch.log(-torch.expm1(lam))

    def _derivative(self, w: Tensor) -> Tensor:
        return -torch.sigmoid(w)

    def _scale(self, w: Tensor) -> Tensor:
        return torch.exp(logsigmoid(w) - 2 * torch.log(-logsigmoid(-w)))

    def _modulus(self, beta: float) -> float:
        return math.expm1(beta)


class DiscreteSoftplus(AbstractParameterization):
    """f(w) = 1/(1 + e^w); G = e^-w; g(beta) = e^beta - 1 (StableSSM, Table 1)."""

    key = "softplus"
    time: Time = "discrete"

    @property
    def range(self) -> Range:
        return Range(0.0, 1.0)

    def _value(self, w: Tensor) -> Tensor:
        return torch.sigmoid(-w) * below_one(w.dtype) + torch.finfo(w.dtype).tiny

    def _inverse(self, lam: Tensor) -> Tensor:
        return torch.log1p(-lam) - torch.log(lam)

    def _derivative(self, w: Tensor) -> Tensor:
        return -torch.sigmoid(w) * torch.sigmoid(-w)

    def _margin(self, w: Tensor) -> Tensor:
        return torch.sigmoid(w)

    def _scale(self, w: Tensor) -> Tensor:
        return torch.exp(-w)

    def _modulus(self, beta: float) -> float:
        return math.expm1(beta)
