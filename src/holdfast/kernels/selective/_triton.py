"""The selective scan on GPUs as torch operators: how the programs of `_triton_kernels.py` are laid out and launched.

Shapes are those of `_native.py`. u, dt, B, C and z may be in bfloat16 or float16; A, D, dt_bias and the states are in
float32, or all in float64. A training step keeps one state every 32 steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import gpu
from holdfast.kernels._common.gpu import ceil_div

KEEP = 32  # steps from one kept state to the next: states / 32 numbers for each one of u
_MIN_SEGMENT_STEPS = 256  # shorter ones cost more for their first and last states than they bring in parallel work
_MAX_SEGMENTS = 65535  # the third dimension of a grid
_TILE_NUMBERS = 16  # of (states, channels) in the registers of one thread

_INPUTS = (
    "Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, Tensor? h0, "
    "Tensor? lengths, Tensor? resets, bool softplus, bool reverse"
)
_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define(f"selective_triton_forward({_INPUTS}, bool save) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"selective_triton_backward({_INPUTS}, Tensor saved, Tensor? grad_y, Tensor? grad_last) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def layout(backward: bool, states: int, warp: int = 32) -> tuple[int, int, int]:
    """Channels of a program, steps of a tile and warps: registers bound them, see the table in docs/gpu.md.

    Args:
        backward: whether for the backward pass, which holds several tiles of states at a time.
        states: states of a channel.
        warp: threads of a warp.
    """
    width = warp if backward else 2 * warp
    size = gpu.power_of_two(states)
    return width, 2 if backward else 4, max(1, ceil_div(size * width, _TILE_NUMBERS * warp))


def segments(rows: int, time: int, blocks: int, programs: int) -> tuple[int, int]:
    """Steps of a segment, a multiple of KEEP, and how many there are.

    Args:
        rows: rows of the batch.
        time: steps.
        blocks: blocks of channels.
        programs: how many programs the device needs.
    """
    wanted = max(1, min(ceil_div(programs, rows * blocks), ceil_div(time, _MIN_SEGMENT_STEPS), _MAX_SEGMENTS))
    steps = ceil_div(ceil_div(time, wanted), KEEP) * KEEP
    return steps, ceil_div(time, steps)


def _wide(u: Tensor) -> torch.dtype:
    return torch.float64 if u.dtype == torch.float64 else torch.float32


def _steps(x: Tensor) -> Tensor:
    """A sequence where it lies if each step is dense, as a part of a projection is; else a copy."""
    inner = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size != 1 and stride != inner:
            return x.contiguous()
        inner *= size
    return x


def _turned(states: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(..., channels, state) as (..., state, channels), the order of the kernels."""
    return None if states is None else states.to(dtype).transpose(-1, -2).contiguous()


