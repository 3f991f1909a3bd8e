"""A user's own f: a plain function becomes a parameterization with everything the built-in ones have."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError, RangeError
from holdfast.parameterizations._base import AbstractParameterization, Range

MAX_DOUBLINGS = 200  # of the bracket in which a weight is looked for: up to 2^200


class Custom(AbstractParameterization):
    """lam = f(w) for a differentiable elementwise function f of tensors.

    The derivative comes from autograd and the modulus from a search.

    Args:
        f: the function.
        time: "continuous" or "discrete".
        inverse: gives a w with f(w) = lam. Without it w is found by bisection on [0, inf) and then (-inf, 0], where f
            must be monotone on that half line.
        low: smallest value of f; None is no bound.
        high: largest value of f; None is no bound.
    """

    key = "custom"

    @checked
    def __init__(
        self,
        f: Callable[[Tensor], Tensor],
        *,
        time: Time = "continuous",
        inverse: Callable[[Tensor], Tensor] | None = None,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        super().__init__()
        if time not in ("continuous", "discrete"):
            raise ArgumentError(f"time must be 'continuous' or 'discrete', got {time!r}")
        self.time = time
        self._f = f
        self._given_inverse = inverse
        self._range = Range(-math.inf if low is None else low, math.inf if high is None else high, False, False)

    @property
    def range(self) -> Range:
        return self._range

    def _value(self, w: Tensor) -> Tensor:
        return self._f(w)

    def _derivative(self, w: Tensor) -> Tensor:
        # f works element by element, so that the gradient of the sum is the derivative of each
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            value = self._f(leaf)
            if not value.requires_grad:
                return torch.zeros_like(w)
            (derivative,) = torch.autograd.grad(value.sum(), leaf)
        return derivative

    def _inverse(self, lam: Tensor) -> Tensor:
        if self._given_inverse is not None:
            return self._given_inverse(lam)
        target = lam.detach().double()
        weights = torch.full_like(target, math.nan)
        # the non-negative weight first, as in every other parameterization
        for sign in (1.0, -1.0):
            candidate = self._bisect(target, sign)
            weights = torch.where(weights.isnan(), candidate, weights)
        if bool(weights.isnan().any()):
            missing = lam.detach()[weights.isnan()].flatten()[:8].tolist()
            raise RangeError(
                f"no weight w with f(w) equal to {missing} was found; pass inverse=, a function from f(w) to w"
            )
        return weights.to(lam.dtype)

    def _bisect(self, target: Tensor, sign: float) -> Tensor:
        """w on one half line with f(w) = target, NaN where the target is not bracketed there."""
        zero = torch.zeros_like(target)
        start = self._f(zero) - target
        # doubled until f has crossed the target: from 1e-12 up to 1e48
        far = torch.full_like(target, sign * 2.0**-40)
        for _ in range(MAX_DOUBLINGS):
            crossed = (self._f(far) - target) * start <= 0
            if bool(crossed.all()):
                break
            far = torch.where(crossed, far, far * 2)
        near = zero
        for _ in range(200):
            middle = (near + far) / 2
            past = (self._f(middle) - target) * start <= 0
            near, far = torch.where(past, near, middle), torch.where(past, middle, far)
        root = torch.where(start == 0, zero, far)
        return torch.where((start == 0) | crossed, root, torch.full_like(target, math.nan))

    def __repr__(self) -> str:
        return f"custom({self.time}, {getattr(self._f, '__name__', 'f')})"
