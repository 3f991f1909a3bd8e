"""The linear scan as Triton programs: a row, a block of channels and a segment of time each, the state in registers.

Channels lie along the lanes, so that loads are coalesced in the layout that the layers have anyway, and time is a loop
inside the program: one fused multiply-add a step, in the order of the reference, with states in ACC (float64 costs no
bandwidth). One segment reads nothing twice. With several, a first launch sums each segment up as h -> product h + rest,
a second one chains them, and a third runs them from their first states. No atomics: every run gives the same bits.

Complex numbers are two real ones, the imaginary part `im` numbers after the real part, and channels `step` numbers
apart: 1 and 2 for torch's complex tensors, the number of channels and 1 for planar ones.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _multiply(a_re, a_im, b_re, b_im):
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


@triton.jit
def _widened(x, ACC: tl.constexpr):
    # half precision by way of float32: the interpreter has no conversion from bfloat16 to float64
    if x.dtype.primitive_bitwidth == 16:
        return x.to(tl.float32).to(ACC)
    return x.to(ACC)


@triton.jit
def _narrowed(x, TYPE: tl.constexpr):
    if TYPE.primitive_bitwidth == 16:
        return x.to(tl.float32).to(TYPE)
    return x.to(TYPE)


@triton.jit
def _load(pointer, offset, mask, other, im, PARTS: tl.constexpr, ACC: tl.constexpr):
    re = _widened(tl.load(pointer + offset, mask=mask, other=other), ACC)
    if PARTS == 2:
        return re, _widened(tl.load(pointer + offset + im, mask=mask, other=0.0), ACC)
    return re, re * 0


@triton.jit
def _store(pointer, offset, re, imaginary, mask, im, PARTS: tl.constexpr):
    tl.store(pointer + offset, _narrowed(re, pointer.dtype.element_ty), mask=mask)
    if PARTS == 2:
        tl.store(pointer + offset + im, _narrowed(imaginary, pointer.dtype.element_ty), mask=mask)


@triton.jit
def _marked(resets, row, t, time, end, HAS_RESETS: tl.constexpr):
    """Whether the state before step t is taken as zero."""
    if HAS_RESETS:
        return tl.load(resets + row * time + t, mask=(t >= 0) & (t < end), other=0) != 0
    return t < 0


@triton.jit
def scan_forward_kernel(
    a, b, h, last, start, lengths, resets, product, rest,
    time, channels, segment, step, im,
    a_row, a_time, b_row, b_time, h_row, h_time, s_row, s_segment,
    SUMMARY: tl.constexpr, PARTS: tl.constexpr, VARYING: tl.constexpr, REVERSE: tl.constexpr,
    HAS_START: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_RESETS: tl.constexpr,
    ACC: tl.constexpr, CHANNELS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """h_t = a_t h_{t-1} + b_t over one segment; SUMMARY writes its product and rest instead of the states."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    valid, at = c < channels, c * step
    nothing = c * 0  # a block & scalar of booleans is int32 in the interpreter, which is not a mask
    end = tl.minimum(tl.load(lengths + row), time) if HAS_LENGTHS else time
    zero = tl.zeros([CHANNELS], ACC)
    h_re, h_im, p_re, p_im, f_re, f_im = zero, zero, zero + 1, zero, zero, zero
    if HAS_START:
        h_re, h_im = _load(start, row * s_row + part * s_segment + at, valid, 0.0, im, PARTS, ACC)
    if not VARYING:
        f_re, f_im = _load(a, row * a_row + at, valid, 1.0, im, PARTS, ACC)
    for k in tl.range(0, segment, UNROLL):
        # all loads of some steps before their first store: nothing that may alias stands between them
        b_re, b_im, a_re, a_im, marks = (), (), (), (), ()
        for i in tl.static_range(UNROLL):
            t = (part * segment + (segment - 1 - k - i if REVERSE else k + i)).to(tl.int64)
            live = valid & (nothing + t < end)
            x, y = _load(b, row * b_row + t * b_time + at, live, 0.0, im, PARTS, ACC)
            b_re, b_im = b_re + (x,), b_im + (y,)
            marks = marks + (_marked(resets, row, t, time, end, HAS_RESETS),)
            if VARYING:
                x, y = _load(a, row * a_row + t * a_time + at, live, 1.0, im, PARTS, ACC)
                a_re, a_im = a_re + (x,), a_im + (y,)
        for i in tl.static_range(UNROLL):
            t = (part * segment + (segment - 1 - k - i if REVERSE else k + i)).to(tl.int64)
            inside = t < end
            g_re, g_im = (a_re[i], a_im[i]) if VARYING else (f_re, f_im)
            if not VARYING:
                g_re, g_im = tl.where(inside, g_re, 1.0), tl.where(inside, g_im, 0.0)
            if HAS_RESETS:
                h_re, h_im = tl.where(marks[i], 0.0, h_re), tl.where(marks[i], 0.0, h_im)
                p_re, p_im = tl.where(marks[i], 0.0, p_re), tl.where(marks[i], 0.0, p_im)
            if PARTS == 2:
                h_re, h_im = _multiply(g_re, g_im, h_re, h_im)
                h_im += b_im[i]
            else:
                h_re = g_re * h_re
            h_re += b_re[i]
            if SUMMARY:
                if PARTS == 2:
                    p_re, p_im = _multiply(g_re, g_im, p_re, p_im)
                else:
                    p_re = g_re * p_re
            else:
                written = valid & (nothing + t < time)
                x, y = tl.where(inside, h_re, 0.0), tl.where(inside, h_im, 0.0)
                _store(h, row * h_row + t * h_time + at, x, y, written, im, PARTS)
    if SUMMARY:
        _store(product, row * s_row + part * s_segment + at, p_re, p_im, valid, im, PARTS)
        _store(rest, row * s_row + part * s_segment + at, h_re, h_im, valid, im, PARTS)
    elif part == (0 if REVERSE else tl.num_programs(2) - 1):
        _store(last, row * channels * PARTS + at, h_re, h_im, valid, im, PARTS)