class _Run:
    """Arguments that the launches of one scan share."""

    def __init__(
        self, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        bias: Tensor | None, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, softplus: bool,
        reverse: bool, backward: bool,
    ) -> None:  # fmt: skip
        import triton.language as tl

        self.dtype = _wide(u)
        self.rows, self.time, self.channels = u.shape
        self.groups, self.states = B.shape[2:]
        warp = 64 if torch.version.hip else 32
        self.width, self.tile, self.warps = layout(backward, self.states, warp)
        self.group_blocks = ceil_div(self.channels // self.groups, self.width)
        self.segment, self.parts = segments(
            self.rows, self.time, self.groups * self.group_blocks, gpu.programs(u.device)
        )
        self.like = u
        self.u, self.dt, self.B, self.C = map(_steps, (u, dt, B, C))
        self.z = None if z is None else _steps(z)
        self.A, self.h0 = _turned(A, self.dtype), _turned(h0, self.dtype)
        self.D, self.bias = (None if x is None else x.to(self.dtype).contiguous() for x in (D, bias))
        self.lengths, self.resets = lengths, None if resets is None else resets.contiguous()
        self.grid = (self.rows, self.groups * self.group_blocks, self.parts)
        self.sizes = (self.time, self.segment, self.channels // self.groups, self.group_blocks, self.channels)
        self.constants = {
            "HAS_Z": z is not None, "HAS_BIAS": bias is not None, "HAS_LENGTHS": lengths is not None,
            "HAS_RESETS": resets is not None, "SOFTPLUS": softplus, "REVERSE": reverse, "STATES": self.states,
            "N": gpu.power_of_two(self.states), "ACC": tl.float64 if self.dtype == torch.float64 else tl.float32,
            "CHANNELS": self.width, "num_warps": self.warps,
        }  # fmt: skip

    def places(self, *names: str) -> tuple[int, ...]:
        """Row and time strides of the sequences of these names."""
        strides: list[int] = []
        for name in names:
            x = getattr(self, name)
            strides += (0, 0) if x is None else x.stride()[:2]
        return tuple(strides)

    def states_of_segments(self, count: int) -> Tensor:
        return self.like.new_empty((count, self.rows, self.parts, self.states, self.channels), dtype=self.dtype)

    def launch(self, kernel: Any, *arguments: Any, **flags: Any) -> None:
        gpu.launch(kernel, self.grid, self.like, *arguments, **{**self.constants, **flags})

    def chain(self, product: Tensor, rest: Tensor, start: Tensor | None, reverse: bool) -> None:
        """Turns `rest` into the states before each segment, by the chain of the linear scan."""
        from holdfast.kernels.scan._triton_kernels import scan_chain_kernel

        numbers = self.states * self.channels
        gpu.launch(
            scan_chain_kernel, (self.rows, ceil_div(numbers, 128)), self.like, product, rest, start, self.parts,
            numbers, 1, 1, self.parts * numbers, numbers, PARTS=1, REVERSE=reverse, HAS_START=start is not None,
            ACC=self.constants["ACC"], CHANNELS=128, num_warps=4,
        )  # fmt: skip


def selective_triton_forward(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, softplus: bool,
    reverse: bool, save: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, the final states, and (if `save`) the states before every 32 steps, (batch, tiles, state, channels)."""
    from holdfast.kernels.selective._triton_kernels import selective_forward_kernel

    inputs = (u, dt, A, B, C, D, z, dt_bias, h0, lengths, resets)
    y, final, saved = _forward_meta(*inputs, softplus, reverse, save)
    if u.numel() == 0:
        return y, final.zero_() if h0 is None else final.copy_(h0), saved.zero_()
    run = _Run(*inputs, softplus, reverse, False)
    last = final.new_empty((run.rows, run.states, run.channels))
    numbers = run.states * run.channels

    def step(start: Tensor | None, product: Any, rest: Any, row: int, segment: int) -> None:
        run.launch(
            selective_forward_kernel, run.u, run.dt, run.A, run.B, run.C, run.D, run.z, run.bias, start, run.lengths,
            run.resets, y, saved, last, product, rest, *run.sizes, run.groups, *run.places("u", "dt", "z", "B", "C"),
            saved.stride(0), row, segment, SUMMARY=product is not None, HAS_D=D is not None,
            HAS_START=start is not None, SAVE=save, STEPS=run.tile, KEEP=KEEP,
        )  # fmt: skip

    if run.parts == 1:
        step(run.h0, None, None, numbers, 0)
    else:
        product, rest = run.states_of_segments(2)
        step(None, product, rest, run.parts * numbers, numbers)
        run.chain(product, rest, run.h0, False)
        step(rest, None, None, run.parts * numbers, numbers)
    return y, last.transpose(1, 2).contiguous(), saved


def selective_triton_backward(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    dt_bias: Tensor | None, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, softplus: bool,
    reverse: bool, saved: Tensor, grad_y: Tensor | None, grad_last: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of u, dt, A, B, C, D, z, dt_bias and h0, each in its own dtype; empty for what was not given."""
    from holdfast.kernels.selective._triton_kernels import selective_backward_kernel, selective_carry_kernel

    inputs = (u, dt, A, B, C, D, z, dt_bias, h0, lengths, resets)
    grads = _gradients_meta(*inputs[:9])
    if u.numel() == 0:
        for g in grads:
            g.zero_()
        return (*grads[:-1], grads[-1] if h0 is None or grad_last is None else grads[-1].copy_(grad_last))
    run = _Run(*inputs, softplus, reverse, True)
    given = _steps(u.new_zeros(u.shape) if grad_y is None else grad_y)
    of_u, of_dt, of_z = (grads[i].new_empty(u.shape) if grads[i].numel() else None for i in (0, 1, 6))
    of_B, of_C = u.new_empty((2, run.group_blocks, *B.shape), dtype=run.dtype)
    of_A = run.states_of_segments(1)[0]
    of_D, of_bias = (
        None if x is None else u.new_empty((run.rows, run.parts, run.channels), dtype=run.dtype) for x in (D, dt_bias)
    )
    of_h0 = u.new_empty((run.rows, run.states, run.channels), dtype=run.dtype)
    start, numbers = _turned(grad_last, run.dtype), run.states * run.channels
    at = (numbers, 0)
    if run.parts > 1:
        product, rest = run.states_of_segments(2)
        at = (run.parts * numbers, numbers)
        run.launch(
            selective_carry_kernel, run.dt, run.A, run.C, run.z, run.bias, run.lengths, run.resets, given, product,
            rest, *run.sizes, *run.places("dt", "z", "C"), *given.stride()[:2], *at,
        )  # fmt: skip
        run.chain(product, rest, start, True)
        start = rest
    run.launch(
        selective_backward_kernel, run.u, run.dt, run.A, run.B, run.C, run.D, run.z, run.bias, start, run.lengths,
        run.resets, saved, given, of_u, of_dt, of_z, of_A, of_B, of_C, of_D, of_bias, of_h0, *run.sizes, run.groups,
        *run.places("u", "dt", "z", "B", "C"), *given.stride()[:2], saved.stride(0), *at, of_B.stride(0),
        HAS_D=D is not None, HAS_START=start is not None, STEPS=run.tile, KEEP=KEEP,
    )  # fmt: skip
    sums = (
        of_u, of_dt, of_A.sum((0, 1)).t(), of_B.sum(0), of_C.sum(0), None if of_D is None else of_D.sum((0, 1)), of_z,
        None if of_bias is None else of_bias.sum((0, 1)), None if h0 is None else of_h0.transpose(1, 2),
    )  # fmt: skip
    return tuple(g if x is None else x.to(g.dtype).contiguous() for g, x in zip(grads, sums, strict=True))


def _gradients_meta(*inputs: Tensor | None) -> tuple[Tensor, ...]:
    """Room for the gradient of each input; empty for one that was not given."""
    like = inputs[0]
    assert like is not None
    return tuple(like.new_empty(0) if x is None else x.new_empty(x.shape) for x in inputs)


def _forward_meta(u: Tensor, dt: Tensor, A: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, time, channels = u.shape
    saved = (rows, (time + KEEP - 1) // KEEP, A.shape[1], channels) if rest[-1] else (0,)
    return u.new_empty(u.shape), u.new_empty((rows, *A.shape), dtype=_wide(u)), u.new_empty(saved, dtype=_wide(u))


def _backward_meta(*arguments: Any) -> tuple[Tensor, ...]:
    return _gradients_meta(*arguments[:9])


for _name, _kernel, _meta in (
    ("selective_triton_forward", selective_triton_forward, _forward_meta),
    ("selective_triton_backward", selective_triton_backward, _backward_meta),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _meta, "Meta")
