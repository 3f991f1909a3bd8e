"""The linear scan in C++: torch.library ops over (rows, time, channels), the shape that op.py brings arguments to.

`a` is (1 or rows, 1 or time, channels), `h0` and the final state (rows, channels), `lengths` (rows,). The C side
reads a and b where they lie as long as channels are adjacent; other strides are copied first.
"""

from __future__ import annotations

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import checks
from holdfast.kernels._common.arguments import dense, present, sizes, verify
from holdfast.kernels._common.calls import call
from holdfast.kernels._common.memory import empty

Rows = Shaped[Tensor, "rows channels"]
Steps = Shaped[Tensor, "rows time channels"]
Factors = Shaped[Tensor, "#rows #time channels"]

_PART = {torch.complex64: torch.float32, torch.complex128: torch.float64}

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define("scan_forward(Tensor a, Tensor b, Tensor? h0, Tensor? lengths, bool reverse) -> (Tensor, Tensor)")
_LIBRARY.define(
    "scan_backward(Tensor a, Tensor h, Tensor? h0, Tensor? lengths, Tensor? grad_h, Tensor? grad_last, "
    "bool reverse, bool want_a, bool want_b) -> (Tensor, Tensor, Tensor)"
)


def _plain(value: Tensor) -> Tensor:
    """The values as they stand in memory, channels adjacent."""
    adjacent = value.stride(-1) == 1 or value.shape[-1] == 1
    return value if adjacent and not value.is_conj() and not value.is_neg() else dense(value)


def _strides(value: Tensor, parts: int) -> tuple[int, int]:
    """The row stride and the time stride in numbers; a dimension of size 1 is read again and again."""
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


def scan_forward(
    a: Factors, b: Steps, h0: Rows | None, lengths: Int64[Tensor, " rows"] | None, reverse: bool
) -> tuple[Steps, Rows]:
    """The states of every step and the final ones, by the C library."""
    rows, time, channels = sizes("scan", "b", b, "rows time channels")
    _verify(a, b, lengths, (h0, (rows, channels)))
    dtype, parts = _PART.get(b.dtype, b.dtype), 2 if b.dtype in _PART else 1
    a, b, h0, lengths = _plain(a), _plain(b), dense(h0), dense(lengths)
    h, last = empty((rows, time, channels), b.dtype), empty((rows, channels), b.dtype)
    (a_row, a_time), (b_row, b_time) = _strides(a, parts), _strides(b, parts)
    call(
        "scan", "scan_forward", dtype, complex=parts == 2, dense=a.shape[1] != 1, reverse=reverse,
        rows=rows, steps=time, numbers=channels * parts, a=a, a_row=a_row, a_time=a_time, b=b, b_row=b_row,
        b_time=b_time, h0=h0, lengths=lengths, h=h, last=last,
    )  # fmt: skip
    return h, last


def scan_backward(
    a: Factors,
    h: Steps,
    h0: Rows | None,
    lengths: Int64[Tensor, " rows"] | None,
    grad_h: Steps | None,
    grad_last: Rows | None,
    reverse: bool,
    want_a: bool,
    want_b: bool,
) -> tuple[Tensor, Tensor, Rows]:
    """Gradients of a, b and h0; a's is (rows, time or 1, channels), not summed over rows. Unwanted ones are empty."""
    rows, time, channels = sizes("scan", "h", h, "rows time channels")
    _verify(a, h, lengths, (h0, (rows, channels)), (grad_h, (rows, time, channels)), (grad_last, (rows, channels)))
    dtype, parts = _PART.get(h.dtype, h.dtype), 2 if h.dtype in _PART else 1
    a, h, h0, grad_last, lengths = _plain(a), dense(h), dense(h0), dense(grad_last), dense(lengths)
    g = h.new_zeros((1, 1, channels)) if grad_h is None else _plain(grad_h)
    grad_a = empty((rows, a.shape[1], channels) if want_a else (0,), h.dtype)
    grad_b, grad_h0 = empty((rows, time, channels) if want_b else (0,), h.dtype), empty((rows, channels), h.dtype)
    (a_row, a_time), (g_row, g_time) = _strides(a, parts), _strides(g, parts)
    call(
        "scan", "scan_backward", dtype, complex=parts == 2, dense=a.shape[1] != 1, reverse=reverse,
        rows=rows, steps=time, numbers=channels * parts, a=a, a_row=a_row, a_time=a_time,
        grad_h=g, grad_h_row=g_row, grad_h_time=g_time, h=h, h0=h0, grad_last=grad_last, lengths=lengths,
        grad_a=grad_a if want_a else None, grad_b=grad_b if want_b else None, grad_h0=grad_h0,
    )  # fmt: skip
    return grad_a, grad_b, grad_h0


def _forward_meta(
    a: Tensor, b: Tensor, h0: Tensor | None, lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor]:
    rows, time, channels = b.shape
    return b.new_empty((rows, time, channels)), b.new_empty((rows, channels))


def _backward_meta(
    a: Tensor,
    h: Tensor,
    h0: Tensor | None,
    lengths: Tensor | None,
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    reverse: bool,
    want_a: bool,
    want_b: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, time, channels = h.shape
    grad_a = h.new_empty((rows, time if a.shape[1] != 1 else 1, channels) if want_a else 0)
    return grad_a, h.new_empty(h.shape if want_b else 0), h.new_empty((rows, channels))


_LIBRARY.impl("scan_forward", scan_forward, "CPU")
_LIBRARY.impl("scan_backward", scan_backward, "CPU")
_LIBRARY.impl("scan_forward", _forward_meta, "Meta")
_LIBRARY.impl("scan_backward", _backward_meta, "Meta")
