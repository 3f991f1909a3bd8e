"""lam = -1/(a w^2 + b), or 1 - 1/(w^2 + b): gradient scale in proportion to the weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.parameterizations._base import AbstractParameterization, Range, below_one


def _square(w: Tensor) -> Tensor:
    # held where w^2 is finite with room for the constants: inf would turn gradients into inf * 0
    limit = math.sqrt(torch.finfo(w.dtype).max) * 1e-3
    return torch.square(w.clamp(-limit, limit))


def _ratio_modulus(a: float, b: float, beta: float) -> float:
    # sup_w (a (|w| + beta)^2 + b) / (a w^2 + b) - 1, at w = (sqrt(beta^2 + 4b/a) - beta) / 2
    return a * beta / (2 * b) * (beta + math.sqrt(beta * beta + 4 * b / a))


class Best(AbstractParameterization):
    """f(w) = -1/(a w^2 + b), a, b > 0; G = 2a|w|; g(beta) = (a beta / 2b)(beta + sqrt(beta^2 + 4b/a)).

    StableSSM, Sec. 3.3 and App. G (the ODE is solved wrongly there: 1/f = -(a/2) w^2 - b). Eq. 75 leaves w in g.

    Args:
        a: how fast the rate falls as w grows, above 0.
        b: sets the fastest rate, which is 1/b at w = 0; above 0.
    """

    key = "best"
    time: Time = "continuous"

    @checked
    def __init__(self, a: float = 1.0, b: float = 0.5) -> None:
        super().__init__()
        self.a, self.b = float(a), float(b)
        if not (math.isfinite(self.a) and self.a > 0 and math.isfinite(self.b) and self.b > 0):
            raise ArgumentError(f"'best' needs finite a > 0 and b > 0, got a={a!r}, b={b!r}")

    @property
    def range(self) -> Range:
        return Range(-1 / self.b, 0.0, low_open=False)

    def _value(self, w: Tensor) -> Tensor:
        return -1 / (self.a * _square(w) + self.b)

    def _inverse(self, lam: Tensor) -> Tensor:
        # at lam = -1/b rounding may leave a tiny negative number
        return torch.sqrt(((-1 / lam - self.b) / self.a).clamp(min=0))

    def _derivative(self, w: Tensor) -> Tensor:
        f = self._value(w)
        return (2 * self.a * w * f) * f

    def _scale(self, w: Tensor) -> Tensor:
        return 2 * self.a * w.abs()

    def _modulus(self, beta: float) -> float:
        return _ratio_modulus(self.a, self.b, beta)


class DiscreteBest(AbstractParameterization):
    """f(w) = 1 - 1/(w^2 + b), b = 1 by default; G = 2|w| where f >= 0.

    StableSSM takes b = 0.5: then f(0) = -1 lies on the circle, f is negative for |w| < 1/sqrt 2, and there the
    gradient scale is 2|w| / (2(w^2 + b) - 1)^2, which is unbounded, so that no modulus exists. With b >= 1 f stays in
    [0, 1), G = 2|w| everywhere and g is that of the continuous form.

    Args:
        b: sets the smallest eigenvalue, which is 1 - 1/b at w = 0; at least 0.5.
    """

    key = "best"
    time: Time = "discrete"

    @checked
    def __init__(self, b: float = 1.0) -> None:
        super().__init__()
        self.b = float(b)
        if not (math.isfinite(self.b) and self.b >= 0.5):
            raise ArgumentError(
                f"'best' in discrete time needs b >= 0.5, or |f| > 1 at w = 0; got b={b!r} (1 is a good choice)"
            )

    @property
    def range(self) -> Range:
        return Range(1 - 1 / self.b, 1.0, low_open=False)

    def _value(self, w: Tensor) -> Tensor:
        return (1 - 1 / (_square(w) + self.b)).clamp(max=below_one(w.dtype))

    def _inverse(self, lam: Tensor) -> Tensor:
        return torch.sqrt((1 / (1 - lam) - self.b).clamp(min=0))

    def _derivative(self, w: Tensor) -> Tensor:
        m = 1 / (_square(w) + self.b)
        return (2 * w * m) * m

    def _margin(self, w: Tensor) -> Tensor:
        m = 1 / (_square(w) + self.b)
        return torch.minimum(m, 2 - m)

    def _scale(self, w: Tensor) -> Tensor:
        q = _square(w) + self.b
        negative = 2 * w.abs() / (2 * q - 1) ** 2
        edge = torch.where(q > 0.5, negative, torch.full_like(q, math.inf))
        return torch.where(q >= 1, 2 * w.abs(), edge)

    def _modulus(self, beta: float) -> float:
        if self.b <= 0.5:
            return math.inf
        return _ratio_modulus(1.0, self.b, beta) if self.b >= 1 else super()._modulus(beta)
