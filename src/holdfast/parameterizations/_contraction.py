"""W = D^-1 (I - A)^1/2 K (I + A)^1/2 D: recurrences that contract whatever their activation does.

`find_scaling` gives the positive diagonal D for which D W D^-1 is smallest, in spectral norm or numerical radius. Both are
quasi-convex in log D (each level set is a linear matrix inequality in D^2), so that a descent finds the least one. It runs on
a smooth upper bound, the logarithm of a sum of exponentials of all eigenvalues, ever sharper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast._types import Time
from holdfast.parameterizations._factors import (
    EPS64,
    MAX_FREE_NORM,
    bounded_positive_definite,
    contractive_factor,
    contractive_factor_inverse,
    decomposed,
    in_plain_call,
    positive_definite_derivative,
    positive_definite_inverse,
    size_of,
)
from holdfast.parameterizations._matrix import MAX_ENTRY, PROJECTION_SHARES, AbstractMatrixParameterization

SizeName = Literal["norm", "radius"]
Matrix = Float64[np.ndarray, "n n"]
Vector = Float64[np.ndarray, " n"]
MAX_LOG_SPREAD = math.log(1e6)  # of log D: beyond it the norm in which h shrinks says little about h
ANGLE_POINTS = 24
REFINEMENT_ROUNDS = 5
SHARPNESS_SEQUENCE = (10.0, 60.0, 400.0)
SAFE_RADIUS = 0.95  # without a search: far enough below 1
BALANCING_SWEEPS = 30
DESCENT_STEPS = 60
MAX_REDUCTIONS = 60  # of cyclic reduction, which converges quadratically, by halves at the boundary


def numerical_radius(A: Matrix) -> float:
    """w(A) = max |x* A x| over unit vectors x = max over angles of the largest eigenvalue of Re(e^{i theta} A).

    The best of ANGLE_POINTS directions of the upper half plane (A is real), refined around it to about 1e-6.
    """
    angles = np.linspace(0, math.pi, ANGLE_POINTS)
    best = 0.0
    for _ in range(REFINEMENT_ROUNDS):
        tops = np.linalg.eigvalsh(_turned(A, angles))[:, -1]
        k, step = int(tops.argmax()), angles[1] - angles[0]
        best = max(best, float(tops[k]))
        angles = np.linspace(angles[k] - step, angles[k] + step, 9)
    return best


def find_scaling(W: Matrix, measure: SizeName) -> tuple[Vector, float]:
    """log D within +-MAX_LOG_SPREAD/2, and the norm or numerical radius of D W D^-1, for the best D that was found.

    First D = I and Osborne's balancing, which are enough for most; else a descent from the better of the two.
    """
    size = (lambda A: float(np.linalg.norm(A, 2))) if measure == "norm" else numerical_radius
    smooth = _smooth_norm if measure == "norm" else _smooth_radius
    starts = [np.zeros(len(W)), _balanced(W)]
    sizes = [size(_scaled(W, d)) for d in starts]
    best, least = (starts[0], sizes[0]) if sizes[0] <= max(SAFE_RADIUS, sizes[1]) else (starts[1], sizes[1])
    # far enough inside: a better D would change the free weights and nothing else
    if least <= SAFE_RADIUS or len(W) < 2:
        return best, least
    # a blunt bound first: a sharp one has kinks where the largest eigenvalue changes, and the descent would stop there
    for sharpness in SHARPNESS_SEQUENCE:
        candidate = _descend(W, best, sharpness / least, smooth)
        reached = size(_scaled(W, candidate))
        if reached < least:
            best, least = candidate, reached
    return best, least


def _scaled(W: Matrix, d: Vector) -> Matrix:
    return W * np.exp(d[:, None] - d[None, :])


def _balanced(W: Matrix) -> Vector:
    """Rows and columns of equal size outside the diagonal (Osborne): the least Frobenius norm."""
    off = np.abs(W - np.diag(np.diag(W))) ** 2
    d = np.zeros(len(W))
    for _ in range(BALANCING_SWEEPS):
        for i in range(len(W)):
            row = float(off[i] @ np.exp(2 * (d[i] - d)))
            column = float(off[:, i] @ np.exp(2 * (d - d[i])))
            # a row or column of zeros would send its scale to infinity
            step = 0.25 * math.log((column + 1e-12) / (row + 1e-12))
            d[i] = np.clip(d[i] + step, -MAX_LOG_SPREAD / 2, MAX_LOG_SPREAD / 2)
    return d


def _descend(W: Matrix, d: Vector, sharpness: float, smooth: Callable[[Matrix, float], tuple[float, Vector]]) -> Vector:
    from scipy.optimize import minimize

    bounds = [(-MAX_LOG_SPREAD / 2, MAX_LOG_SPREAD / 2)] * len(W)
    options = {"maxiter": DESCENT_STEPS}
    function = lambda d: smooth(_scaled(W, d), sharpness)  # noqa: E731
    return np.asarray(minimize(function, d, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)


def _smooth_norm(A: Matrix, sharpness: float) -> tuple[float, Vector]:
    """log sum exp of the singular values, and its slope in log D: sigma (u_k^2 - v_k^2) for each."""
    u, s, vt = np.linalg.svd(A)
    value, share = _soft(s, sharpness)
    return value, (u**2 * s) @ share - (vt.T**2 * s) @ share


def _smooth_radius(A: Matrix, sharpness: float) -> tuple[float, Vector]:
    """The same over all eigenvalues of Re(e^{i theta} A): each moves by Re(conj(v_k) (Gv)_k - (v*G)_k v_k)."""
    angles = np.linspace(0, math.pi, ANGLE_POINTS)
    values, vectors = np.linalg.eigh(_turned(A, angles))
    value, share = _soft(values.ravel(), sharpness)
    M = (vectors * share.reshape(values.shape)[:, None, :]) @ vectors.conj().transpose(0, 2, 1)
    M = (M * np.exp(1j * angles)[:, None, None]).sum(0)
    slope = (A * M.T).sum(1) - (A * M.T).sum(0)
    return value, slope.real


def _soft(values: np.ndarray, sharpness: float) -> tuple[float, np.ndarray]:
    top = float(values.max())
    # the largest taken off first: exponents of 1e4 would overflow
    weights = np.exp(sharpness * (values - top))
    return top + math.log(float(weights.sum())) / sharpness, weights / weights.sum()


def _turned(A: Matrix, angles: np.ndarray) -> np.ndarray:
    G = np.exp(1j * angles)[:, None, None] * A
    return (G + G.conj().transpose(0, 2, 1)) / 2


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

    def _rounded(self, *free: Tensor) -> Tensor:
        if in_plain_call(*free):
            return _Fused.apply(*free)
        return super()._rounded(*free)

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


class _Fused(torch.autograd.Function):
    """W of Z, S and log D in a training step: what `_rounded` computes, its gradient in half of the operators."""

    @staticmethod
    def forward(ctx: Any, *free: Tensor) -> Tensor:
        info, limit = torch.finfo(free[0].dtype), _largest(torch.finfo(free[0].dtype))
        z, s, d = (w.double().clamp(-MAX_ENTRY, MAX_ENTRY) for w in free)
        lost = torch.stack([w.sum() for w in (z, s, d)]).isnan().any()
        if lost:
            ctx.free = free
            return torch.full_like(free[0], math.nan)
        size = torch.linalg.vector_norm(z).clamp(min=MAX_FREE_NORM)
        z = z * (MAX_FREE_NORM / size)
        P, p, *ends, q = decomposed(s, limit - 1 / limit)
        inner, outer = _factor(z), _factor(P)
        K = torch.linalg.solve_triangular(inner.mT, z, upper=True, left=False)
        right = _right(P, outer)
        left = torch.linalg.solve_triangular(outer.mT, K, upper=True)
        M = 2 * left @ right
        scales = torch.exp(_apart(info, d)) * (1 - _share(info, M, p)).clamp(min=0)
        W = M * scales
        ctx.size, ctx.info = size, info
        ctx.save_for_backward(*free, d, z, K, inner, left, right, outer, scales, W, *ends, q)
        return W.to(free[0].dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """With Phi the lower triangle, its diagonal halved: of L L' = B, grad B = L^-T (Phi + Phi') L^-1 / 2 at L' grad L."""
        if not ctx.saved_tensors:
            return tuple(torch.zeros_like(w) for w in ctx.free)
        *free, d, z, K, inner, left, right, outer, scales, W, x, inside, root, q = ctx.saved_tensors
        wide = grad.double()
        moved = wide * W
        spread = _spread(ctx.info)
        grad_d = torch.where(d.abs() <= spread / 2, moved.sum(0) - moved.sum(1), 0.0)
        grad_m = wide * (2 * scales)
        grad_right = left.mT @ grad_m
        grad_k = torch.linalg.solve_triangular(outer, grad_m @ right.mT, upper=False)
        turned = _mirrored(torch.addmm(K @ grad_k.mT, grad_right, right.mT))
        grad_p = torch.linalg.solve_triangular(outer.mT, torch.addmm(grad_right, turned, right, alpha=-1), upper=True)
        grad_s = positive_definite_derivative(grad_p, x, inside, root, q, clamped=bool((x != inside).any()))
        turned = _mirrored(grad_k.mT @ K)
        grad_z = torch.addmm(grad_k, K, turned, alpha=-1)
        grad_z = torch.linalg.solve_triangular(inner, grad_z, upper=False, left=False)
        # where Z is held at its largest size, that size has no gradient
        if ctx.size > MAX_FREE_NORM:
            grad_z = (grad_z - z * ((grad_z * z).sum() / MAX_FREE_NORM**2)) * (MAX_FREE_NORM / ctx.size)
        # a weight that was infinite entered as MAX_ENTRY, which does not follow it
        return tuple(
            g.masked_fill(w.double().abs() > MAX_ENTRY, 0.0).to(w.dtype)
            for g, w in zip((grad_z, grad_s, grad_d), free, strict=True)
        )


def _mirrored(x: Tensor) -> Tensor:
    """Phi + Phi': the lower triangle of x on both sides of its diagonal."""
    lower = x.tril()
    return lower + lower.tril(-1).mT


def _largest(info: torch.finfo) -> float:
    return info.eps**-0.2


def _spread(info: torch.finfo) -> float:
    return min(MAX_LOG_SPREAD, 0.5 * math.log(info.max))


def _limited(info: torch.finfo, d: Tensor) -> Tensor:
    spread = _spread(info)
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
    return torch.linalg.cholesky(torch.eye(len(P), dtype=P.dtype, device=P.device) + P.mT @ P)


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
        # not positive definite: that is the answer, and no error
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
