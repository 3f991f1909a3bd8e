"""The short causal convolution in C++ as torch operators."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels import checks, library
from holdfast.kernels.arguments import dense, pointer, readable_steps, sizes, verify
from holdfast.kernels.memory import empty

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_PART = 256  # kPart in csrc/causal_conv: steps whose gradients of the weights are added up one after another
_LEAST = 1 << 14  # numbers of one thread; below, another one costs more than it brings

_INPUTS = "Tensor x, Tensor weight, Tensor? bias, Tensor? state, Tensor? lengths, bool silu"
_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define(f"causal_conv_forward({_INPUTS}) -> (Tensor, Tensor)")
_LIBRARY.define(
    f"causal_conv_backward({_INPUTS}, Tensor? grad_y, Tensor? grad_last) -> (Tensor, Tensor, Tensor, Tensor)"
)


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Any:
    flag, pointer = ctypes.c_int, ctypes.c_void_p
    pointers = {"forward": 4, "backward": 8}[name]
    return library.function(
        f"holdfast_causal_conv_{name}_{_SUFFIX[dtype]}", [pointer, flag, *[pointer] * pointers, flag]
    )


def _verify(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, lengths: Tensor | None
) -> tuple[int, ...]:
    """Batch, time, channels and taps, after a check of all that C relies on."""
    batch, time, channels = sizes("causal_conv", "x", x, "batch time channels")
    _, taps = sizes("causal_conv", "weight", weight, "channels taps")
    if taps == 0:
        raise ShapeError(f"causal_conv: expected at least one tap, came weight of shape {tuple(weight.shape)}")
    shapes = ((weight, (channels, taps)), (bias, (channels,)), (state, (batch, channels, taps - 1)))
    verify("causal_conv", x, *shapes)
    if lengths is not None:
        checks.lengths("causal_conv", lengths, (batch,), time, x.device)
    return batch, time, channels, taps


def _run(
    name: str, shape: tuple[int, ...], inputs: tuple[Tensor | None, ...], lengths: Tensor | None, silu: bool,
    *rest: Tensor | None,
) -> None:  # fmt: skip
    x, weight, bias, state = inputs
    assert x is not None
    assert weight is not None
    x, lengths = readable_steps(x), dense(lengths)
    kept = (x, dense(weight.t()), dense(bias), None if state is None else dense(state.transpose(1, 2)))
    threads = max(1, min(library.threads(), x.numel() // _LEAST))
    _function(name, x.dtype)(
        (ctypes.c_int64 * 6)(*shape, *x.stride()[:2]), silu, pointer(lengths),
        (ctypes.c_void_p * 4)(*map(pointer, kept)), *map(pointer, rest), threads,
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
        _run("forward", shape, (x, weight, bias, state), lengths, silu, y, last)
    return y, last.transpose(1, 2).contiguous()


def causal_conv_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, lengths: Tensor | None, silu: bool,
    grad_y: Tensor | None, grad_last: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight, bias and state; those of what was not given are computed too."""
    shape = _verify(x, weight, bias, state, lengths)
    batch, time, channels, taps = shape
    verify("causal_conv", x, (grad_y, x.shape), (grad_last, (batch, channels, taps - 1)))
    parts = (batch, -(-time // _PART))
    shapes = (x.shape, (*parts, taps, channels), (*parts, channels), (batch, taps - 1, channels))
    of_x, of_weight, of_bias, of_state = (empty(shape, x.dtype).zero_() for shape in shapes)
    given = torch.zeros_like(of_x) if grad_y is None else dense(grad_y)
    last = None if grad_last is None else dense(grad_last.transpose(1, 2))
    if batch and channels:
        _run(
            "backward", shape, (x, weight, bias, state), lengths, silu, given, last, of_x, of_weight, of_bias, of_state
        )
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
