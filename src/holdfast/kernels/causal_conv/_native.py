"""The short causal convolution in C++ as torch operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import checks, library
from holdfast.kernels._common.backends import define
from holdfast.kernels._common.calls import call, dense, empty, readable_steps, sizes, verify
from holdfast.kernels.causal_conv._reference import ConvCall

_MIN_THREAD_NUMBERS = 1 << 14  # below, another thread costs more than it brings


def _verify(conv: ConvCall) -> tuple[int, ...]:
    """Batch, time, channels and taps, after a check of all that C relies on."""
    batch, time, channels = sizes("causal_conv", "x", conv.x, "batch time channels")
    _, taps = sizes("causal_conv", "weight", conv.weight, "channels taps")
    if taps == 0:
        raise ShapeError(
            f"causal_conv: expected weight (channels, taps) with taps >= 1, got shape {tuple(conv.weight.shape)}"
        )
    weight, state = (conv.weight, (channels, taps)), (conv.state, (batch, channels, taps - 1))
    verify("causal_conv", conv.x, weight, (conv.bias, (channels,)), state)
    if conv.lengths is not None:
        checks.lengths("causal_conv", conv.lengths, (batch,), time, conv.x.device)
    return batch, time, channels, taps


def _run(name: str, conv: ConvCall, **rest: Tensor | None) -> None:
    x = readable_steps(conv.x)
    (rows, steps, channels), taps = x.shape, conv.weight.shape[1]
    if rows == 0 or channels == 0:
        return
    # C has channels in vector lanes, so that taps and states come with channels adjacent
    call(
        "causal_conv", f"causal_conv_{name}", x.dtype, rows=rows, steps=steps, channels=channels, taps=taps,
        x_row=x.stride(0), x_step=x.stride(1), threads=max(1, min(library.threads(), x.numel() // _MIN_THREAD_NUMBERS)),
        silu=conv.silu, lengths=dense(conv.lengths), x=x, weight=dense(conv.weight.t()), bias=dense(conv.bias),
        state=None if conv.state is None else dense(conv.state.transpose(1, 2)), **rest,
    )  # fmt: skip


def causal_conv_forward(conv: ConvCall) -> tuple[Tensor, Tensor]:
    """y and the last inputs (batch, channels, taps - 1)."""
    batch, _, channels, taps = _verify(conv)
    y = empty(conv.x.shape, conv.x.dtype)
    y = y if conv.lengths is None else y.zero_()  # steps after a row's end are never written
    last = empty((batch, taps - 1, channels), y.dtype)
    _run("forward", conv, y=y, last=last)
    return y, last.transpose(1, 2).contiguous()


def _backward(conv: ConvCall, grad_y: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, weight, bias and state; those of what was not given are computed too."""
    batch, time, channels, taps = _verify(conv)
    x = conv.x
    verify("causal_conv", x, (grad_y, x.shape), (grad_last, (batch, channels, taps - 1)))
    # gradients of the weights come in parts, one for each stretch of a row, and are added up below: no thread waits
    parts = (batch, -(-time // library.number("causal_conv_part_steps")))
    shapes = (x.shape, (*parts, taps, channels), (*parts, channels), (batch, taps - 1, channels))
    of_x, *summands = (empty(shape, x.dtype) for shape in shapes)
    of_weight, of_bias, of_state = (part.zero_() for part in summands)
    given = torch.zeros_like(of_x) if grad_y is None else dense(grad_y)
    last = None if grad_last is None else dense(grad_last.transpose(1, 2))
    grads = {"grad_x": of_x, "grad_weight": of_weight, "grad_bias": of_bias, "grad_state": of_state}
    _run("backward", conv, grad_y=given, grad_last=last, **grads)
    return of_x, of_weight.sum((0, 1)).t().contiguous(), of_bias.sum((0, 1)), of_state.transpose(1, 2).contiguous()


def _state_shape(conv: ConvCall) -> tuple[int, int, int]:
    return conv.x.shape[0], conv.x.shape[2], conv.weight.shape[1] - 1


def _forward_meta(conv: ConvCall) -> tuple[Tensor, Tensor]:
    return conv.x.new_empty(conv.x.shape), conv.x.new_empty(_state_shape(conv))


def _backward_meta(conv: ConvCall, *_: Any) -> tuple[Tensor, ...]:
    shapes = (conv.x.shape, conv.weight.shape, conv.x.shape[2:], _state_shape(conv))
    return tuple(conv.x.new_empty(shape) for shape in shapes)


define("causal_conv_forward", causal_conv_forward, _forward_meta)
define("causal_conv_backward", _backward, _backward_meta)
