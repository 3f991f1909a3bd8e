"""S4D's matrices of a block as Triton programs: one feature each, its modes along the lanes, powers of a in registers.

Numbers in memory are PARTS apart: 2 for complex modes, their parts side by side, 1 for real ones. A matrix of a block has
rows of PARTS * modes numbers, all real parts and then all imaginary ones, as the products take them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _multiply(x_re, x_im, y_re, y_im):
    return x_re * y_re - x_im * y_im, x_re * y_im + x_im * y_re


@triton.jit
def _load(pointer, offset, mask, im, PARTS: tl.constexpr, ACC: tl.constexpr):
    re = tl.load(pointer + offset, mask=mask, other=0.0).to(ACC)
    if PARTS == 2:
        return re, tl.load(pointer + offset + im, mask=mask, other=0.0).to(ACC)
    return re, re * 0


@triton.jit
def _store(pointer, offset, re, imaginary, mask, im, PARTS: tl.constexpr):
    kind = pointer.dtype.element_ty
    tl.store(pointer + offset, re.to(kind), mask=mask)
    if PARTS == 2:
        tl.store(pointer + offset + im, imaginary.to(kind), mask=mask)


@triton.jit
def tables_forward_kernel(
    a, b, c, response, gather, emit, leap, modes, STEPS: tl.constexpr, PARTS: tl.constexpr, ACC: tl.constexpr,
    MODES: tl.constexpr,
):  # fmt: skip
    feature = tl.program_id(0)
    lane = tl.arange(0, MODES)
    inside = lane < modes
    own = (feature * modes + lane) * PARTS
    a_re, a_im = _load(a, own, inside, 1, PARTS, ACC)
    b_re, b_im = _load(b, own, inside, 1, PARTS, ACC)
    c_re, c_im = _load(c, own, inside, 1, PARTS, ACC)
    cb_re, cb_im = _multiply(c_re, c_im, b_re, b_im)
    p_re, p_im = tl.full((MODES,), 1.0, ACC), tl.zeros((MODES,), ACC)
    width = modes * PARTS
    for k in range(STEPS):
        r_re, _ = _multiply(cb_re, cb_im, p_re, p_im)
        tl.store(response + feature * STEPS + k, tl.sum(r_re, 0))
        x_re, x_im = _multiply(b_re, b_im, p_re, p_im)
        _store(gather, (feature * STEPS + STEPS - 1 - k) * width + lane, x_re, x_im, inside, modes, PARTS)
        p_re, p_im = _multiply(p_re, p_im, a_re, a_im)
        x_re, x_im = _multiply(c_re, c_im, p_re, p_im)
        _store(emit, (feature * STEPS + k) * width + lane, x_re, -x_im, inside, modes, PARTS)
    _store(leap, own, p_re, p_im, inside, 1, PARTS)


@triton.jit
def tables_backward_kernel(
    a, b, c, grad_response, grad_gather, grad_emit, grad_leap, grad_a, grad_b, grad_c, modes, STEPS: tl.constexpr,
    PARTS: tl.constexpr, ACC: tl.constexpr, MODES: tl.constexpr,
):  # fmt: skip
    feature = tl.program_id(0)
    lane = tl.arange(0, MODES)
    inside = lane < modes
    own = (feature * modes + lane) * PARTS
    a_re, a_im = _load(a, own, inside, 1, PARTS, ACC)
    b_re, b_im = _load(b, own, inside, 1, PARTS, ACC)
    c_re, c_im = _load(c, own, inside, 1, PARTS, ACC)
    cb_re, cb_im = _multiply(c_re, c_im, b_re, b_im)
    zero = tl.zeros((MODES,), ACC)
    p_re, p_im, q_re, q_im = zero + 1.0, zero, zero, zero  # a^k, and its derivative k a^(k - 1)
    ga_re, ga_im, gb_re, gb_im, gc_re, gc_im, gcb_re, gcb_im = zero, zero, zero, zero, zero, zero, zero, zero
    width = modes * PARTS
    for k in range(STEPS):
        g_re, g_im = _load(grad_gather, (feature * STEPS + STEPS - 1 - k) * width + lane, inside, modes, PARTS, ACC)
        # the gradient of z in z = x y is g conj(y)
        x_re, x_im = _multiply(g_re, g_im, p_re, -p_im)
        gb_re, gb_im = gb_re + x_re, gb_im + x_im
        of_p_re, of_p_im = _multiply(g_re, g_im, b_re, -b_im)
        r = tl.load(grad_response + feature * STEPS + k).to(ACC)
        gcb_re, gcb_im = gcb_re + r * p_re, gcb_im - r * p_im
        x_re, x_im = _multiply(of_p_re + r * cb_re, of_p_im - r * cb_im, q_re, -q_im)
        ga_re, ga_im = ga_re + x_re, ga_im + x_im
        x_re, x_im = _multiply(q_re, q_im, a_re, a_im)
        q_re, q_im = x_re + p_re, x_im + p_im
        p_re, p_im = _multiply(p_re, p_im, a_re, a_im)
        e_re, e_im = _load(grad_emit, (feature * STEPS + k) * width + lane, inside, modes, PARTS, ACC)
        x_re, x_im = _multiply(e_re, -e_im, p_re, -p_im)
        gc_re, gc_im = gc_re + x_re, gc_im + x_im
        x_re, x_im = _multiply(e_re, -e_im, c_re, -c_im)
        x_re, x_im = _multiply(x_re, x_im, q_re, -q_im)
        ga_re, ga_im = ga_re + x_re, ga_im + x_im
    g_re, g_im = _load(grad_leap, own, inside, 1, PARTS, ACC)
    x_re, x_im = _multiply(g_re, g_im, q_re, -q_im)
    _store(grad_a, own, ga_re + x_re, ga_im + x_im, inside, 1, PARTS)
    x_re, x_im = _multiply(gcb_re, gcb_im, c_re, -c_im)
    _store(grad_b, own, gb_re + x_re, gb_im + x_im, inside, 1, PARTS)
    x_re, x_im = _multiply(gcb_re, gcb_im, b_re, -b_im)
    _store(grad_c, own, gc_re + x_re, gc_im + x_im, inside, 1, PARTS)
