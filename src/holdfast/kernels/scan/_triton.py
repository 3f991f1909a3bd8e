"""The linear scan on GPUs as torch operators: how the programs of `_triton_kernels.py` are laid out and launched.

Shapes are those of `_native.py`. Beside it: `resets` (rows, time) zero the state before a step without cutting rows
apart, `planar` says that the last dimension of every tensor is [real parts | imaginary parts], and a and b may be in
bfloat16 or float16, with states in float64 and the final state in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import checks, gpu
from holdfast.kernels._common.gpu import ceil_div

_CHANNELS = 128  # of a program: one for each thread of 4 warps
_UNROLL = {1: 8, 2: 4}  # steps that are loaded ahead, for real and for complex numbers
_MIN_SEGMENT_STEPS = 64  # shorter segments cost more launches and traffic than they bring in parallel work
_MAX_SEGMENTS = 65535  # the third dimension of a grid

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define(
    "scan_triton_forward(Tensor a, Tensor b, Tensor? h0, Tensor? lengths, Tensor? resets, bool reverse, bool planar) "
    "-> (Tensor, Tensor)"
)
_LIBRARY.define(
    "scan_triton_backward(Tensor a, Tensor h, Tensor? h0, Tensor? lengths, Tensor? resets, Tensor? grad_h, "
    "Tensor? grad_last, bool reverse, bool planar, bool want_a, bool want_b) -> (Tensor, Tensor, Tensor)"
)


@dataclass(frozen=True)
class Plan:
    """How a scan is cut: `channels` in a program, `unroll` steps loaded ahead, segments of `segment` steps."""

    channels: int
    unroll: int
    segment: int
    segments: int


def plan(rows: int, time: int, channels: int, parts: int, programs: int) -> Plan:
    """One segment where rows and channels give enough programs, else so many that they do.

    Args:
        rows: rows of the scan.
        time: steps.
        channels: channels, complex ones counted once.
        parts: 2 for complex numbers, 1 for real ones.
        programs: how many programs the device needs.
    """
    width = min(_CHANNELS, gpu.power_of_two(channels))
    wanted = min(ceil_div(programs, rows * ceil_div(channels, width)), ceil_div(time, _MIN_SEGMENT_STEPS))
    steps = ceil_div(time, min(max(wanted, 1), _MAX_SEGMENTS))
    segment = ceil_div(steps, _UNROLL[parts]) * _UNROLL[parts]
    return Plan(width, _UNROLL[parts], segment, ceil_div(time, segment))


def _numbers(value: Tensor | None) -> Tensor | None:
    """Complex numbers as pairs of real ones along the last dimension."""
    if value is None:
        return None
    value = gpu.adjacent(value)
    return torch.view_as_real(value).flatten(-2) if value.is_complex() else value


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in checks.HALF else dtype


def _strides(value: Tensor) -> tuple[int, int]:
    """The row stride and the time stride; a dimension of size 1 is read again and again."""
    return value.stride(0) if value.shape[0] > 1 else 0, value.stride(1) if value.shape[1] > 1 else 0


class _Run:
    """One scan's layout and launches; `like` is (rows, time, channels)."""

    def __init__(self, a: Tensor, like: Tensor, lengths: Tensor | None, resets: Tensor | None, planar: bool) -> None:
        import triton.language as tl

        self.parts = 2 if planar or like.is_complex() else 1
        self.rows, self.time, size = like.shape
        self.channels = size // 2 if planar else size
        self.plan = plan(self.rows, self.time, self.channels, self.parts, gpu.programs(like.device))
        self.like, self.lengths = like, lengths
        self.resets = None if resets is None else resets.contiguous()
        self.layout = (self.channels if planar else 1, 1) if planar else (1, self.parts)  # im, step
        wide = gpu.has_double(like.device)
        self.states = torch.float64 if wide else torch.float32
        self.grid = (self.rows, ceil_div(self.channels, self.plan.channels), self.plan.segments)
        self.constants = {
            "PARTS": self.parts, "ACC": tl.float64 if wide else tl.float32, "CHANNELS": self.plan.channels,
            "num_warps": ceil_div(self.plan.channels, 32),
        }  # fmt: skip
        self.flags = {
            "VARYING": a.shape[1] != 1, "HAS_LENGTHS": lengths is not None, "HAS_RESETS": resets is not None,
            "UNROLL": self.plan.unroll,
        }  # fmt: skip

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.time, self.channels, self.plan.segment, self.layout[1], self.layout[0])

    def summaries(self) -> Tensor:
        """Room for the product and the rest of each segment."""
        shape = (2, self.rows, self.plan.segments, self.channels * self.parts)
        return self.like.new_empty(shape, dtype=self.states)

    def launch(self, kernel: Any, *arguments: Any, **flags: Any) -> None:
        gpu.launch(kernel, self.grid, self.like, *arguments, **self.constants, **self.flags, **flags)

    def chain(self, product: Tensor, rest: Tensor, start: Tensor | None, reverse: bool) -> None:
        from holdfast.kernels.scan._triton_kernels import scan_chain_kernel

        gpu.launch(
            scan_chain_kernel, self.grid[:2], self.like, product, rest, start, self.plan.segments, self.channels,
            self.layout[1], self.layout[0], rest.stride(0), rest.stride(1), REVERSE=reverse,
            HAS_START=start is not None, **self.constants,
        )  # fmt: skip


