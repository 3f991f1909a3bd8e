"""W = T^-1 K T: all matrices with spectral radius below 1."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.parameterizations._factors import (
    EPS64,
    bounded_positive_definite,
    contractive_factor,
    contractive_factor_inverse,
    energy,
    positive_definite_inverse,
    size_of,
)
from holdfast.parameterizations._matrix import PROJECTION_SHARES, AbstractMatrixParameterization


class Schur(AbstractMatrixParameterization):
    """W = T^-1 K T with T positive definite and |K|_2 < 1: all matrices with spectral radius below 1.

    Z of K (see `contractive_factor`) and the symmetric part of T's weight are free, (n, n) each. Rounding W moves K by up to
    cond(T) eps |W|: K keeps that much below 1, and the condition of T ends at eps^-0.4 (590 in float32, 1.8e6 in
    float64). The way in takes T = X^-1/2 of an `energy` X.
    """

    key = "complete"
    time: Time = "discrete"

    def _matrix(self, info: torch.finfo, *free: Tensor) -> Tensor:
        z, s = free
        T, t = bounded_positive_definite(s, info.eps**-0.2)
        W = torch.linalg.solve(T, contractive_factor(z) @ T)
        return W * (1 - _share(info, W, t[-1] / t[0])).clamp(min=0)

    def _take_over(self, info: torch.finfo, W: Tensor) -> tuple[Tensor, ...]:
        if len(W) == 0:
            return W, W
        spectrum = energy(W, "discrete")
        if spectrum is None:
            raise self._refusal("it is too near to the circle for its Lyapunov equation to be solved")
        x, q = spectrum
        t = x.rsqrt().flip(0)
        q = q.flip(1)
        T, T_inverse = (q * t) @ q.mT, (q / t) @ q.mT
        # the part of K that rounding of W could use up is set aside before K is taken as contractive
        share = _share(info, W, t[-1] / t[0])
        Z = contractive_factor_inverse(T @ W @ T_inverse / (1 - share)) if share < 1 else None
        if Z is None:
            raise self._refusal(f"{info.dtype} may round it out of the circle (condition {float(t[-1] / t[0]):.2g})")
        return Z, positive_definite_inverse(T)

    def _nearer(self, W: Tensor) -> Iterator[Tensor]:
        radius = max(1.0, float(torch.linalg.eigvals(W).abs().max()))
        yield from (W * (share / radius) for share in PROJECTION_SHARES)


def _share(info: torch.finfo, W: Tensor, condition: Tensor) -> Tensor:
    """What rounding W to its dtype, and computing it in float64, can add to |K|."""
    return condition * (info.eps * size_of(W) + 4 * len(W) * EPS64)
