"""The RNN in C++: rows of the batch over threads, small matrix products in registers, no barrier in time.

A group of up to 32 rows advances together, so that one pass over W, which stays in the cache, serves them all; U x + b is
formed a few steps ahead by the same products. Backward, the adjoint runs with W^T and the weight gradients are summed a
block of steps at once, while the gradients of that block are in the cache. A batch smaller than the threads leaves the
others idle: one row is one matrix-vector product a step, too little to share.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from holdfast.kernels import library
from holdfast.kernels.arguments import dense, pointer
from holdfast.kernels.memory import empty
from holdfast.kernels.rnn import autograd
from holdfast.kernels.rnn.autograd import Backend, Settings
from holdfast.kernels.rnn.reference import ACTIVATIONS, Activation


def rnn_native(
    x: Float[Tensor, "batch time features"],
    w: Float[Tensor, "state state"] | Float[Tensor, " state"],
    u: Float[Tensor, "state features"],
    b: Float[Tensor, " state"] | None = None,
    h0: Float[Tensor, "batch state"] | None = None,
    *,
    dt: float | Float[Tensor, "batch time"] | None = None,
    activation: Activation = "tanh",
    lengths: Int64[Tensor, " batch"] | None = None,
    reverse: bool = False,
) -> tuple[Float[Tensor, "batch time state"], Float[Tensor, "batch state"]]:
    """`rnn_reference` on the CPU, with its own backward: saves x and the states, and for Euler steps the activations.

    Numbers kept for a training step: x, h, their gradients, and for Euler steps y = sigma(...), the size of h;
    the workspace holds W and U once and, in the backward pass, their gradients once a thread. y is kept because
    (h_t - h_{t-1}) / dt has lost the digits of y that h_t is larger than dt, and a new W h_{t-1} + U x_t costs
    (state + features) / 16 cycles a number where reading y costs 1.

    Args:
        x: inputs (batch, time, features).
        w: recurrent weights (state, state), or (state,) for a diagonal W.
        u: input weights (state, features).
        b: bias (state,), or None.
        h0: state before the first step (batch, state); None is zero.
        dt: None for the discrete form; else the Euler step, a number or (batch, time).
        activation: a name in ACTIVATIONS.
        lengths: int64 (batch,): steps of each row.
        reverse: run from the last step to the first.
    """
    return autograd.run("native", x, w, u, b, h0, dt, activation, lengths, reverse)


_SIZES = ("batch", "time", "features", "state")
_FLAGS = ("activation", "threads", "wide", "diagonal", "euler", "reverse")
_INPUTS = ("x", "w", "u", "b", "h0", "dts", "lengths")
_OUTPUTS = ("h", "y", "last")
_GRADIENTS = ("grad_x", "grad_w", "grad_u", "grad_b", "grad_h0", "grad_dts")


class _Call(ctypes.Structure):
    """`holdfast::rnn::Call` of csrc/rnn/plan.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, ctypes.c_int32) for name in _FLAGS),
        ("dt", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in (*_INPUTS, *_OUTPUTS, "grad_h", "grad_last", *_GRADIENTS, "workspace")),
    )


_KINDS = {name: index for index, name in enumerate(ACTIVATIONS)}


@functools.cache
def _functions(name: str) -> tuple[Any, Any]:
    call = [ctypes.POINTER(_Call)]
    return (
        library.function(f"holdfast_rnn_{name}_workspace", call, ctypes.c_int64),
        library.function(f"holdfast_rnn_{name}", call),
    )


def _run(name: str, x: Tensor, w: Tensor, settings: Settings, tensors: Sequence[Tensor | None]) -> None:
    """Calls the C function; `tensors` are those of `_Call` from its first pointer on, contiguous and of x's dtype."""
    workspace, function = _functions(name)
    call = _Call(
        *x.shape, w.shape[0], _KINDS[settings.activation], library.threads(), x.dtype == torch.float64, w.ndim == 1,
        settings.dt is not None, settings.reverse, settings.dt or 0.0,
        *map(pointer, tensors),
    )  # fmt: skip
    # uninitialised on purpose; torch aligns it to a cache line
    memory = empty((workspace(call),), torch.uint8)
    call.workspace = memory.data_ptr()
    function(call)


def _forward(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor | None, h0: Tensor | None, dts: Tensor | None, lengths: Tensor | None,
    settings: Settings, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, time, state = x.shape[0], x.shape[1], u.shape[0]
    h, last = empty((batch, time, state), x.dtype), empty((batch, state), x.dtype)
    y = empty((batch, time, state) if keep else (0,), x.dtype)
    inputs = [dense(t) for t in (x, w, u, b, h0, dts, lengths)]
    _run("forward", x, w, settings, (*inputs, h, y if keep else None, last))
    return h, last, y


def _backward(
    saved: tuple[Tensor | None, ...], grad_h: Tensor | None, grad_last: Tensor | None, settings: Settings,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    x, w, u, h0, dts, lengths, h, y = saved
    assert x is not None and w is not None and u is not None and h is not None
    batch, time, state = h.shape
    shapes = (x.shape, w.shape, u.shape, (state,), (batch, state), (batch, time))
    gradients = [empty(shape, x.dtype) if want else None for shape, want in zip(shapes, wanted, strict=True)]
    tensors = [dense(t) for t in (x, w, u, None, h0, dts, lengths, h, y, None, grad_h, grad_last)]
    _run("backward", x, w, settings, (*tensors, *gradients))
    return tuple(gradients)


autograd.register("native", Backend(_forward, _backward))