def scan_triton_forward(
    a: Tensor, b: Tensor, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, reverse: bool, planar: bool
) -> tuple[Tensor, Tensor]:
    """The states of every step, in b's dtype, and the final ones, in float32 or wider."""
    from holdfast.kernels.scan._triton_kernels import scan_forward_kernel

    h, last = _forward_meta(a, b, h0, lengths, resets, reverse, planar)
    if b.numel() == 0:
        return h, last.zero_() if h0 is None else last.copy_(h0)
    run = _Run(a, b, lengths, resets, planar)
    factors, inputs, states, final, first = map(_numbers, (a, b, h, last, h0))
    assert factors is not None and inputs is not None and states is not None
    first = None if first is None else first.contiguous()
    strides = (*_strides(factors), *_strides(inputs), *_strides(states))
    whole = (run.channels * run.parts, 0)

    def step(start: Tensor | None, product: Any, rest: Any, summary: bool, at: tuple[int, int]) -> None:
        run.launch(
            scan_forward_kernel, factors, inputs, states, final, start, run.lengths, run.resets, product, rest,
            *run.sizes, *strides, *at, SUMMARY=summary, REVERSE=reverse, HAS_START=start is not None,
        )  # fmt: skip

    if run.plan.segments == 1:
        step(first, None, None, False, whole)
    else:
        product, rest = run.summaries()
        at = (rest.stride(0), rest.stride(1))
        step(None, product, rest, True, at)
        run.chain(product, rest, first, reverse)
        step(rest, None, None, False, at)
    return h, last


def scan_triton_backward(
    a: Tensor, h: Tensor, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, grad_h: Tensor | None,
    grad_last: Tensor | None, reverse: bool, planar: bool, want_a: bool, want_b: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of a, b and h0; a's is (rows, time or 1, channels), not summed over rows. Unwanted ones are empty."""
    from holdfast.kernels.scan._triton_kernels import scan_backward_kernel

    grad_a, grad_b, grad_h0 = _backward_meta(
        a, h, h0, lengths, resets, grad_h, grad_last, reverse, planar, want_a, want_b
    )
    if h.numel() == 0:
        return grad_a.zero_(), grad_b.zero_(), grad_h0.zero_() if grad_last is None else grad_h0.copy_(grad_last)
    run = _Run(a, h, lengths, resets, planar)
    varying = a.shape[1] != 1
    factors, states, given, first, final = map(_numbers, (a, h, grad_h, h0, grad_last))
    assert factors is not None and states is not None
    first, final = (None if x is None else x.contiguous() for x in (first, final))
    of_a: Tensor | None = None
    if want_a:  # of a constant a a summand for each segment, added up below
        parts_shape = (run.rows, run.plan.segments, run.channels * run.parts)
        of_a = _numbers(grad_a) if varying else h.new_empty(parts_shape, dtype=run.states)
    of_b, of_h0 = _numbers(grad_b) if want_b else None, _numbers(grad_h0)
    strides = (*_strides(factors), *states.stride()[:2], *((0, 0) if given is None else _strides(given)))
    places = (0, 0) if of_a is None else of_a.stride()[:2]
    flags = {"HAS_H0": first is not None, "HAS_GRAD": given is not None, "WANT_A": want_a, "WANT_B": want_b}

    def step(start: Tensor | None, product: Any, rest: Any, summary: bool, at: tuple[int, int]) -> None:
        run.launch(
            scan_backward_kernel, factors, states, given, first, start, run.lengths, run.resets, product, rest,
            of_a, of_b, of_h0, *run.sizes, *strides, *at, *places, SUMMARY=summary, REVERSE=reverse,
            HAS_START=start is not None, **flags,
        )  # fmt: skip

    if run.plan.segments == 1:
        step(final, None, None, False, (run.channels * run.parts, 0))
    else:
        product, rest = run.summaries()
        at = (rest.stride(0), rest.stride(1))
        step(None, product, rest, True, at)
        run.chain(product, rest, final, not reverse)
        step(rest, None, None, False, at)
    if of_a is not None and not varying:
        total = of_a.sum(1, keepdim=True)
        grad_a.copy_(torch.view_as_complex(total.unflatten(-1, (-1, 2))) if h.is_complex() else total)
    return grad_a, grad_b, grad_h0


def _forward_meta(
    a: Tensor, b: Tensor, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, reverse: bool, planar: bool
) -> tuple[Tensor, Tensor]:
    return b.new_empty(b.shape), b.new_empty((b.shape[0], b.shape[2]), dtype=_wide(b.dtype))


def _backward_meta(
    a: Tensor, h: Tensor, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, grad_h: Tensor | None,
    grad_last: Tensor | None, reverse: bool, planar: bool, want_a: bool, want_b: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, time, size = h.shape
    shape = (rows, time if a.shape[1] != 1 else 1, size) if want_a else (0,)
    grad_a = h.new_empty(shape, dtype=a.dtype if a.shape[1] != 1 else _wide(a.dtype))
    return grad_a, h.new_empty(h.shape if want_b else (0,)), h.new_empty((rows, size), dtype=_wide(h.dtype))


for _name, _kernel, _meta in (
    ("scan_triton_forward", scan_triton_forward, _forward_meta),
    ("scan_triton_backward", scan_triton_backward, _backward_meta),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _meta, "Meta")
