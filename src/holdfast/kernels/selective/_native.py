"""The selective scan in C++ as torch operators: a state is kept every 64 steps, backward computes the rest again.

All tensors are CPU tensors of one dtype, float32 or float64. Sequences are read where they lie, also as columns of a
larger tensor, as a projection into several parts gives them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from holdfast.errors import DtypeError, ShapeError
from holdfast.kernels._common import checks, library
from holdfast.kernels._common.arguments import dense, pointer, present, readable_steps, sizes, verify
from holdfast.kernels._common.calls import call
from holdfast.kernels._common.memory import empty

_MIN_THREAD_STEPS = 1 << 15  # states times steps of one thread; below, another one costs more than it brings

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
            f"selective: expected at least one state and channels in whole groups, got {state} states and "
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
        raise DtypeError(f"selective: expected resets in bool on {u.device}, got {checks.describe(resets)}")
    if resets is not None:
        pointer(resets)
        checks.shape("selective", "resets", resets, (batch, time), "one for each step")


def _transposed(states: Tensor | None) -> Tensor | None:
    """(..., channels, state) as (..., state, channels), the order in which C reads and writes."""
    return None if states is None else dense(states.transpose(-1, -2))


def _parts(u: Tensor, state: int) -> tuple[int, int]:
    """Threads, and the parts into which each row's channels are cut so that all threads get the same."""
    rows = u.shape[0]
    threads = max(1, min(library.threads(), u.numel() * state // _MIN_THREAD_STEPS))
    return threads, min(threads // math.gcd(rows, threads), u.shape[2])


class _Call:
    """Arguments that both functions of the C library begin with."""

    def __init__(
        self, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        bias: Tensor | None, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, softplus: bool,
        reverse: bool,
    ) -> None:  # fmt: skip
        self.dtype = u.dtype
        threads, self.parts = _parts(u, A.shape[1])
        rows, steps, channels = u.shape
        self.arguments: dict[str, Any] = {
            "rows": rows, "steps": steps, "channels": channels, "groups": B.shape[2], "states": A.shape[1],
            "parts": self.parts, "threads": threads, "softplus": softplus, "reverse": reverse,
            "lengths": dense(lengths), "A": _transposed(A), "D": dense(D), "dt_bias": dense(bias),
            "h0": _transposed(h0),
        }  # fmt: skip
        for name, x in {"u": u, "dt": dt, "B": B, "C": C, "z": z, "resets": dense(resets)}.items():
            if x is not None:
                x = readable_steps(x)
                self.arguments |= {name: x, f"{name}_row": x.stride(0), f"{name}_step": x.stride(1)}

    def run(self, name: str, **rest: Tensor | None) -> None:
        call("selective", f"selective_{name}", self.dtype, **self.arguments, **rest)


def _saved_shape(u: Tensor, A: Tensor) -> tuple[int, ...]:
    return (u.shape[0], -(-u.shape[1] // library.number("selective_tile_steps")), A.shape[1], A.shape[0])


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
        _Call(*inputs, softplus, reverse).run("forward", y=y, last=last, checkpoints=saved if save else None)
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
    prepared = _Call(*inputs, softplus, reverse)
    nothing = u.new_empty(0)
    of_u, of_dt = _output(u, lengths), _output(dt, lengths)
    of_z = nothing if z is None else _output(z, lengths)
    # added up over rows, and over the parts of a row, below
    of_A, of_h0 = (empty((u.shape[0], A.shape[1], A.shape[0]), u.dtype) for _ in range(2))
    of_B, of_C = (empty((prepared.parts, *B.shape), u.dtype).zero_() for _ in range(2))
    of_D, of_bias = (nothing if w is None else empty((u.shape[0], u.shape[2]), u.dtype) for w in (D, dt_bias))
    grads = (of_u, of_dt, of_A, of_B, of_C, of_D, of_z, of_bias, of_h0)
    names = ("u", "dt", "A", "B", "C", "D", "z", "dt_bias", "h0")
    places = {f"grad_{name}": grad for name, grad in zip(names, grads, strict=True) if grad.numel()}
    given = torch.zeros_like(u, memory_format=torch.contiguous_format) if grad_y is None else dense(grad_y)
    prepared.run(
        "backward", checkpoints=dense(saved), grad_y=given, grad_last=_transposed(grad_last), **places
    )  # fmt: skip
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


for _name, _kernel, _meta in (
    ("selective_forward", selective_forward, _forward_meta),
    ("selective_backward", selective_backward, _backward_meta),
):
    _LIBRARY.impl(_name, _kernel, "CPU")
    _LIBRARY.impl(_name, _meta, "Meta")
