"""The causal convolution as Triton programs: a row, a tile of time and a block of channels each.

Inputs before the first step come from the state. Backward computes the sums before silu again instead of keeping them; the
gradients of taps and bias are partial sums of each tile, added up by torch. `reach` (rows, time) says how many steps before
a step still count, where rows have resets.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _input(
    x,
    state,
    row,
    s,
    c,
    valid,
    end,
    channels,
    x_row,
    x_time,
    TAPS: tl.constexpr,
    HAS_STATE: tl.constexpr,
    ACC: tl.constexpr,
):
    """Inputs at steps s: of the state before the first, 0 after the end."""
    value = tl.load(x + row * x_row + s * x_time + c, mask=valid & (s >= 0) & (s < end), other=0.0).to(ACC)
    if HAS_STATE:
        place = (row * channels + c) * (TAPS - 1) + s + (TAPS - 1)
        value += tl.load(state + place, mask=valid & (s < 0) & (s >= 1 - TAPS), other=0.0).to(ACC)
    return value


@triton.jit
def _reached(reach, row, t, time, distance):
    """Whether the input `distance` steps before step t counts there."""
    return tl.load(reach + row * time + t, mask=(t >= 0) & (t < time), other=0) >= distance


@triton.jit
def _summed(
    x, weight, bias, state, reach, row, t, c, valid, end, time, channels, x_row, x_time,
    TAPS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_REACH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The outputs before silu at steps t."""
    total = tl.load(bias + c, mask=valid, other=0.0).to(ACC) + t * 0.0 if HAS_BIAS else (t + c) * tl.zeros([1, 1], ACC)
    for k in tl.static_range(TAPS):
        tap = tl.load(weight + c * TAPS + k, mask=valid, other=0.0).to(ACC)
        if HAS_REACH:
            tap = tl.where(_reached(reach, row, t, time, TAPS - 1 - k), tap, 0.0)
        total += tap * _input(
            x, state, row, t - (TAPS - 1 - k), c, valid, end, channels, x_row, x_time, TAPS, HAS_STATE, ACC
        )
    return total


@triton.jit
def conv_forward_kernel(
    x, weight, bias, state, lengths, reach, y, time, channels, x_row, x_time,
    TAPS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_REACH: tl.constexpr, SILU: tl.constexpr, ACC: tl.constexpr, CHANNELS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """y_t = silu(bias + sum over k of weight_k x_{t - K + 1 + k}), 0 after a row's end."""
    row = tl.program_id(0).to(tl.int64)
    c = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    t = (tl.program_id(2).to(tl.int64) * STEPS + tl.arange(0, STEPS))[:, None]
    valid = c < channels
    end = tl.minimum(tl.load(lengths + row), time) if HAS_LENGTHS else time
    out = _summed(
        x, weight, bias, state, reach, row, t, c, valid, end, time, channels, x_row, x_time, TAPS, HAS_BIAS, HAS_STATE,
        HAS_REACH, ACC,
    )  # fmt: skip
    if SILU:
        out = out * tl.sigmoid(out)
    out = tl.where(t < end, out, 0.0)
    tl.store(y + (row * time + t) * channels + c, out.to(y.dtype.element_ty), mask=valid & (t < time))


@triton.jit
def conv_backward_kernel(
    x, weight, bias, state, lengths, reach, grad_y, grad_x, grad_weight, grad_bias, grad_state,
    time, channels, x_row, x_time, g_row, g_time,
    TAPS: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_STATE: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    HAS_REACH: tl.constexpr, SILU: tl.constexpr, ACC: tl.constexpr, CHANNELS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Gradients of the inputs of one tile, which begins K - 1 steps before the first, and its parts of those of the taps."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    c = (tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS))[None, :]
    s = (tile * STEPS + tl.arange(0, STEPS))[:, None] - (TAPS - 1)
    valid = c < channels
    end = tl.minimum(tl.load(lengths + row), time) if HAS_LENGTHS else time
    own = _input(x, state, row, s, c, valid, end, channels, x_row, x_time, TAPS, HAS_STATE, ACC)
    total = own * 0
    part = (row * tl.num_programs(2) + tile) * channels + c
    for j in tl.static_range(TAPS):  # the input of step s has reached step s + j by the tap K - 1 - j
        t = s + j
        live = valid & (t >= 0) & (t < end)
        slope = tl.load(grad_y + row * g_row + t * g_time + c, mask=live, other=0.0).to(ACC)
        if SILU:
            v = _summed(
                x, weight, bias, state, reach, row, t, c, valid, end, time, channels, x_row, x_time, TAPS, HAS_BIAS,
                HAS_STATE, HAS_REACH, ACC,
            )  # fmt: skip
            half = tl.sigmoid(v)
            slope = slope * half * (1.0 + v * (1.0 - half))
        if HAS_BIAS and j == 0:
            tl.store(grad_bias + part, tl.sum(slope, 0)[None, :], mask=valid)
        if HAS_REACH:
            slope = tl.where(_reached(reach, row, t, time, j), slope, 0.0)
        total += slope * tl.load(weight + c * TAPS + (TAPS - 1 - j), mask=valid, other=0.0).to(ACC)
        tl.store(grad_weight + part * TAPS + (TAPS - 1 - j), tl.sum(slope * own, 0)[None, :], mask=valid)
    inside = valid & (s >= 0) & (s < time)
    tl.store(grad_x + (row * time + s) * channels + c, total.to(grad_x.dtype.element_ty), mask=inside)
    if HAS_STATE:
        place = (row * channels + c) * (TAPS - 1) + s + (TAPS - 1)
        tl.store(grad_state + place, total.to(grad_state.dtype.element_ty), mask=valid & (s < 0))