@triton.jit
def scan_chain_kernel(
    product, rest, start, segments, channels, step, im, s_row, s_segment,
    PARTS: tl.constexpr, REVERSE: tl.constexpr, HAS_START: tl.constexpr, ACC: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Turns `rest` into the state before each segment: a loop over the segments of a row."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    valid, at = c < channels, c * step
    h_re, h_im = tl.zeros([CHANNELS], ACC), tl.zeros([CHANNELS], ACC)
    if HAS_START:
        h_re, h_im = _load(start, row * channels * PARTS + at, valid, 0.0, im, PARTS, ACC)
    for k in tl.range(0, segments):
        place = row * s_row + (segments - 1 - k if REVERSE else k) * s_segment + at
        p_re, p_im = _load(product, place, valid, 1.0, im, PARTS, ACC)
        r_re, r_im = _load(rest, place, valid, 0.0, im, PARTS, ACC)
        _store(rest, place, h_re, h_im, valid, im, PARTS)
        # a state of 0 stays 0 even under a product that has overflowed
        zero = (h_re == 0) & (h_im == 0)
        if PARTS == 2:
            h_re, h_im = _multiply(p_re, p_im, h_re, h_im)
            h_im = tl.where(zero, 0.0, h_im) + r_im
        else:
            h_re = p_re * h_re
        h_re = tl.where(zero, 0.0, h_re) + r_re


@triton.jit
def scan_backward_kernel(
    a, h, grad_h, h0, start, lengths, resets, product, rest, grad_a, grad_b, grad_h0,
    time, channels, segment, step, im,
    a_row, a_time, h_row, h_time, g_row, g_time, s_row, s_segment, ga_row, ga_time,
    SUMMARY: tl.constexpr, PARTS: tl.constexpr, VARYING: tl.constexpr, REVERSE: tl.constexpr,
    HAS_START: tl.constexpr, HAS_H0: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_RESETS: tl.constexpr,
    HAS_GRAD: tl.constexpr, WANT_A: tl.constexpr, WANT_B: tl.constexpr,
    ACC: tl.constexpr, CHANNELS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """grad_b_t = g_t + c_{t+1}, c_t = conj(a_t) grad_b_t against the run's order, grad_a_t = grad_b_t conj(h_{t-1}).

    The gradient of a constant `a` is summed over the segment: one number for each row, segment and channel.
    """
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    valid, at = c < channels, c * step
    nothing = c * 0
    end = tl.minimum(tl.load(lengths + row), time) if HAS_LENGTHS else time
    zero = tl.zeros([CHANNELS], ACC)
    c_re, c_im, p_re, p_im, s_re, s_im = zero, zero, zero + 1, zero, zero, zero
    f_re, f_im, first_re, first_im = zero, zero, zero, zero
    if HAS_START:
        c_re, c_im = _load(start, row * s_row + part * s_segment + at, valid, 0.0, im, PARTS, ACC)
    if not VARYING:
        f_re, f_im = _load(a, row * a_row + at, valid, 1.0, im, PARTS, ACC)
    if HAS_H0:
        first_re, first_im = _load(h0, row * channels * PARTS + at, valid, 0.0, im, PARTS, ACC)
    for k in tl.range(0, segment, UNROLL):
        g_re, g_im, a_re, a_im, b_re, b_im, marks = (), (), (), (), (), (), ()
        for i in tl.static_range(UNROLL):
            t = (part * segment + (k + i if REVERSE else segment - 1 - k - i)).to(tl.int64)
            live = valid & (nothing + t < end)
            x, y = zero, zero
            if HAS_GRAD:
                x, y = _load(grad_h, row * g_row + t * g_time + at, live, 0.0, im, PARTS, ACC)
            g_re, g_im = g_re + (x,), g_im + (y,)
            marks = marks + (_marked(resets, row, t, time, end, HAS_RESETS),)
            if VARYING:
                x, y = _load(a, row * a_row + t * a_time + at, live, 1.0, im, PARTS, ACC)
                a_re, a_im = a_re + (x,), a_im + (y,)
            if WANT_A and not SUMMARY:
                before = t + 1 if REVERSE else t - 1
                has = (before >= 0) & (before < end)
                there = live & (nothing + before >= 0) & (nothing + before < end)
                x, y = _load(h, row * h_row + before * h_time + at, there, 0.0, im, PARTS, ACC)
                if HAS_H0:
                    x, y = tl.where(has, x, first_re), tl.where(has, y, first_im)
                b_re, b_im = b_re + (x,), b_im + (y,)
        for i in tl.static_range(UNROLL):
            t = (part * segment + (k + i if REVERSE else segment - 1 - k - i)).to(tl.int64)
            inside = t < end
            e_re, e_im = (a_re[i], a_im[i]) if VARYING else (f_re, f_im)
            if not VARYING:
                e_re, e_im = tl.where(inside, e_re, 1.0), tl.where(inside, e_im, 0.0)
            d_re, d_im = g_re[i] + c_re, g_im[i] + c_im
            if PARTS == 2:
                c_re, c_im = _multiply(e_re, -e_im, d_re, d_im)
            else:
                c_re = e_re * d_re
            if HAS_RESETS:
                c_re, c_im = tl.where(marks[i], 0.0, c_re), tl.where(marks[i], 0.0, c_im)
            if SUMMARY:
                if PARTS == 2:
                    p_re, p_im = _multiply(e_re, -e_im, p_re, p_im)
                else:
                    p_re = e_re * p_re
                if HAS_RESETS:
                    p_re, p_im = tl.where(marks[i], 0.0, p_re), tl.where(marks[i], 0.0, p_im)
            else:
                d_re, d_im = tl.where(inside, d_re, 0.0), tl.where(inside, d_im, 0.0)
                written = valid & (nothing + t < time)
                if WANT_B:
                    _store(grad_b, row * h_row + t * h_time + at, d_re, d_im, written, im, PARTS)
                if WANT_A:
                    x, y = d_re * b_re[i], d_im
                    if PARTS == 2:
                        x, y = _multiply(d_re, d_im, b_re[i], -b_im[i])
                    if HAS_RESETS:
                        x, y = tl.where(marks[i], 0.0, x), tl.where(marks[i], 0.0, y)
                    if VARYING:
                        _store(grad_a, row * ga_row + t * ga_time + at, x, y, written, im, PARTS)
                    else:
                        s_re, s_im = s_re + x, s_im + y
    if SUMMARY:
        _store(product, row * s_row + part * s_segment + at, p_re, p_im, valid, im, PARTS)
        _store(rest, row * s_row + part * s_segment + at, c_re, c_im, valid, im, PARTS)
    else:
        if WANT_A and not VARYING:
            _store(grad_a, row * ga_row + part * ga_time + at, s_re, s_im, valid, im, PARTS)
        if part == (tl.num_programs(2) - 1 if REVERSE else 0):
            _store(grad_h0, row * channels * PARTS + at, c_re, c_im, valid, im, PARTS)
