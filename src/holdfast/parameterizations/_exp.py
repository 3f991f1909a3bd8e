"""lam = -e^w, or exp(-e^w): the parameterization of S4D and LRU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.parameterizations._base import AbstractParameterization, Range, below_one, exp_limit


def _exp(w: Tensor) -> Tensor:
    # past the limit e^w is held at the largest float: inf would turn gradients into inf * 0
    return torch.exp(w.clamp(max=exp_limit(w.dtype)))


class Exp(AbstractParameterization):
    """f(w) = -e^w; G = e^-w; g(beta) = e^beta - 1 (StableSSM, Table 1)."""

    key = "exp"
    time: Time = "continuous"

    @property
    def range(self) -> Range:
        return Range(-math.inf, 0.0)

    def _value(self, w: Tensor) -> Tensor:
        # the smallest normal number keeps f < 0 where e^w underflows, and is lost in rounding elsewhere
        return -_exp(w) - torch.finfo(w.dtype).tiny

    def _inverse(self, lam: Tensor) -> Tensor:
        return torch.log(-lam)

    def _derivative(self, w: Tensor) -> Tensor:
        return -_exp(w)

    def _scale(self, w: Tensor) -> Tensor:
        return torch.exp(-w)

    def _modulus(self, beta: float) -> float:
        return math.expm1(beta)


class DiscreteExp(AbstractParameterization):
    """f(w) = exp(-e^w); G = e^(w - e^w) / (1 - exp(-e^w))^2; g(beta) = e^beta - 1.

    The modulus is the limit w -> -inf of (1 - f(w)) / (1 - f(w - beta)) - 1; it is the sup because x -> 1 - e^-x is
    concave.
    """

    key = "exp"
    time: Time = "discrete"

    @property
    def range(self) -> Range:
        return Range(0.0, 1.0)

    def _value(self, w: Tensor) -> Tensor:
        return torch.exp(-_exp(w)) * below_one(w.dtype) + torch.finfo(w.dtype).tiny

    def _inverse(self, lam: Tensor) -> Tensor:
        return torch.log(-torch.log(lam))

    def _derivative(self, w: Tensor) -> Tensor:
        return -torch.exp(w - _exp(w))

    def _margin(self, w: Tensor) -> Tensor:
        return -torch.expm1(-_exp(w))

    def _scale(self, w: Tensor) -> Tensor:
        # in logarithms: the square of 1 - f underflows for w < -372 in float64 while G = e^-w is finite
        return torch.exp(w - _exp(w) - 2 * torch.log(self._margin(w)))

    def _modulus(self, beta: float) -> float:
        return math.expm1(beta)
