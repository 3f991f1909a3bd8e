"""The linear recurrent unit as Triton programs: the input's product and the scan in one, and products with a direct path.

A program of the scan has a row, a block of channels and a segment of time. For each tile of steps it multiplies the inputs
by its part of the matrix, scans the tile along time in float32, and adds what the state before the tile contributes. That
state is carried in ACC with powers of the factor made in ACC, so that a slow mode does not drift over many tiles. B u is
never written: forward writes h, backward makes C' grad_y in the same way and writes the gradient of B u.

Both run by one kernel: h_i = a_i h_{i-1} + x_i in the order i of the run, which is that of time or against it. Forward has
a_i = lam. Backward has the conjugate, taken from the step before in its order: d_t = g_t + conj(lam) d_{t+1}.
"""

from __future__ import annotations

import triton
import triton.language as tl

from holdfast.kernels._common._triton_functions import ends


@triton.jit
def _multiply(a_re, a_im, b_re, b_im):
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


@triton.jit
def _then(a_re, a_im, b_re, b_im, c_re, c_im, d_re, d_im):
    """h -> a h + b and then h -> c h + d, complex."""
    p_re, p_im = _multiply(c_re, c_im, a_re, a_im)
    q_re, q_im = _multiply(c_re, c_im, b_re, b_im)
    return p_re, p_im, q_re + d_re, q_im + d_im


@triton.jit
def _then_real(a, b, c, d):
    return c * a, c * b + d


@triton.jit
def _power(f_re, f_im, count, BITS: tl.constexpr):
    """f^count for a count below 2^BITS."""
    p_re, p_im = f_re * 0 + 1, f_im * 0
    for bit in tl.static_range(BITS):
        x, y = _multiply(p_re, p_im, f_re, f_im)
        taken = (count >> bit) % 2 == 1
        p_re, p_im = tl.where(taken, x, p_re), tl.where(taken, y, p_im)
        f_re, f_im = _multiply(f_re, f_im, f_re, f_im)
    return p_re, p_im


