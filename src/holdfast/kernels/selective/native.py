"""The selective scan in C++ as torch operators: a state is kept every 64 steps, backward computes the rest again.

All tensors are CPU tensors of one dtype, float32 or float64. Sequences are read where they lie, also as columns of a
larger tensor, as a projection into several parts gives them.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from holdfast.errors import DtypeError, OutOfMemoryError, ShapeError
from holdfast.kernels import checks, library
from holdfast.kernels.arguments import dense, pointer, present, readable_steps, sizes, verify
from holdfast.kernels.memory import empty

TILE = 64  # kTile in csrc/selective/problem.h: steps between two kept states
_SOFTPLUS, _REVERSE = 1, 2
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_LEAST = 1 << 15  # states times steps of one thread; below, another one costs more than it brings

Sequences = Float[Tensor, "batch time channels"]
Weights = Float[Tensor, "batch time groups state"]
Channels = Float[Tensor, " channels"]
States = Float[Tensor, "batch channels state"]

_INPUTS = (
    "Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, Tensor? h0, "
    "Tensor? lengths, Tensor? resets, bool softplus, bool reverse"
)
_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define(f"selective_forward({_INPUTS}, bool save) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"selective_backward({_INPUTS}, Tensor saved, Tensor? grad_y, Tensor? grad_last) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Any:
    flag, pointer = ctypes.c_int, ctypes.c_void_p
    pointers = {"forward": 6, "backward": 7}[
        name
    ]  # after the flags: lengths, resets, inputs and what is the name's own
    return library.function(
        f"holdfast_selective_{name}_{_SUFFIX[dtype]}", [pointer, pointer, flag, *[pointer] * pointers, flag], flag
    )


def _verify(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, bias: Tensor | None,
    h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None,
) -> None:  # fmt: skip
    """A check of all that C relies on."""
    present("selective", dt, C)
    batch, time, channels = sizes("selective", "u", u, "batch time channels")
    _, state = sizes("selective", "A", A, "channels state")
    groups = sizes("selective", "B", B, "batch time groups state")[2]
    if state == 0 or groups == 0 or channels % groups:
        raise ShapeError(
            f"selective: expected at least one state and channels in whole groups, came {state} states and "
            f"{channels} channels in {groups} groups"
        )
    weights = (batch, time, groups, state)
    verify(
        "selective", u, (dt, u.shape), (A, (channels, state)), (B, weights), (C, weights), (D, (channels,)),
        (z, u.shape), (bias, (channels,)), (h0, (batch, channels, state)),
    )  # fmt: skip
    if lengths is not None:
        checks.lengths("selective", lengths, (batch,), time, u.device)
    if resets is not None and (resets.dtype != torch.bool or resets.device != u.device):
        raise DtypeError(f"selective: expected resets in bool on {u.device}, came {checks.describe(resets)}")
    if resets is not None:
        checks.shape("selective", "resets", resets, (batch, time), "one for each step")


def _transposed(states: Tensor | None) -> Tensor | None:
    """(..., channels, state) as (..., state, channels), the order in which C reads and writes."""
    return None if states is None else dense(states.transpose(-1, -2))


def _parts(u: Tensor, state: int) -> tuple[int, int]:
    """Threads, and the parts into which each row's channels are cut so that all threads get the same."""
    rows = u.shape[0]
    threads = max(1, min(library.threads(), u.numel() * state // _LEAST))
    return threads, min(threads // math.gcd(rows, threads), u.shape[2])


class _Call:
    """Arguments that both functions of the C library begin with; keeps what they point to alive."""

    def __init__(
        self, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        bias: Tensor | None, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, softplus: bool,
        reverse: bool,
    ) -> None:  # fmt: skip
        sequences = [None if x is None else readable_steps(x) for x in (u, dt, B, C, z)]
        u_, dt_, b, c, z_ = sequences
        self.inputs = (u_, dt_, _transposed(A), b, c, dense(D), z_, dense(bias), _transposed(h0))
        self.lengths, self.resets = dense(lengths), dense(resets)
        self.threads, self.parts = _parts(u, A.shape[1])
        self.flags = (_SOFTPLUS if softplus else 0) | (_REVERSE if reverse else 0)
        self.sizes = (*u.shape, B.shape[2], A.shape[1], self.parts)
        self.strides = [s for x in (*sequences, self.resets) for s in ((0, 0) if x is None else x.stride()[:2])]

    def run(self, name: str, *rest: Tensor | Any) -> None:
        u = self.inputs[0]
        assert u is not None
        done = _function(name, u.dtype)(
            (ctypes.c_int64 * 6)(*self.sizes), (ctypes.c_int64 * 12)(*self.strides), self.flags, pointer(self.lengths),
            pointer(self.resets), _pointers(self.inputs),
            *(pointer(x) if x is None or isinstance(x, Tensor) else x for x in rest), self.threads,
        )  # fmt: skip
        if not done:
            raise OutOfMemoryError(f"selective: no memory for the tiles of {name}; use fewer threads")


def _pointers(values: tuple[Tensor | None, ...]) -> Any:
    return (ctypes.c_void_p * len(values))(*map(pointer, values))


def _saved_shape(u: Tensor, A: Tensor) -> tuple[int, ...]:
    return (u.shape[0], -(-u.shape[1] // TILE), A.shape[1], A.shape[0])


def _output(like: Tensor, lengths: Tensor | None) -> Tensor:
    """Room for a sequence; steps after a row's end are never written, so they are zero before."""
    out = empty(like.shape, like.dtype)
    return out if lengths is None else out.zero_()


def selective_forward(
    u: Sequences, dt: Sequences, A: Float[Tensor, "channels state"], B: Weights, C: Weights, D: Channels | None,
    z: Sequences | None, dt_bias: Channels | None, h0: States | None, lengths: Int64[Tensor, " batch"] | None,
    resets: Bool[Tensor, "batch time"] | None, softplus: bool, reverse: bool, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, the final states, and (if `save`) the states before each tile of 64 steps, (batch, tiles, state, channels)."""
    inputs = (u, dt, A, B, C, D, z, dt_bias, h0, lengths, resets)
    _verify(*inputs)
    y = _output(u, lengths)
    saved = empty(_saved_shape(u, A) if save else (0,), u.dtype)
    last = empty((u.shape[0], A.shape[1], A.shape[0]), u.dtype)
    if u.numel() == 0:
        last = last.zero_() if h0 is None else last.copy_(h0.transpose(1, 2))
    else:
        _Call(*inputs, softplus, reverse).run("forward", y, last, saved if save else None)
    return y, last.transpose(1, 2).contiguous(), saved


def selective_backward(
    u: Sequences, dt: Sequences, A: Float[Tensor, "channels state"], B: Weights, C: Weights, D: Channels | None,
    z: Sequences | None, dt_bias: Channels | None, h0: States | None, lengths: Int64[Tensor, " batch"] | None,
    resets: Bool[Tensor, "batch time"] | None, softplus: bool, reverse: bool,
    saved: Tensor, grad_y: Sequences | None, grad_last: States | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of u, dt, A, B, C, D, z, dt_bias and h0; empty for what was not given."""
    inputs = (u, dt, A, B, C, D, z, dt_bias, h0, lengths, resets)
    _verify(*inputs)
    present("selective", saved)
    states = (u.shape[0], *A.shape)
    verify("selective", u, (saved, _saved_shape(u, A)), (grad_y, u.shape), (grad_last, states))
    if u.numel() == 0:
        grads = _gradients_meta(*inputs[:9])
        for g in grads:
            g.zero_()
        return (*grads[:-1], grads[-1] if h0 is None or grad_last is None else grads[-1].copy_(grad_last))
    call = _Call(*inputs, softplus, reverse)
    nothing = u.new_empty(0)
    of_u, of_dt = _output(u, lengths), _output(dt, lengths)
    of_z = nothing if z is None else _output(z, lengths)
    # added up over rows, and over the parts of a row, below
    of_A, of_h0 = (empty((u.shape[0], A.shape[1], A.shape[0]), u.dtype) for _ in range(2))
    of_B, of_C = (empty((call.parts, *B.shape), u.dtype).zero_() for _ in range(2))
    of_D, of_bias = (nothing if w is None else empty((u.shape[0], u.shape[2]), u.dtype) for w in (D, dt_bias))
    grads = (of_u, of_dt, of_A, of_B, of_C, of_D, of_z, of_bias, of_h0)
    places = _pointers(tuple(g if g.numel() else None for g in grads))
    given = torch.zeros_like(u, memory_format=torch.contiguous_format) if grad_y is None else dense(grad_y)
    call.run("backward", dense(saved), given, _transposed(grad_last), places)
    return (
        of_u, of_dt, of_A.sum(0).t().contiguous(), of_B.sum(0), of_C.sum(0), of_D if D is None else of_D.sum(0),
        of_z, of_bias if dt_bias is None else of_bias.sum(0),
        nothing if h0 is None else of_h0.transpose(1, 2).contiguous(),
    )  # fmt: skip


def _gradients_meta(*inputs: Tensor | None) -> tuple[Tensor, ...]:
    """Room for the gradient of each input; empty for one that was not given."""
    like = inputs[0]
    assert like is not None
    return tuple(like.new_empty((0,) if x is None else x.shape) for x in inputs)


def _forward_meta(u: Tensor, dt: Tensor, A: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    saved = _saved_shape(u, A) if rest[-1] else (0,)
    return u.new_empty(u.shape), u.new_empty((u.shape[0], *A.shape)), u.new_empty(saved)


def _backward_meta(*arguments: Any) -> tuple[Tensor, ...]:
    return _gradients_meta(*arguments[:9])


for _name, _run, _meta in (
    ("selective_forward", selective_forward, _forward_meta),
    ("selective_backward", selective_backward, _backward_meta),
):
    _LIBRARY.impl(_name, _run, "CPU")
    _LIBRARY.impl(_name, _meta, "Meta")
