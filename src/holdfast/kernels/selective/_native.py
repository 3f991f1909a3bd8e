"""The selective scan in C++ as torch operators: a state is kept every 64 steps, backward computes the rest again.

All tensors are CPU tensors of one dtype, float32 or float64. Sequences are read where they lie, also as columns of a
larger tensor, as a projection into several parts gives them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import DtypeError, ShapeError
from holdfast.kernels._common import checks, library
from holdfast.kernels._common.backends import define
from holdfast.kernels._common.calls import call, dense, empty, pointer, present, readable_steps, sizes, verify
from holdfast.kernels.selective._reference import SelectiveCall

_MIN_THREAD_STEPS = 1 << 15  # states times steps of one thread; below, another one costs more than it brings
_FLOATS = ("u", "dt", "A", "B", "C", "D", "z", "dt_bias", "h0")  # what has a gradient, in its order


def _verify(scan: SelectiveCall) -> None:
    """A check of all that C relies on."""
    u, dt, A, B, C, D, z, bias, h0, lengths, resets, *_ = scan
    present("selective", dt, C)
    batch, time, channels = sizes("selective", "u", u, "batch time channels")
    _, state = sizes("selective", "A", A, "channels state")
    groups = sizes("selective", "B", B, "batch time groups state")[2]
    if state == 0 or groups == 0 or channels % groups:
        raise ShapeError(
            f"selective: expected at least one state and groups that divide the channels, got {state} states and "
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
    # rows alone do not fill the threads where the batch is small: 3 rows on 2 threads are cut in 2 parts each
    threads = max(1, min(library.threads(), u.numel() * state // _MIN_THREAD_STEPS))
    return threads, min(threads // math.gcd(rows, threads), u.shape[2])


def _fields(scan: SelectiveCall) -> dict[str, Any]:
    """What both functions of the C library read."""
    (rows, steps, channels), states = scan.u.shape, scan.A.shape[1]
    threads, parts = _parts(scan.u, states)
    fields: dict[str, Any] = {
        "rows": rows, "steps": steps, "channels": channels, "groups": scan.B.shape[2], "states": states,
        "parts": parts, "threads": threads, "softplus": scan.softplus, "reverse": scan.reverse,
        "lengths": dense(scan.lengths), "A": _transposed(scan.A), "D": dense(scan.D), "dt_bias": dense(scan.dt_bias),
        "h0": _transposed(scan.h0),
    }  # fmt: skip
    sequences = {"u": scan.u, "dt": scan.dt, "B": scan.B, "C": scan.C, "z": scan.z, "resets": dense(scan.resets)}
    # sequences are read where they lie, by strides of rows and steps: as a rule they are columns of one projection
    for name, x in sequences.items():
        if x is not None:
            x = readable_steps(x)
            fields |= {name: x, f"{name}_row": x.stride(0), f"{name}_step": x.stride(1)}
    return fields


def _saved_shape(scan: SelectiveCall) -> tuple[int, ...]:
    """Of the states before each tile of 64 steps, (batch, tiles, state, channels)."""
    batch, time, channels = scan.u.shape
    return (batch, -(-time // library.number("selective_tile_steps")), scan.A.shape[1], channels)


def _output(like: Tensor, lengths: Tensor | None) -> Tensor:
    """Room for a sequence; steps after a row's end are never written, so they are zero before."""
    out = empty(like.shape, like.dtype)
    return out if lengths is None else out.zero_()


def selective_forward(scan: SelectiveCall, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final states, and (if `save`) the states before each tile of 64 steps."""
    _verify(scan)
    u, h0 = scan.u, scan.h0
    y = _output(u, scan.lengths)
    saved = empty(_saved_shape(scan) if save else (0,), u.dtype)
    last = empty((u.shape[0], *scan.A.shape[::-1]), u.dtype)
    if u.numel() == 0:
        last = last.zero_() if h0 is None else last.copy_(h0.transpose(1, 2))
    else:
        results = {"y": y, "last": last, "checkpoints": saved if save else None}
        call("selective", "selective_forward", u.dtype, **_fields(scan), **results)
    return y, last.transpose(1, 2).contiguous(), saved


def _backward(
    scan: SelectiveCall, saved: Tensor, grad_y: Tensor | None, grad_last: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, A, B, C, D, z, dt_bias and h0; empty for what was not given."""
    _verify(scan)
    present("selective", saved)
    u = scan.u
    verify("selective", u, (saved, _saved_shape(scan)), (grad_y, u.shape), (grad_last, (u.shape[0], *scan.A.shape)))
    if u.numel() == 0:
        return _gradients_of_nothing(scan, grad_last)
    fields = _fields(scan)
    grads = _room(scan, fields["parts"])
    places = {f"grad_{name}": grad for name, grad in grads.items() if grad.numel()}
    given = torch.zeros_like(u, memory_format=torch.contiguous_format) if grad_y is None else dense(grad_y)
    call(
        "selective", "selective_backward", u.dtype, **fields, checkpoints=dense(saved), grad_y=given,
        grad_last=_transposed(grad_last), **places,
    )  # fmt: skip
    # what threads wrote apart is added up: A's over rows, B's and C's over the parts of a row, D's and dt_bias's over rows
    grads["A"] = grads["A"].sum(0).t().contiguous()
    for name in ("B", "C", "D", "dt_bias"):
        grads[name] = grads[name].sum(0) if grads[name].numel() else grads[name]
    grads["h0"] = u.new_empty(0) if scan.h0 is None else grads["h0"].transpose(1, 2).contiguous()
    return tuple(grads.values())  # type: ignore[return-value]


def _room(scan: SelectiveCall, parts: int) -> dict[str, Tensor]:
    """Room for the gradients as C writes them, in the order of `_FLOATS`."""
    u, dt, A, B, _, D, z, dt_bias, _, lengths, *_ = scan
    nothing, row = u.new_empty(0), (u.shape[0], u.shape[2])
    of_A, of_h0 = (empty((u.shape[0], *A.shape[::-1]), u.dtype) for _ in range(2))
    of_B, of_C = (empty((parts, *B.shape), u.dtype).zero_() for _ in range(2))
    of_D, of_bias = (nothing if w is None else empty(row, u.dtype) for w in (D, dt_bias))
    of_z = nothing if z is None else _output(z, lengths)
    grads = (_output(u, lengths), _output(dt, lengths), of_A, of_B, of_C, of_D, of_z, of_bias, of_h0)
    return dict(zip(_FLOATS, grads, strict=True))


def _gradients_meta(scan: SelectiveCall, *_: Any) -> tuple[Tensor, ...]:
    """Room for the gradient of each input; empty for one that was not given."""
    inputs: tuple[Any, ...] = scan[: len(_FLOATS)]
    return tuple(scan.u.new_empty((0,) if x is None else x.shape) for x in inputs)


def _gradients_of_nothing(scan: SelectiveCall, grad_last: Tensor | None) -> Any:
    """The gradients where u has no numbers: the final state is h0 itself."""
    *grads, of_h0 = (g.zero_() for g in _gradients_meta(scan))
    return (*grads, of_h0 if scan.h0 is None or grad_last is None else of_h0.copy_(grad_last))


def _forward_meta(scan: SelectiveCall, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    u = scan.u
    saved = u.new_empty(_saved_shape(scan) if save else (0,))
    return u.new_empty(u.shape), u.new_empty((u.shape[0], *scan.A.shape)), saved


define("selective_forward", selective_forward, _forward_meta)
define("selective_backward", _backward, _gradients_meta)