@triton.jit
def _product(
    x, weight, place, live, n, inputs, channels, w_state, w_input, PRECISION: tl.constexpr, WIDE: tl.constexpr,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """A tile of the input's product, real and imaginary parts."""
    re = tl.zeros((STEPS, CHANNELS), tl.float32)
    im = re
    for start in range(0, inputs, INNER):
        k = start + tl.arange(0, INNER)
        given = tl.load(x + place[:, None] * inputs + k[None, :], mask=live[:, None] & (k < inputs)[None, :], other=0.0)
        columns = weight + n[None, :] * w_state + k[:, None] * w_input
        inside = (k < inputs)[:, None] & (n < channels)[None, :]
        upper = tl.load(columns, mask=inside, other=0.0)
        if WIDE:  # the interpreter has no products in bfloat16
            given, upper = given.to(tl.float32), upper.to(tl.float32)
        re = tl.dot(given, upper, re, input_precision=PRECISION)
        if PARTS == 2:
            lower = tl.load(columns + channels * w_state, mask=inside, other=0.0)
            if WIDE:
                lower = lower.to(tl.float32)
            im = tl.dot(given, lower, im, input_precision=PRECISION)
    return re, im


@triton.jit
def _pair(pointer, place, mask, im, PARTS: tl.constexpr, TYPE: tl.constexpr):
    re = tl.load(pointer + place, mask=mask, other=0.0).to(TYPE)
    if PARTS == 2:
        return re, tl.load(pointer + place + im, mask=mask, other=0.0).to(TYPE)
    return re, re * 0


@triton.jit
def _store(pointer, place, re, imaginary, mask, im, PARTS: tl.constexpr):
    tl.store(pointer + place, re.to(pointer.dtype.element_ty), mask=mask)
    if PARTS == 2:
        tl.store(pointer + place + im, imaginary.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def product_scan_kernel(
    x, weight, lam, start, h, h0, lengths, resets, out, last, product, rest, grad_lam,
    time, inputs, channels, segment, w_state, w_input, s_row, s_segment,
    BACKWARD: tl.constexpr, SUMMARY: tl.constexpr, REVERSE: tl.constexpr, PARTS: tl.constexpr, HAS_START: tl.constexpr,
    HAS_H0: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_RESETS: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr, INNER: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """States over one segment; SUMMARY writes its product and rest instead. REVERSE is the direction of this run.

    BACKWARD reads the states h and their start h0 too, and writes the summands of lam's gradient.
    """
    n = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    row, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    valid, size = n < channels, channels * PARTS
    end = tl.minimum(tl.load(lengths + row), time) if HAS_LENGTHS else time
    f_re, f_im = _pair(lam, n, valid, channels, PARTS, ACC)
    f_im = -f_im if BACKWARD else f_im
    c_re, c_im = tl.zeros([CHANNELS], ACC), tl.zeros([CHANNELS], ACC)
    p_re, p_im, s_re, s_im = c_re + 1, c_im, c_re, c_im
    if HAS_START:
        c_re, c_im = _pair(start, row * s_row + part * s_segment + n, valid, channels, PARTS, ACC)
    step = tl.arange(0, STEPS)
    for k in range(0, segment, STEPS):
        i = part * segment + k + step
        t = time - 1 - i if REVERSE else i
        live = (i < time) & (t < end)
        re, im = _product(
            x, weight, row * time + t, live, n, inputs, channels, w_state, w_input, PRECISION, WIDE, STEPS, CHANNELS,
            INNER, PARTS,
        )  # fmt: skip
        moved, source = live, t
        if BACKWARD:
            source = t + 1 if REVERSE else t - 1
            moved = (i > 0) & (i < time) & (source < end)
        cut = i < 0
        if HAS_RESETS:
            cut = tl.load(resets + row * time + source, mask=moved, other=0) != 0
        count, stopped = tl.sum(moved.to(tl.int32), 0), tl.max(cut.to(tl.int32), 0)
        a_re = tl.where(cut, 0.0, 1.0)[:, None] * tl.where(moved[:, None], f_re.to(tl.float32)[None, :], 1.0)
        if PARTS == 2:
            a_im = tl.where(moved & (cut == 0), 1.0, 0.0)[:, None] * f_im.to(tl.float32)[None, :]
            a_re, a_im, re, im = tl.associative_scan((a_re, a_im, re, im), 0, _then)
        else:
            a_re, re = tl.associative_scan((a_re, re), 0, _then_real)
        at_end = (step == STEPS - 1)[:, None]
        r_re, r_im = tl.sum(tl.where(at_end, re, 0.0), 0).to(ACC), tl.sum(tl.where(at_end, im, 0.0), 0).to(ACC)
        q_re, q_im = _power(f_re, f_im, count, BITS)
        q_re, q_im = tl.where(stopped > 0, 0.0, q_re), tl.where(stopped > 0, 0.0, q_im)
        if not SUMMARY:
            b_re, b_im = c_re.to(tl.float32)[None, :], c_im.to(tl.float32)[None, :]
            if PARTS == 2:
                b_re, b_im = _multiply(a_re, a_im, b_re, b_im)
                im = tl.where(live[:, None], im + b_im, 0.0)
            else:
                b_re = a_re * b_re
            re = tl.where(live[:, None], re + b_re, 0.0)
            place = (row * time + t)[:, None] * size + n[None, :]
            _store(out, place, re, im, (i < time)[:, None] & valid[None, :], channels, PARTS)
            if BACKWARD:
                before = t - 1 if REVERSE else t + 1
                has = (before >= 0) & (before < end)
                place = (row * time + before)[:, None] * size + n[None, :]
                y_re, y_im = _pair(h, place, (live & has)[:, None] & valid[None, :], channels, PARTS, tl.float32)
                if HAS_H0:
                    first_re, first_im = _pair(h0, row * size + n, valid, channels, PARTS, tl.float32)
                    y_re = tl.where(has[:, None], y_re, first_re[None, :])
                    y_im = tl.where(has[:, None], y_im, first_im[None, :])
                if HAS_RESETS:
                    marked = tl.load(resets + row * time + t, mask=live, other=0) != 0
                    y_re, y_im = tl.where(marked[:, None], 0.0, y_re), tl.where(marked[:, None], 0.0, y_im)
                s_re += tl.sum(re * y_re + im * y_im, 0).to(ACC)
                s_im += tl.sum(im * y_re - re * y_im, 0).to(ACC)
        x_re, x_im = _multiply(q_re, q_im, c_re, c_im)
        c_re, c_im = x_re + r_re, x_im + r_im
        p_re, p_im = _multiply(q_re, q_im, p_re, p_im)
    if SUMMARY:
        place = row * s_row + part * s_segment + n
        _store(product, place, p_re, p_im, valid, channels, PARTS)
        _store(rest, place, c_re, c_im, valid, channels, PARTS)
    else:
        if BACKWARD:
            _store(grad_lam, row * s_row + part * s_segment + n, s_re, s_im, valid, channels, PARTS)
        if part == tl.num_programs(2) - 1:
            if BACKWARD:  # what reaches the start has passed the factor of the step that is last in this run
                t = row * 0 + (0 if REVERSE else time - 1)
                x_re, x_im = _multiply(f_re, f_im, c_re, c_im)
                live = t < end
                if HAS_RESETS:
                    stays = (tl.load(resets + row * time + t, mask=live, other=0) == 0).to(ACC)
                    x_re, x_im = x_re * stays, x_im * stays
                c_re, c_im = tl.where(live, x_re, c_re), tl.where(live, x_im, c_im)
            _store(last, row * size + n, c_re, c_im, valid, channels, PARTS)


@triton.jit
def product_direct_kernel(
    x, weight, direct, given, other, lengths, out, sums, rows, time, inner, width, w_out, w_inner,
    HAS_LENGTHS: tl.constexpr, SUMS: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr, TOKENS: tl.constexpr,
    FEATURES: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """out = weight x + direct given, without the direct path after a row's end.

    SUMS writes this tile's sum of given times other, the gradient of the direct path, too.
    """
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    j = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    row = token // time
    total = tl.zeros((TOKENS, FEATURES), tl.float32)
    for start in range(0, inner, INNER):
        k = start + tl.arange(0, INNER)
        known = (row < rows)[:, None] & (k < inner)[None, :]
        left = tl.load(x + token[:, None] * inner + k[None, :], mask=known, other=0.0)
        inside = (k < inner)[:, None] & (j < width)[None, :]
        right = tl.load(weight + j[None, :] * w_out + k[:, None] * w_inner, mask=inside, other=0.0)
        if WIDE:  # the interpreter has no products in bfloat16
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    live = (token - row * time < ends(lengths, row, rows, time, HAS_LENGTHS))[:, None] & (j < width)[None, :]
    place = token[:, None] * width + j[None, :]
    near = tl.load(given + place, mask=live, other=0.0).to(tl.float32)
    total += tl.load(direct + j, mask=j < width, other=0.0).to(tl.float32)[None, :] * near
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (j < width)[None, :])
    if SUMS:
        near *= tl.load(other + place, mask=live, other=0.0).to(tl.float32)
        tl.store(sums + tl.program_id(0) * width + j, tl.sum(near, 0), mask=j < width)
