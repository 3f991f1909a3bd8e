"""Factors that matrix forms are made of: contractive and positive definite ones from free matrices, and energies."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from holdfast._types import Time

# |Z| up to which K follows it; there 1 - |K| is 5e-9, and the rounding of I + Z'Z in float64 is 2e-8 of its smallest
# eigenvalue for every row: K still shrinks
MAX_FREE_NORM = 1e4
EPS64 = torch.finfo(torch.float64).eps


def in_plain_call(*tensors: Tensor) -> bool:
    """Whether nothing but reverse mode can follow these CPU tensors: no tracing, transform, tangent or subclass."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    if forward_ad._current_level >= 0 or torch._C._len_torch_dispatch_stack() > 0:
        return False
    return all(type(t) in (Tensor, nn.Parameter) and t.is_cpu for t in tensors)


def held(x: Float[Tensor, "*any"], limit: float) -> Float[Tensor, "*any"]:
    """`x`, scaled down to Frobenius norm `limit` where it is above; its direction still learns."""
    return x * (limit / torch.linalg.vector_norm(x).clamp(min=limit))


def contractive_factor(z: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """K = Z L^-T with L L' = I + Z'Z, so that K'K = I - (L'L)^-1 and |K|_2 < 1; float64.

    K differs by a rotation from Z (I + Z'Z)^-1/2: the Cholesky factor needs no matrix square root and its gradient no
    distinct eigenvalues.
    """
    z = held(z, MAX_FREE_NORM)
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    L = torch.linalg.cholesky(eye + z.mT @ z)
    return torch.linalg.solve_triangular(L.mT, z, upper=True, left=False)


def contractive_factor_inverse(K: Float[Tensor, "n n"]) -> Float[Tensor, "n n"] | None:
    """Z with contractive_factor(Z) = K, from I - K'K = C C' with C = L^-1; None where |K|_2 is not below 1."""
    eye = torch.eye(len(K), dtype=K.dtype, device=K.device)
    C, info = torch.linalg.cholesky_ex(eye - K.mT @ K)
    if int(info) != 0:
        return None
    return torch.linalg.solve_triangular(C.mT, K, upper=True, left=False)


def size_of(W: Float[Tensor, "n n"]) -> Tensor:
    """Frobenius norm, for margins: of the order of rounding, so that gradients need not see it."""
    return torch.linalg.matrix_norm(W.detach())


def _scalar(x: Tensor) -> tuple[Tensor, Tensor]:
    """(x + sqrt(x^2 + 4)) / 2 without cancellation for x < 0, and the root."""
    root = torch.hypot(x, torch.full_like(x, 2.0))
    return torch.where(x > 0, (x + root) / 2, 2 / (root - x)), root


def decomposed(s: Tensor, limit: float) -> tuple[Tensor, ...]:
    """P and its eigenvalues, and what their derivative is made of."""
    # halves first: the sum of two large numbers may overflow
    x, q = torch.linalg.eigh(s / 2 + s.mT / 2)
    inside = x.clamp(-limit, limit)
    value, root = _scalar(inside)
    return (q * value.unsqueeze(-2)) @ q.mT, value, x, inside, root, q


class _PositiveDefinite(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(s: Tensor, limit: float) -> tuple[Tensor, ...]:
        return decomposed(s, limit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[2:])
        ctx.save_for_forward(*output[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        return positive_definite_derivative(grad, *ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> tuple[Tensor | None, ...]:
        return positive_definite_derivative(tangent, *ctx.saved_tensors), *(None,) * 5


class _Compiled(torch.autograd.Function):
    """The same for torch.compile, which traces no function that has a forward mode."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        P, value, *saved = decomposed(s, limit)
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(value)
        return P, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        return positive_definite_derivative(grad, *ctx.saved_tensors), None


def _apply(s: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    return _Compiled.apply(s, limit) if torch.compiler.is_compiling() else _PositiveDefinite.apply(s, limit)[:2]


def positive_definite_derivative(
    direction: Tensor, x: Tensor, inside: Tensor, root: Tensor, q: Tensor, *, clamped: bool = True
) -> Tensor:
    """Daleckii-Krein, which is its own transpose: of a tangent and of a gradient alike.

    The divided differences have a closed form, so that equal eigenvalues are no trouble.
    """
    sums = inside.unsqueeze(-1) + inside.unsqueeze(-2)
    differences = (1 + sums / (root.unsqueeze(-1) + root.unsqueeze(-2))) / 2
    inner = q.mT @ ((direction + direction.mT) / 2) @ q
    if clamped:  # whether any eigenvalue may be beyond the limit
        differences = differences * _clamp_differences(x, inside)
    return q @ (differences * inner) @ q.mT


def _clamp_differences(x: Tensor, inside: Tensor) -> Tensor:
    """Divided differences of the clamp: 1 within, 0 beyond one end, between them in part."""
    free = (x == inside).to(x.dtype)
    apart = x.unsqueeze(-1) - x.unsqueeze(-2)
    moved = inside.unsqueeze(-1) - inside.unsqueeze(-2)
    both = free.unsqueeze(-1) * free.unsqueeze(-2)
    return torch.where(both.bool() | (apart == 0), both, moved / torch.where(apart == 0, torch.ones_like(apart), apart))


def bounded_positive_definite(
    s: Float[Tensor, "*batch n n"], largest: float
) -> tuple[Float[Tensor, "*batch n n"], Float[Tensor, "*batch n"]]:
    """P of `positive_definite` with eigenvalues held in [1/largest, largest], and those eigenvalues, rising."""
    return _apply(s, largest - 1 / largest)


def positive_definite(s: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """P = (S + (S^2 + 4I)^(1/2)) / 2 of the symmetric part S of `s`.

    Every positive definite P has exactly one S, namely P - P^-1. An eigenvalue x of S becomes about x for x >> 0 and
    1/|x| for x << 0, so that P stays well conditioned wherever S goes: at |S| = 100 its condition is 1e4, where a
    matrix exponential has 1e86.
    """
    return _apply(s, math.inf)[0]


def positive_definite_inverse(p: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """S = P - P^-1."""
    return p - torch.linalg.inv(p)


def energy(W: Float[Tensor, "n n"], time: Time) -> tuple[Float[Tensor, " n"], Float[Tensor, "n n"]] | None:
    """Eigenvalues (of geometric mean 1) and eigenvectors of X > 0 with WX + XW' < 0, or X - WXW' > 0; float64.

    The better conditioned of two: V V* of the eigenvectors, whose condition does not grow as eigenvalues approach the
    boundary, and the Lyapunov solution, which a defective W has too. None where neither is positive definite.
    """
    vectors = torch.linalg.eig(W).eigenvectors
    energies = []
    for X in ((vectors @ vectors.mH).real, _lyapunov(W, time)):
        x, q = torch.linalg.eigh((X + X.mT) / 2)
        if bool(torch.isfinite(x).all()) and bool(x[0] > x[-1] * 1e-15):
            energies.append((float(x[-1] / x[0]), x / torch.exp(x.log().mean()), q))
    if not energies:
        return None
    _, x, q = min(energies, key=lambda one: one[0])
    return x, q


def _lyapunov(W: Tensor, time: Time) -> Tensor:
    from scipy.linalg import LinAlgError, LinAlgWarning, solve_continuous_lyapunov, solve_discrete_lyapunov

    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    # with W/g, g half-way from the radius to 1, the step shrinks by g in the norm of X, however W is conditioned
    g = (1 + float(torch.linalg.eigvals(W).abs().max())) / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LinAlgWarning)  # a bad solution is not positive definite, or refused later on
        try:
            if time == "continuous":
                return torch.from_numpy(solve_continuous_lyapunov(W.numpy(), -2 * eye.numpy()))
            return torch.from_numpy(solve_discrete_lyapunov((W / g).numpy(), eye.numpy()))
        except LinAlgError:
            return -eye
