"""W = D^-1 (I - A)^1/2 K (I + A)^1/2 D: recurrences that contract whatever their activation does."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast._types import Time
from holdfast.parameterizations._factors import (
    EPS64,
    bounded_positive_definite,
    contractive_factor,
    contractive_factor_inverse,
    positive_definite_inverse,
    size_of,
)
from holdfast.parameterizations._matrix import PROJECTION_SHARES, AbstractMatrixParameterization
from holdfast.parameterizations._scaling import MAX_LOG_SPREAD, find_scaling

MAX_REDUCTIONS = 60  # of cyclic reduction, which converges quadratically, by halves at the boundary


class Contraction(AbstractMatrixParameterization):
    """W for h+ = sigma(W h + drive) with an elementwise sigma of slope in [0, 1]: tanh, ReLU, hardtanh, sigmoid.

    Eigenvalues bound nothing there: ReLU switches units off, and what is left of a W of radius 0.6 may grow. But
    W = D^-1 (I - A)^1/2 K (I + A)^1/2 D with D positive diagonal, |A|_2 < 1 symmetric and |K|_2 < 1 brings any two
    states that see the same inputs nearer at each step, by the factor |K|_2 in the norm |(I + A)^1/2 D h|. With A = 0
    these are the diagonally stable matrices (P - W'PW > 0 with P = D^2). With A they are those for which the numerical
    radius max |x*Vx| of V = D W D^-1 is below 1 (Ando, 1973): by sigma's slopes s, s(Vh)_i (Vh)_i >= s(Vh)_i^2, which
    is the room that A uses. torch.nn.RNN starts with numerical radius 0.82 and norm 1.15: only with A can it be kept.

    Free weights: Z of K, the symmetric S of A (I + A = 2 P^2 (I + P^2)^-1 with P - P^-1 = S; A = 0 at S = 0), (n, n)
    each, and log D, (n,). Entries of D keep within 1e6 of each other.
    """

    key = "contraction"
    time: Time = "discrete"

    def _matrix(self, info: torch.finfo, *free: Tensor) -> Tensor:
        z, s, d = free
        P, p = bounded_positive_definite(s, _largest(info))
        M = _inner(contractive_factor(z), P)
        M = M * (1 - _share(info, M, p)).clamp(min=0)
        return M * torch.exp(_apart(info, d))

    def metric(self, *free: Tensor) -> Float[Tensor, "n n"]:
        """H, positive definite, such that h'Hh shrinks by |K|_2^2 at least at each step: D (I + A) D."""
        P, _ = bounded_positive_definite(free[1].double(), _largest(torch.finfo(free[1].dtype)))
        half = _right(P, _factor(P)) * self.scales(*free)
        return 2 * half.mT @ half

    def scales(self, *free: Tensor) -> Float[Tensor, " n"]:
        """The diagonal of D, as it is used."""
        return torch.exp(_limited(torch.finfo(free[2].dtype), free[2].double()))

    def _take_over(self, info: torch.finfo, W: Tensor) -> tuple[Tensor, ...]:
        if len(W) == 0:
            return W, W, W.new_zeros(0)
        log_scales, radius = find_scaling(W.numpy(), "radius")
        d = torch.from_numpy(log_scales - (log_scales.max() + log_scales.min()) / 2)
        if not radius < 1:
            raise self._refusal(
                f"no diagonal D was found for which D W D^-1 has a numerical radius below 1 (least found {radius:.4g}), "
                "so that units that saturate or switch off can make it grow though its eigenvalues lie inside the circle"
            )
        M = W * torch.exp(d.unsqueeze(-1) - d)
        A = _balanced_solution(M / ((1 + radius) / 2))
        if A is None:
            raise self._refusal(f"its numerical radius {radius:.6g} is too near to 1")
        a, q = torch.linalg.eigh(A)
        P = (q * ((1 + a) / (1 - a)).sqrt()) @ q.mT
        s = positive_definite_inverse(P)
        P, p = bounded_positive_definite(s, _largest(info))
        share = _share(info, M, p)
        Z = contractive_factor_inverse(_outer(M, P) / (1 - share)) if share < 1 else None
        if Z is None:
            raise self._refusal(
                f"{info.dtype} may round it to one that does not contract (numerical radius {radius:.6g})"
            )
        return Z, s, d

    def _nearer(self, W: Tensor) -> Iterator[Tensor]:
        radius = max(1.0, find_scaling(W.numpy(), "radius")[1])
        yield from (W * (share / radius) for share in PROJECTION_SHARES)


def _largest(info: torch.finfo) -> float:
    return info.eps**-0.2


def _limited(info: torch.finfo, d: Tensor) -> Tensor:
    spread = min(MAX_LOG_SPREAD, 0.5 * math.log(info.max))
    return d.clamp(-spread / 2, spread / 2)


def _apart(info: torch.finfo, d: Tensor) -> Tensor:
    """log(D_j / D_i)."""
    log = _limited(info, d)
    return log - log.unsqueeze(-1)


def _inner(K: Tensor, P: Tensor) -> Tensor:
    """2 L^-T K L^-1 P with L L' = I + P^2: (I - A)^1/2 K (I + A)^1/2 up to rotations that K absorbs."""
    L = _factor(P)
    return 2 * torch.linalg.solve_triangular(L.mT, K, upper=True) @ _right(P, L)


def _factor(P: Tensor) -> Tensor:
    return torch.linalg.cholesky(torch.eye(len(P), dtype=P.dtype, device=P.device) + P @ P)


def _right(P: Tensor, L: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(L, P, upper=False)


def _outer(M: Tensor, P: Tensor) -> Tensor:
    """K of M."""
    L = _factor(P)
    return 0.5 * L.mT @ M @ torch.linalg.solve(P, L)


def _share(info: torch.finfo, M: Tensor, p: Tensor) -> Tensor:
    """What rounding W can add to |K|: D scales entry by entry, so that only A's condition enters."""
    condition = ((1 + p[-1] ** 2) * (1 + p[0] ** -2)).sqrt() / 2
    return condition * (info.eps * size_of(M) + 8 * len(M) * EPS64)


def _balanced_solution(B: Tensor) -> Tensor | None:
    """A with [[I + A, B'], [B, I - A]] > 0, half-way between the extreme ones; None where w(B) is not below 1.

    X + B'X^-1 B = 2I has a largest solution X, and B' one X~, both by cyclic reduction (Meini, 2002); I - A lies
    between X and 2I - X~. For a normal B it gives A = 0.
    """
    Q = 2 * torch.eye(len(B), dtype=B.dtype, device=B.device)
    X, dual = Q, Q
    for _ in range(MAX_REDUCTIONS):
        L, info = torch.linalg.cholesky_ex(Q)
        if int(info) != 0:
            return None
        right, left = torch.cholesky_solve(B, L), torch.cholesky_solve(B.mT, L)
        up, down = B.mT @ right, B @ left
        X, dual, Q, B = X - up, dual - down, Q - up - down, B @ right
        if float(B.abs().max()) < 1e-20:
            break
    A = (dual - X) / 2
    return (A + A.mT) / 2
