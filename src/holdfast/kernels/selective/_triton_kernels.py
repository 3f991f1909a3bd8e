"""Mamba's selective scan as Triton programs: a row, a block of channels of one group and a segment of time each.

Channels lie along the lanes and the states of a channel in registers, a block (N, CHANNELS): nothing of size time x
channels x states reaches memory. Forward keeps one state every KEEP steps; backward computes the states of STEPS steps
again at a time and goes back over them in registers. Gradients of B and C are partial sums of each block of channels,
added up by torch: no atomics, the same bits at every run. Steps after a row's end have size zero and change nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _softplus(x, ACC: tl.constexpr):
    """max(x, 0) + log(1 + e^-|x|), the logarithm by 2 artanh(e / (2 + e)): a GPU's fast log loses its digits near 1."""
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    terms: tl.constexpr = 18 if tl.float64 == ACC else 8  # s is at most 1/3: 3^-2n falls below a rounding
    series = s * 0
    for k in tl.static_range(terms):
        series = series * s * s + 1.0 / (2 * (terms - 1 - k) + 1)
    return tl.where(x > 20.0, x, tl.maximum(x, 0.0) + 2.0 * s * series)


@triton.jit
def _step_size(dt, offset, bias, live, SOFTPLUS: tl.constexpr, ACC: tl.constexpr):
    """dt + bias, and the step size made of it; 0 where there is no step."""
    raw = tl.load(dt + offset, mask=live, other=0.0).to(ACC) + bias
    size = _softplus(raw, ACC) if SOFTPLUS else raw
    return raw, tl.where(live, size, 0.0)


@triton.jit
def _when(s, time, REVERSE: tl.constexpr):
    """The time of step s of the run."""
    return (time - 1 - s if REVERSE else s).to(tl.int64)


@triton.jit
def _row_of(weights, offset, there, n, ACC: tl.constexpr):
    return tl.load(weights + offset + n, mask=there, other=0.0).to(ACC)


@triton.jit
def _reset(resets, row, t, time, end, HAS_RESETS: tl.constexpr):
    if HAS_RESETS:
        return tl.load(resets + row * time + t, mask=(t >= 0) & (t < end), other=0) != 0
    return t < -1


