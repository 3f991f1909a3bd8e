"""The MLP of a block over long sequences, some thousand positions at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from holdfast.kernels import _linear
from holdfast.nn._precision import applied, changed

TILE_ROWS = 4096  # positions of a tile: four times a width of 64 is 4 MB, which stays in the cache and in the heap


def tiled_mlp(mlp: nn.Sequential, x: Tensor) -> Tensor:
    """`mlp(x)` for linear, gelu, linear. In training on a CPU, long inputs go through it tile by tile.

    Then the wide inner part is kept once, before gelu, and neither gelu's outputs nor its gradients are ever whole: at
    131,072 positions these are what a training step takes most of its memory for.

    Args:
        mlp: nn.Linear, nn.GELU, nn.Linear.
        x: inputs (..., features).
    """
    first, inside, last = mlp
    rows = x.reshape(-1, x.shape[-1])
    if torch.compiler.is_exporting() or len(rows) <= TILE_ROWS or not _plain(x):  # an export leaves the length open
        # the module itself may have hooks, or be compiled
        plain = _linear.pays() and type(mlp) is nn.Sequential and not torch.compiler.is_compiling() and not changed(mlp)
        return applied(last, inside(applied(first, x))) if plain else mlp(x)
    y = _Tiled.apply(rows, first.weight, first.bias, last.weight, last.bias)
    return y.view(*x.shape[:-1], y.shape[-1])


def _plain(x: Tensor) -> bool:
    """Whether torch's reverse mode alone is tracking, on a CPU and in full precision."""
    if (
        not torch.is_grad_enabled()
        or type(x) is not Tensor
        or x.device.type != "cpu"
        or torch.is_autocast_enabled("cpu")
    ):
        return False
    watched = torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
    return not watched and forward_ad._current_level < 0 and x.dtype in (torch.float32, torch.float64)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
        # the inside is kept before gelu, which is cheaper to repeat than to keep
        inner, y = x.new_empty(len(x), len(w1)), x.new_empty(len(x), len(w2))
        for rows in _tiles(x):
            _product(x[rows], w1, b1, inner[rows])
            _product(functional.gelu(inner[rows]), w2, b2, y[rows])
        ctx.save_for_backward(x, w1, b1, w2, b2, inner)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, w1, b1, w2, b2, inner = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second backward is to follow
            y = functional.linear(functional.gelu(functional.linear(x, w1, b1)), w2, b2)
            return torch.autograd.grad(y, (x, w1, b1, w2, b2), grad, create_graph=True)
        grad_x = x.new_empty(x.shape)  # dense, whatever the strides of x
        sums = [torch.zeros_like(weight) for weight in (w1, b1, w2, b2)]
        for rows in _tiles(x):
            of_gelu, of_w2, of_b2 = _gradients(functional.gelu(inner[rows]), w2, grad[rows])
            below = torch.ops.aten.gelu_backward(of_gelu, inner[rows])
            _, of_w1, of_b1 = _gradients(x[rows], w1, below, grad_x[rows])
            for total, part in zip(sums, (of_w1, of_b1, of_w2, of_b2), strict=True):
                total += part
        return grad_x, *sums


def _product(x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> None:
    """Writes x weight' + bias to y."""
    if _linear.suits(x, weight, bias):
        _linear.forward(x, weight, bias, y)
    else:
        torch.addmm(bias, x, weight.T, out=y)


def _gradients(x: Tensor, weight: Tensor, grad: Tensor, of_x: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, which `of_x` takes, weight and bias."""
    if _linear.suits(x, weight, None):
        sizes = (weight.shape[0], weight.shape[1])
        return _linear.gradients(x, weight, grad, sizes, (True, True, True), of_x)  # type: ignore[return-value]
    return torch.mm(grad, weight, out=of_x), grad.T @ x, grad.sum(0)


def _tiles(x: Tensor) -> list[slice]:
    return [slice(at, at + TILE_ROWS) for at in range(0, len(x), TILE_ROWS)]
