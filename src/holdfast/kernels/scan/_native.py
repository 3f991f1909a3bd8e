"""The linear scan in C++: torch.library ops over (rows, time, channels), the shape that op.py brings arguments to.

`a` is (1 or rows, 1 or time, channels), `h0` and the final state (rows, channels), `lengths` (rows,). The C side
reads a and b where they lie as long as channels are adjacent; other strides are copied first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import checks
from holdfast.kernels._common.backends import define
from holdfast.kernels._common.calls import call, dense, empty, present, sizes, verify
from holdfast.kernels.scan._reference import ScanAdjoint, ScanCall

# C sees complex numbers as pairs, and channels twice as many
_PART = {torch.complex64: torch.float32, torch.complex128: torch.float64}


def _plain(value: Tensor) -> Tensor:
    """The values as they stand in memory, channels adjacent."""
    adjacent = value.stride(-1) == 1 or value.shape[-1] == 1
    return value if adjacent and not value.is_conj() and not value.is_neg() else dense(value)


def _strides(value: Tensor, parts: int) -> tuple[int, int]:
    """The row stride and the time stride in numbers; a dimension of size 1 is read again and again."""
    # so that factors constant in time, or shared by all rows, are never copied out to b's size
    rows, time, _ = value.shape
    row, step, _ = value.stride()
    return row * parts if rows > 1 else 0, step * parts if time > 1 else 0


def _verify(a: Tensor, b: Tensor, lengths: Tensor | None, *others: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """A check of all that C relies on."""
    present("scan", a)
    rows, time, channels = b.shape
    if a.ndim != 3 or a.shape[0] not in (1, rows) or a.shape[1] not in (1, time):
        raise ShapeError(f"scan: expected a of (1 or {rows}, 1 or {time}, {channels}), got {tuple(a.shape)}")
    verify("scan", b, (a, (*a.shape[:2], channels)), *others, dtypes=(*checks.REAL, *checks.COMPLEX))
    if lengths is not None:
        checks.lengths("scan", lengths, (rows,), time, b.device)


def _forward(scan: ScanCall) -> tuple[Tensor, Tensor]:
    """The states of every step and the final ones, by the C library."""
    rows, time, channels = sizes("scan", "b", scan.b, "rows time channels")
    _verify(scan.a, scan.b, scan.lengths, (scan.h0, (rows, channels)))
    dtype, parts = _PART.get(scan.b.dtype, scan.b.dtype), 2 if scan.b.dtype in _PART else 1
    a, b = _plain(scan.a), _plain(scan.b)
    h, last = empty((rows, time, channels), b.dtype), empty((rows, channels), b.dtype)
    (a_row, a_time), (b_row, b_time) = _strides(a, parts), _strides(b, parts)
    call(
        "scan", "scan_forward", dtype, complex=parts == 2, dense=a.shape[1] != 1, reverse=scan.reverse,
        rows=rows, steps=time, numbers=channels * parts, a=a, a_row=a_row, a_time=a_time, b=b, b_row=b_row,
        b_time=b_time, h0=dense(scan.h0), lengths=dense(scan.lengths), h=h, last=last,
    )  # fmt: skip
    return h, last


def _backward(scan: ScanAdjoint, want_a: bool, want_b: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a, b and h0; a's is (rows, time or 1, channels), not summed over rows. Unwanted ones are empty."""
    rows, time, channels = sizes("scan", "h", scan.h, "rows time channels")
    row, steps = (rows, channels), (rows, time, channels)
    _verify(scan.a, scan.h, scan.lengths, (scan.h0, row), (scan.grad_h, steps), (scan.grad_last, row))
    dtype, parts = _PART.get(scan.h.dtype, scan.h.dtype), 2 if scan.h.dtype in _PART else 1
    a, h = _plain(scan.a), dense(scan.h)
    # one row of zeros, read again and again by strides of 0, where only the final state has a gradient
    g = h.new_zeros((1, 1, channels)) if scan.grad_h is None else _plain(scan.grad_h)
    # not summed over rows here: threads own rows, and a sum over them would need a lock or a second pass anyway
    grad_a = empty((rows, a.shape[1], channels) if want_a else (0,), h.dtype)
    grad_b, grad_h0 = empty(steps if want_b else (0,), h.dtype), empty(row, h.dtype)
    (a_row, a_time), (g_row, g_time) = _strides(a, parts), _strides(g, parts)
    call(
        "scan", "scan_backward", dtype, complex=parts == 2, dense=a.shape[1] != 1, reverse=scan.reverse,
        rows=rows, steps=time, numbers=channels * parts, a=a, a_row=a_row, a_time=a_time,
        grad_h=g, grad_h_row=g_row, grad_h_time=g_time, h=h, h0=dense(scan.h0), grad_last=dense(scan.grad_last),
        lengths=dense(scan.lengths), grad_a=grad_a if want_a else None, grad_b=grad_b if want_b else None,
        grad_h0=grad_h0,
    )  # fmt: skip
    return grad_a, grad_b, grad_h0


def _forward_meta(scan: ScanCall) -> tuple[Tensor, Tensor]:
    rows, _, channels = scan.b.shape
    return scan.b.new_empty(scan.b.shape), scan.b.new_empty((rows, channels))


def _backward_meta(scan: ScanAdjoint, want_a: bool, want_b: bool) -> tuple[Tensor, Tensor, Tensor]:
    rows, time, channels = scan.h.shape
    grad_a = scan.h.new_empty((rows, time if scan.a.shape[1] != 1 else 1, channels) if want_a else 0)
    return grad_a, scan.h.new_empty(scan.h.shape if want_b else 0), scan.h.new_empty((rows, channels))


define("scan_forward", _forward, _forward_meta)
define("scan_backward", _backward, _backward_meta)