@triton.jit
def selective_forward_kernel(
    u, dt, A, B, C, D, z, bias, start, lengths, resets, y, kept, last, product, rest,
    time, segment, group_channels, group_blocks, channels, groups,
    u_row, u_time, dt_row, dt_time, z_row, z_time, w_row, w_time, v_row, v_time, kept_row, s_row, s_segment,
    SUMMARY: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_START: tl.constexpr,
    HAS_LENGTHS: tl.constexpr, HAS_RESETS: tl.constexpr, SOFTPLUS: tl.constexpr, REVERSE: tl.constexpr,
    SAVE: tl.constexpr, STATES: tl.constexpr, N: tl.constexpr, ACC: tl.constexpr, CHANNELS: tl.constexpr,
    STEPS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """y and the kept states of one segment; SUMMARY writes its decay and its state from zero instead."""
    row, block, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group, inner = block // group_blocks, block % group_blocks * CHANNELS + tl.arange(0, CHANNELS)
    c, valid, n = group * group_channels + inner, inner < group_channels, tl.arange(0, N)
    at, exists = n[:, None] * channels + c[None, :], (n < STATES)[:, None] & valid[None, :]
    end = tl.minimum(tl.load(lengths + row), time) if HAS_LENGTHS else time
    rate = tl.load(A + at, mask=exists, other=0.0).to(ACC) * 1.4426950408889634
    add = tl.load(bias + c, mask=valid, other=0.0).to(ACC) if HAS_BIAS else tl.zeros([CHANNELS], ACC)
    h, total, alive = tl.zeros([N, CHANNELS], ACC), tl.zeros([CHANNELS], ACC), tl.zeros([CHANNELS], ACC) + 1
    if HAS_START:
        h = tl.load(start + row * s_row + part * s_segment + at, mask=exists, other=0.0).to(ACC)
    for k in tl.range(0, segment, STEPS):
        begin = part * segment + k
        if SAVE and not SUMMARY:
            if begin % KEEP == 0 and begin < time:
                tl.store(kept + row * kept_row + (begin // KEEP) * STATES * channels + at, h, mask=exists)
        us, sizes, marks = (), (), ()
        for i in tl.static_range(STEPS):
            t = _when(begin + i, time, REVERSE)
            live = valid & (inner * 0 + t < end) & (inner * 0 + t >= 0)
            us = us + (tl.load(u + row * u_row + t * u_time + c, mask=live, other=0.0).to(ACC),)
            _, size = _step_size(dt, row * dt_row + t * dt_time + c, add, live, SOFTPLUS, ACC)
            sizes = sizes + (size,)
            marks = marks + (_reset(resets, row, t, time, end, HAS_RESETS),)
        for i in tl.static_range(STEPS):
            t = _when(begin + i, time, REVERSE)
            there = (n < STATES) & (n * 0 + t < end) & (n * 0 + t >= 0)
            w = _row_of(B, row * w_row + t * w_time + group * STATES, there, n, ACC)
            if HAS_RESETS:
                h, alive = tl.where(marks[i], 0.0, h), tl.where(marks[i], 0.0, alive)
            h = tl.exp2(sizes[i][None, :] * rate) * h + (sizes[i] * us[i])[None, :] * w[:, None]
            if SUMMARY:
                total += sizes[i]
            else:
                v = _row_of(C, row * v_row + t * v_time + group * STATES, there, n, ACC)
                out = tl.sum(h * v[:, None], 0)
                if HAS_D:
                    out += tl.load(D + c, mask=valid, other=0.0).to(ACC) * us[i]
                live = valid & (inner * 0 + t < end) & (inner * 0 + t >= 0)
                if HAS_Z:
                    g = tl.load(z + row * z_row + t * z_time + c, mask=live, other=0.0).to(ACC)
                    out = out * g * tl.sigmoid(g)
                written = valid & (inner * 0 + t < time) & (inner * 0 + t >= 0)
                place = (row * time + t) * channels + c
                tl.store(y + place, tl.where(live, out, 0.0).to(y.dtype.element_ty), mask=written)
    if SUMMARY:
        decay = tl.exp2(total[None, :] * rate) * alive[None, :]
        tl.store(product + row * s_row + part * s_segment + at, decay, mask=exists)
        tl.store(rest + row * s_row + part * s_segment + at, h, mask=exists)
    elif part == tl.num_programs(2) - 1:
        tl.store(last + row * STATES * channels + at, h, mask=exists)


@triton.jit
def selective_carry_kernel(
    dt, A, C, z, bias, lengths, resets, grad_y, product, rest,
    time, segment, group_channels, group_blocks, channels,
    dt_row, dt_time, z_row, z_time, v_row, v_time, g_row, g_time, s_row, s_segment,
    HAS_Z: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_RESETS: tl.constexpr,
    SOFTPLUS: tl.constexpr, REVERSE: tl.constexpr, STATES: tl.constexpr, N: tl.constexpr, ACC: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """What a segment does to the gradient that comes from behind it: its decay, and its own summand."""
    row, block, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group, inner = block // group_blocks, block % group_blocks * CHANNELS + tl.arange(0, CHANNELS)
    c, valid, n = group * group_channels + inner, inner < group_channels, tl.arange(0, N)
    at, exists = n[:, None] * channels + c[None, :], (n < STATES)[:, None] & valid[None, :]
    end = tl.minimum(tl.load(lengths + row), time) if HAS_LENGTHS else time
    rate = tl.load(A + at, mask=exists, other=0.0).to(ACC) * 1.4426950408889634
    add = tl.load(bias + c, mask=valid, other=0.0).to(ACC) if HAS_BIAS else tl.zeros([CHANNELS], ACC)
    dh, total, alive = tl.zeros([N, CHANNELS], ACC), tl.zeros([CHANNELS], ACC), tl.zeros([CHANNELS], ACC) + 1
    for k in tl.range(0, segment):
        t = _when(part * segment + (segment - 1 - k), time, REVERSE)
        live = valid & (inner * 0 + t < end) & (inner * 0 + t >= 0)
        there = (n < STATES) & (n * 0 + t < end) & (n * 0 + t >= 0)
        _, size = _step_size(dt, row * dt_row + t * dt_time + c, add, live, SOFTPLUS, ACC)
        g = tl.load(grad_y + row * g_row + t * g_time + c, mask=live, other=0.0).to(ACC)
        if HAS_Z:
            gate = tl.load(z + row * z_row + t * z_time + c, mask=live, other=0.0).to(ACC)
            g = g * gate * tl.sigmoid(gate)
        v = _row_of(C, row * v_row + t * v_time + group * STATES, there, n, ACC)
        dh = tl.exp2(size[None, :] * rate) * (dh + g[None, :] * v[:, None])
        total += size
        if HAS_RESETS:
            mark = _reset(resets, row, t, time, end, HAS_RESETS)
            dh, alive = tl.where(mark, 0.0, dh), tl.where(mark, 0.0, alive)
    decay = tl.exp2(total[None, :] * rate) * alive[None, :]
    tl.store(product + row * s_row + part * s_segment + at, decay, mask=exists)
    tl.store(rest + row * s_row + part * s_segment + at, dh, mask=exists)


@triton.jit
def selective_backward_kernel(
    u, dt, A, B, C, D, z, bias, start, lengths, resets, kept, grad_y,
    grad_u, grad_dt, grad_z, grad_A, grad_B, grad_C, grad_D, grad_bias, grad_h0,
    time, segment, group_channels, group_blocks, channels, groups,
    u_row, u_time, dt_row, dt_time, z_row, z_time, w_row, w_time, v_row, v_time, g_row, g_time,
    kept_row, s_row, s_segment, partial,
    HAS_D: tl.constexpr, HAS_Z: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_START: tl.constexpr,
    HAS_LENGTHS: tl.constexpr, HAS_RESETS: tl.constexpr, SOFTPLUS: tl.constexpr, REVERSE: tl.constexpr,
    STATES: tl.constexpr, N: tl.constexpr, ACC: tl.constexpr, CHANNELS: tl.constexpr, STEPS: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """All gradients of one segment, tile of STEPS steps by tile, against the order of the run."""
    row, block, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group, inner = block // group_blocks, block % group_blocks * CHANNELS + tl.arange(0, CHANNELS)
    c, valid, n = group * group_channels + inner, inner < group_channels, tl.arange(0, N)
    at, exists = n[:, None] * channels + c[None, :], (n < STATES)[:, None] & valid[None, :]
    end = tl.minimum(tl.load(lengths + row), time) if HAS_LENGTHS else time
    rate = tl.load(A + at, mask=exists, other=0.0).to(ACC) * 1.4426950408889634
    add = tl.load(bias + c, mask=valid, other=0.0).to(ACC) if HAS_BIAS else tl.zeros([CHANNELS], ACC)
    direct = tl.load(D + c, mask=valid, other=0.0).to(ACC) if HAS_D else tl.zeros([CHANNELS], ACC)
    dh, of_A = tl.zeros([N, CHANNELS], ACC), tl.zeros([N, CHANNELS], ACC)
    of_D, of_bias = tl.zeros([CHANNELS], ACC), tl.zeros([CHANNELS], ACC)
    if HAS_START:
        dh = tl.load(start + row * s_row + part * s_segment + at, mask=exists, other=0.0).to(ACC)
    last_step = tl.minimum(part * segment + segment, time)
    tiles = tl.cdiv(last_step - part * segment, STEPS)
    for q in tl.range(0, tiles):
        begin = part * segment + (tiles - 1 - q) * STEPS
        base = begin // KEEP
        h = tl.load(kept + row * kept_row + base * STATES * channels + at, mask=exists, other=0.0).to(ACC)
        for s in tl.range(base * KEEP, begin):  # from the kept state to the first one of the tile
            t = _when(s + begin * 0, time, REVERSE)
            live = valid & (inner * 0 + t < end)
            _, size = _step_size(dt, row * dt_row + t * dt_time + c, add, live, SOFTPLUS, ACC)
            x = tl.load(u + row * u_row + t * u_time + c, mask=live, other=0.0).to(ACC)
            w = _row_of(B, row * w_row + t * w_time + group * STATES, (n < STATES) & (n * 0 + t < end), n, ACC)
            if HAS_RESETS:
                h = tl.where(_reset(resets, row, t, time, end, HAS_RESETS), 0.0, h)
            h = tl.exp2(size[None, :] * rate) * h + (size * x)[None, :] * w[:, None]
        before, after = (), ()
        for i in tl.static_range(STEPS):
            t = _when(begin + i, time, REVERSE)
            live = valid & (inner * 0 + t < end) & (inner * 0 + t >= 0)
            there = (n < STATES) & (n * 0 + t < end) & (n * 0 + t >= 0)
            _, size = _step_size(dt, row * dt_row + t * dt_time + c, add, live, SOFTPLUS, ACC)
            x = tl.load(u + row * u_row + t * u_time + c, mask=live, other=0.0).to(ACC)
            w = _row_of(B, row * w_row + t * w_time + group * STATES, there, n, ACC)
            if HAS_RESETS:
                h = tl.where(_reset(resets, row, t, time, end, HAS_RESETS), 0.0, h)
            before = before + (h,)
            h = tl.exp2(size[None, :] * rate) * h + (size * x)[None, :] * w[:, None]
            after = after + (h,)
        for j in tl.static_range(STEPS):
            t = _when(begin + (STEPS - 1 - j), time, REVERSE)
            live = valid & (inner * 0 + t < end) & (inner * 0 + t >= 0)
            there = (n < STATES) & (n * 0 + t < end) & (n * 0 + t >= 0)
            written = valid & (inner * 0 + t < time) & (inner * 0 + t >= 0)
            place = (row * time + t) * channels + c
            raw, size = _step_size(dt, row * dt_row + t * dt_time + c, add, live, SOFTPLUS, ACC)
            x = tl.load(u + row * u_row + t * u_time + c, mask=live, other=0.0).to(ACC)
            g = tl.load(grad_y + row * g_row + t * g_time + c, mask=live, other=0.0).to(ACC)
            w = _row_of(B, row * w_row + t * w_time + group * STATES, there, n, ACC)
            v = _row_of(C, row * v_row + t * v_time + group * STATES, there, n, ACC)
            if HAS_Z:
                gate = tl.load(z + row * z_row + t * z_time + c, mask=live, other=0.0).to(ACC)
                half = tl.sigmoid(gate)
                out = tl.sum(after[STEPS - 1 - j] * v[:, None], 0) + direct * x
                slope = g * out * half * (1.0 + gate * (1.0 - half))
                tl.store(grad_z + place, tl.where(live, slope, 0.0).to(grad_z.dtype.element_ty), mask=written)
                g = g * gate * half
            dh += g[None, :] * v[:, None]
            factor = tl.exp2(size[None, :] * rate)
            along = tl.sum(dh * w[:, None], 0)
            moved = dh * factor * before[STEPS - 1 - j]
            of_size = x * along + tl.sum(moved * rate, 0) * 0.6931471805599453
            if SOFTPLUS:
                of_size = of_size * tl.where(raw > 20.0, 1.0, tl.sigmoid(raw))
            of_size = tl.where(live, of_size, 0.0)
            tl.store(grad_u + place, (g * direct + size * along).to(grad_u.dtype.element_ty), mask=written)
            tl.store(grad_dt + place, of_size.to(grad_dt.dtype.element_ty), mask=written)
            weights = (block % group_blocks) * partial + ((row * time + t) * groups + group) * STATES + n
            kept_there = (n < STATES) & (n * 0 + t < time) & (n * 0 + t >= 0)
            tl.store(grad_C + weights, tl.sum(after[STEPS - 1 - j] * g[None, :], 1), mask=kept_there)
            tl.store(grad_B + weights, tl.sum(dh * (size * x)[None, :], 1), mask=kept_there)
            of_A += moved * size[None, :]
            of_D += g * x
            of_bias += of_size
            dh = dh * factor
            if HAS_RESETS:
                dh = tl.where(_reset(resets, row, t, time, end, HAS_RESETS), 0.0, dh)
    summed = (row * tl.num_programs(2) + part) * channels
    tl.store(grad_A + summed * STATES + at, of_A, mask=exists)
    if HAS_D:
        tl.store(grad_D + summed + c, of_D, mask=valid)
    if HAS_BIAS:
        tl.store(grad_bias + summed + c, of_bias, mask=valid)
    if part == 0:
        tl.store(grad_h0 + row * STATES * channels + at, dh, mask=exists)
