"""W = (J - R) P: all matrices whose eigenvalues have a negative real part."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.parameterizations._factors import (
    EPS64,
    bounded_positive_definite,
    energy,
    held,
    positive_definite_inverse,
    size_of,
)
from holdfast.parameterizations._matrix import PROJECTION_SHARES, AbstractMatrixParameterization


class Hurwitz(AbstractMatrixParameterization):
    """W = (J - R) P with J skew, R and P positive definite: all matrices with eigenvalues of negative real part.

    With V(h) = h'Ph the energy falls along dh/dt = W h: dV/dt = -2 (Ph)'R(Ph) < 0. Free weights: three (n, n)
    matrices, of which J uses the skew part and R, P the symmetric parts. Rounding W moves its spectrum by up to
    cond(P)^1/2 eps |W|: so much is subtracted from its diagonal, and the condition of P ends at eps^-0.4. The way in
    takes P = X^-1 of an `energy` X, and J - R = W X: the form of the stability literature with R = P^-2/2 squares
    P's condition.
    """

    key = "complete"
    time: Time = "continuous"

    def _matrix(self, info: torch.finfo, *free: Tensor) -> Tensor:
        skew, s_r, s_p = free
        largest = rate_limit(info)
        skew = held(skew, largest)
        P, p = bounded_positive_definite(s_p, info.eps**-0.2)
        M = skew - skew.mT - bounded_positive_definite(s_r, largest)[0]
        return _shifted(info, M @ P, M, p)

    def _take_over(self, info: torch.finfo, W: Tensor) -> tuple[Tensor, ...]:
        if len(W) == 0:
            return W, W, W
        spectrum = energy(W, "continuous")
        if spectrum is None:
            raise self._refusal("it is too near to the boundary for its Lyapunov equation to be solved")
        x, q = spectrum
        s_p = positive_definite_inverse((q / x) @ q.mT)
        # J - R from the P that forward will see, not from X: rounding in the Lyapunov solution then cancels
        P, p = bounded_positive_definite(s_p, info.eps**-0.2)
        M = torch.linalg.solve(P, W, left=False)
        shift = W - _shifted(info, W, M, p)
        M = torch.linalg.solve(P, W + shift, left=False)
        R = -(M + M.mT) / 2
        if not bool(torch.linalg.eigvalsh(R)[0] > 0):
            raise self._refusal(
                f"{info.dtype} may round it out of the stable region (condition {float(p[-1] / p[0]):.2g})"
            )
        return (M - M.mT) / 4, positive_definite_inverse(R), s_p

    def _nearer(self, W: Tensor) -> Iterator[Tensor]:
        eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
        size = max(float(torch.linalg.matrix_norm(W, 2)), 1e-3)
        outside = max(float(torch.linalg.eigvals(W).real.max()), 0.0)
        yield from (W - (outside + (1 - share) * size) * eye for share in PROJECTION_SHARES)
        yield -size * eye


def rate_limit(info: torch.finfo) -> float:
    """The largest rate, and one over the smallest: what the dtype holds with room, 1e9 at most."""
    return min(1e9, info.max**0.25)


def _shifted(info: torch.finfo, W: Tensor, M: Tensor, p: Tensor) -> Tensor:
    """W moved to the left by what rounding it to its dtype, and computing it in float64, can move its spectrum."""
    rounding = info.eps * size_of(W) + len(W) * EPS64 * size_of(M) * p[-1]
    return W - (p[-1] / p[0]).sqrt() * rounding * torch.eye(len(W), dtype=W.dtype, device=W.device)
