"""lam = min(w, -edge), or w held inside the circle of radius 1 - edge: S5's clip."""

from __future__ import annotations

import math

from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.parameterizations._base import AbstractParameterization, Range

DEFAULT_EDGE = 1e-4


class Clip(AbstractParameterization):
    """f(w) = min(w, -edge), edge = 1e-4 as in S5; G = 1/w^2 for w <= -edge, else 0; g(beta) = beta/edge.

    The modulus is finite, so that f is stable by definition, but 1e4 times that of a smooth parameterization.

    Args:
        edge: smallest distance of lam to the boundary, above 0.
    """

    key = "clip"
    time: Time = "continuous"

    @checked
    def __init__(self, edge: float = DEFAULT_EDGE) -> None:
        super().__init__()
        self.edge = float(edge)
        if not (math.isfinite(self.edge) and self.edge > 0):
            raise ArgumentError(f"edge must be finite and above 0, got {edge!r}")

    @property
    def range(self) -> Range:
        return Range(-math.inf, -self.edge, high_open=False)

    def _value(self, w: Tensor) -> Tensor:
        return w.clamp(max=-self.edge)

    def _inverse(self, lam: Tensor) -> Tensor:
        return lam

    def _derivative(self, w: Tensor) -> Tensor:
        return (w <= -self.edge).to(w.dtype)

    def _modulus(self, beta: float) -> float:
        return beta / self.edge


class DiscreteClip(AbstractParameterization):
    """f(w) = w held in [-(1 - edge), 1 - edge]; G = 1/(1 - |w|)^2 inside, else 0; g(beta) = beta/edge up to beta = 1.

    Larger perturbations reach the other sign, where the odd terms of the sum add: that value is found numerically.

    Args:
        edge: smallest distance of |lam| to 1, between 0 and 1.
    """

    key = "clip"
    time: Time = "discrete"

    @checked
    def __init__(self, edge: float = DEFAULT_EDGE) -> None:
        super().__init__()
        self.edge = float(edge)
        if not 0 < self.edge < 1:
            raise ArgumentError(f"edge must be between 0 and 1 in discrete time, got {edge!r}")

    @property
    def range(self) -> Range:
        return Range(self.edge - 1, 1 - self.edge, low_open=False, high_open=False)

    def _value(self, w: Tensor) -> Tensor:
        return w.clamp(self.edge - 1, 1 - self.edge)

    def _inverse(self, lam: Tensor) -> Tensor:
        return lam

    def _derivative(self, w: Tensor) -> Tensor:
        return (w.abs() <= 1 - self.edge).to(w.dtype)

    def _modulus(self, beta: float) -> float:
        return beta / self.edge if beta <= 1 - self.edge else super()._modulus(beta)
