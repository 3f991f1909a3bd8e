"""A smooth one-to-one map from symmetric to positive definite matrices, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def _scalar(x: Tensor) -> tuple[Tensor, Tensor]:
    """(x + sqrt(x^2 + 4)) / 2 without cancellation for x < 0, and the root."""
    root = torch.hypot(x, torch.full_like(x, 2.0))
    return torch.where(x > 0, (x + root) / 2, 2 / (root - x)), root


def _decomposed(s: Tensor, limit: float) -> tuple[Tensor, ...]:
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
        return _decomposed(s, limit)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[2:])
        ctx.save_for_forward(*output[2:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        return _derivative(grad, *ctx.saved_tensors), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> tuple[Tensor | None, ...]:
        return _derivative(tangent, *ctx.saved_tensors), *(None,) * 5


class _Compiled(torch.autograd.Function):
    """The same for torch.compile, which traces no function that has a forward mode."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        P, value, *saved = _decomposed(s, limit)
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(value)
        return P, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        return _derivative(grad, *ctx.saved_tensors), None


def _apply(s: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    return _Compiled.apply(s, limit) if torch.compiler.is_compiling() else _PositiveDefinite.apply(s, limit)[:2]


def _derivative(direction: Tensor, x: Tensor, inside: Tensor, root: Tensor, q: Tensor) -> Tensor:
    """Daleckii-Krein, which is its own transpose: of a tangent and of a gradient alike.

    The divided differences have a closed form, so that equal eigenvalues are no trouble.
    """
    sums = inside.unsqueeze(-1) + inside.unsqueeze(-2)
    differences = (1 + sums / (root.unsqueeze(-1) + root.unsqueeze(-2))) / 2
    inner = q.mT @ ((direction + direction.mT) / 2) @ q
    return q @ (differences * _clamp_differences(x, inside) * inner) @ q.mT


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
