"""A smooth one-to-one map from symmetric to positive definite matrices, and its gradient."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def _scalar(x: Tensor) -> tuple[Tensor, Tensor]:
    """(x + sqrt(x^2 + 4)) / 2 without cancellation for x < 0, and the root."""
    root = torch.hypot(x, torch.full_like(x, 2.0))
    return torch.where(x > 0, (x + root) / 2, 2 / (root - x)), root


class _PositiveDefinite(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        x, q = torch.linalg.eigh((s + s.mT) / 2)
        value, root = _scalar(x)
        ctx.save_for_backward(x, root, q)
        return (q * value.unsqueeze(-2)) @ q.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # Daleckii-Krein: the divided differences have a closed form, so that equal eigenvalues are no trouble
        x, root, q = ctx.saved_tensors
        sums = x.unsqueeze(-1) + x.unsqueeze(-2)
        differences = (1 + sums / (root.unsqueeze(-1) + root.unsqueeze(-2))) / 2
        inner = q.mT @ ((grad + grad.mT) / 2) @ q
        return q @ (differences * inner) @ q.mT


def positive_definite(s: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """P = (S + (S^2 + 4I)^(1/2)) / 2 of the symmetric part S of `s`.

    Every positive definite P has exactly one S, namely P - P^-1. An eigenvalue x of S becomes about x for x >> 0 and
    1/|x| for x << 0, so that P stays well conditioned wherever S goes: at |S| = 100 its condition is 1e4, where a
    matrix exponential has 1e86.
    """
    return _PositiveDefinite.apply(s)


def positive_definite_inverse(p: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """S = P - P^-1."""
    return p - torch.linalg.inv(p)
