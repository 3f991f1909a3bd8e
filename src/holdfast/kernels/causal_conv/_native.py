"""The short causal convolution in C++ as torch operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import checks, library
from holdfast.kernels._common.arguments import dense, readable_steps, sizes, verify
from holdfast.kernels._common.calls import call
from holdfast.kernels._common.memory import empty

_MIN_THREAD_NUMBERS = 1 << 14  # below, another thread costs more than it brings

_INPUTS = "Tensor x, Tensor weight, Tensor? bias, Tensor? state, Tensor? lengths, bool silu"
_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define(f"causal_conv_forward({_INPUTS}) -> (Tensor, Tensor)")
_LIBRARY.define(
    f"causal_conv_backward({_INPUTS}, Tensor? grad_y, Tensor? grad_last) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _verify(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, lengths: Tensor | None
) -> tuple[int, ...]:
    """Batch, time, channels and taps, after a check of all that C relies on."""
    batch, time, channels = sizes("causal_conv", "x", x, "batch time channels")
    _, taps = sizes("causal_conv", "weight", weight, "channels taps")
    if taps == 0:
        raise ShapeError(f"causal_conv: expected at least one tap, got weight of shape {tuple(weight.shape)}")
    shapes = ((weight, (channels, taps)), (bias, (channels,)), (state, (batch, channels, taps - 1)))
    verify("causal_conv", x, *shapes)
    if lengths is not None:
        checks.lengths("causal_conv", lengths, (batch,), time, x.device)
    return batch, time, channels, taps


def _run(
    name: str, shape: tuple[int, ...], x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None,
    lengths: Tensor | None, silu: bool, **rest: Tensor | None,
) -> None:  # fmt: skip
    rows, steps, channels, taps = shape
    x = readable_steps(x)
    call(
        "causal_conv", f"causal_conv_{name}", x.dtype, rows=rows, steps=steps, channels=channels, taps=taps,
        x_row=x.stride(0), x_step=x.stride(1), threads=max(1, min(library.threads(), x.numel() // _MIN_THREAD_NUMBERS)),
        silu=silu, lengths=dense(lengths), x=x, weight=dense(weight.t()), bias=dense(bias),
        state=None if state is None else dense(state.transpose(1, 2)), **rest,
    )  # fmt: skip


def causal_conv_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, lengths: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """y and the last inputs (batch, channels, taps - 1)."""
    shape = _verify(x, weight, bias, state, lengths)
    batch, _, channels, taps = shape
    y = empty(x.shape, x.dtype)
    y = y if lengths is None else y.zero_()
    last = empty((batch, taps - 1, channels), x.dtype)
    if batch and channels:
        _run("forward", shape, x, weight, bias, state, lengths, silu, y=y, last=last)
    return y, last.transpose(1, 2).contiguous()


def causal_conv_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, lengths: Tensor | None, silu: bool,
    grad_y: Tensor | None, grad_last: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight, bias and state; those of what was not given are computed too."""
    shape = _verify(x, weight, bias, state, lengths)
    batch, time, channels, taps = shape
    verify("causal_conv", x, (grad_y, x.shape), (grad_last, (batch, channels, taps - 1)))
    parts = (batch, -(-time // library.number("causal_conv_part_steps")))
    shapes = (x.shape, (*parts, taps, channels), (*parts, channels), (batch, taps - 1, channels))
    of_x, of_weight, of_bias, of_state = (empty(shape, x.dtype).zero_() for shape in shapes)
    given = torch.zeros_like(of_x) if grad_y is None else dense(grad_y)
    last = None if grad_last is None else dense(grad_last.transpose(1, 2))
    if batch and channels:
        _run(
            "backward", shape, x, weight, bias, state, lengths, silu, grad_y=given, grad_last=last,
            grad_x=of_x, grad_weight=of_weight, grad_bias=of_bias, grad_state=of_state,
        )  # fmt: skip
    return of_x, of_weight.sum((0, 1)).t().contiguous(), of_bias.sum((0, 1)), of_state.transpose(1, 2).contiguous()


def _forward_meta(x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((x.shape[0], x.shape[2], weight.shape[1] - 1))


def _backward_meta(x: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    state = (x.shape[0], x.shape[2], weight.shape[1] - 1)
    return x.new_empty(x.shape), x.new_empty(weight.shape), x.new_empty(x.shape[2:]), x.new_empty(state)


_LIBRARY.impl("causal_conv_forward", causal_conv_forward, "CPU")
_LIBRARY.impl("causal_conv_backward", causal_conv_backward, "CPU")
_LIBRARY.impl("causal_conv_forward", _forward_meta, "Meta")
_LIBRARY.impl("causal_conv_backward", _backward_meta, "Meta")
