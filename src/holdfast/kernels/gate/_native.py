"""The gated residual in C++ as torch operators."""

from __future__ import annotations

from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import library
from holdfast.kernels._common.backends import define
from holdfast.kernels._common.calls import call, dense, empty, present, verify


def grain() -> int:
    """Widths have to be multiples of it: others would need masks."""
    return library.number("width_grain")


def _verify(y: Tensor, weight: Tensor, bias: Tensor, *others: tuple[Tensor, tuple[int, ...]]) -> None:
    width = y.shape[-1] if y.ndim else 0
    if width == 0 or width % grain():
        raise ShapeError(f"gate: expected a width that is a multiple of {grain()}, got y of shape {tuple(y.shape)}")
    verify("gate", y, (weight, (2 * width, width)), (bias, (2 * width,)), *others)


def gate_forward(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """The result, and gelu(y) weight' where it is to be kept for backward."""
    present("gate", y, x, weight, bias)
    _verify(y, weight, bias, (x, y.shape))
    out = empty(y.shape, y.dtype)
    # 2 width numbers per token, so that backward has no product of forward to repeat
    z = empty((*y.shape[:-1], weight.shape[0]) if keep else (0,), y.dtype)
    width = y.shape[-1]
    call(
        "gate", "gate_forward", y.dtype, tokens=y.numel() // width, width=width, y=dense(y), weight=dense(weight),
        bias=dense(bias), x=dense(x), out=out, z=z if keep else None,
    )  # fmt: skip
    return out, z


def gate_backward(y: Tensor, weight: Tensor, bias: Tensor, z: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of y, weight and bias; that of x is `grad` itself."""
    present("gate", y, weight, bias, z, grad)
    _verify(y, weight, bias, (z, (*y.shape[:-1], weight.shape[0])), (grad, y.shape))
    of_y, of_weight, of_bias = (empty(t.shape, t.dtype) for t in (y, weight, bias))
    width = y.shape[-1]
    call(
        "gate", "gate_backward", y.dtype, tokens=y.numel() // width, width=width, y=dense(y), weight=dense(weight),
        bias=dense(bias), z=dense(z), grad=dense(grad), grad_y=of_y, grad_weight=of_weight, grad_bias=of_bias,
    )  # fmt: skip
    return of_y, of_weight, of_bias


def _forward_meta(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty((*y.shape[:-1], weight.shape[0]) if keep else (0,))


def _backward_meta(y: Tensor, weight: Tensor, bias: Tensor, z: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return y.new_empty(y.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


define("gate_forward", gate_forward, _forward_meta)
define("gate_backward", gate_backward, _backward_meta)
