"""The nonlinear RNN as Triton programs: a block of rows each, all of time in one launch, W and the state on the chip.

The input's part U x + b comes from one product over all of time, and so do the gradients of the weights. What is left to a
step is h W' for a block of ROWS rows, by tl.dot. STATES is the power of two that holds all states; numbers past the last one
are zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl

from holdfast.kernels._common._triton_functions import ends, tanh


@triton.jit
def _activated(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == "tanh":
        return tanh(z)
    if ACTIVATION == "hardtanh":
        return tl.minimum(tl.maximum(z, -1.0), 1.0)
    if ACTIVATION == "relu":
        return tl.maximum(z, 0.0)
    if ACTIVATION == "sigmoid":
        return tl.sigmoid(z)
    return z


@triton.jit
def _times_derivative(slope, y, ACTIVATION: tl.constexpr):
    """slope sigma'(z), with the derivative written in y = sigma(z)."""
    if ACTIVATION == "tanh":
        return slope * (1.0 - y * y)
    if ACTIVATION == "hardtanh":
        return tl.where((y > -1.0) & (y < 1.0), slope, 0.0)
    if ACTIVATION == "relu":
        return tl.where(y > 0.0, slope, 0.0)
    if ACTIVATION == "sigmoid":
        return slope * (y * (1.0 - y))
    return slope


@triton.jit
def rnn_forward_kernel(
    drive, w, h0, dts, lengths, h, y, last, rows, time, states, dt,
    HAS_H0: tl.constexpr, HAS_DTS: tl.constexpr, HAS_LENGTHS: tl.constexpr, EULER: tl.constexpr, KEEP: tl.constexpr,
    REVERSE: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """h_t = sigma(W h + drive_t), or h + dt sigma(...) in Euler steps; 0 after a row's end."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, STATES)
    known = (row < rows)[:, None] & (j < states)[None, :]
    across = (j < states)[:, None] & (j < states)[None, :]
    turned = tl.load(w + j[None, :] * states + j[:, None], mask=across, other=0.0)  # [from, to]
    end = ends(lengths, row, rows, time, HAS_LENGTHS)
    state = tl.zeros((ROWS, STATES), tl.float32)
    if HAS_H0:
        state = tl.load(h0 + row[:, None] * states + j[None, :], mask=known, other=0.0)
    wide = row.to(tl.int64)
    for i in range(time):
        t = time - 1 - i if REVERSE else i
        live = (t < end)[:, None] & known
        place = (wide * time + t)[:, None] * states + j[None, :]
        z = tl.load(drive + place, mask=live, other=0.0) + tl.dot(state, turned, input_precision=PRECISION)
        moved = _activated(z, ACTIVATION)
        if EULER:
            if KEEP:
                tl.store(y + place, tl.where(live, moved, 0.0), mask=known)
            if HAS_DTS:
                step = tl.load(dts + wide * time + t, mask=t < end, other=0.0)
                moved = state + step[:, None] * moved
            else:
                moved = state + dt * moved
        tl.store(h + place, tl.where(live, moved, 0.0), mask=known)
        state = tl.where(live, moved, state)
    tl.store(last + row[:, None] * states + j[None, :], state, mask=known)


@triton.jit
def rnn_backward_kernel(
    w, y, dts, lengths, grad_h, grad_last, delta, grad_h0, grad_dts, rows, time, states, dt,
    HAS_GRAD: tl.constexpr, HAS_LAST: tl.constexpr, HAS_DTS: tl.constexpr, HAS_LENGTHS: tl.constexpr,
    EULER: tl.constexpr, REVERSE: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr,
    STATES: tl.constexpr,
):  # fmt: skip
    """The gradient of W h + drive at all steps, of the first state and of the step sizes; y are the activations."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, STATES)
    known = (row < rows)[:, None] & (j < states)[None, :]
    across = (j < states)[:, None] & (j < states)[None, :]
    weights = tl.load(w + j[:, None] * states + j[None, :], mask=across, other=0.0)
    end = ends(lengths, row, rows, time, HAS_LENGTHS)
    carry = tl.zeros((ROWS, STATES), tl.float32)
    if HAS_LAST:
        carry = tl.load(grad_last + row[:, None] * states + j[None, :], mask=known, other=0.0)
    wide = row.to(tl.int64)
    for i in range(time):
        t = i if REVERSE else time - 1 - i
        live = (t < end)[:, None] & known
        place = (wide * time + t)[:, None] * states + j[None, :]
        slope = carry
        if HAS_GRAD:
            slope += tl.load(grad_h + place, mask=live, other=0.0)
        active = tl.load(y + place, mask=live, other=0.0)
        change = _times_derivative(slope, active, ACTIVATION)
        if EULER:
            if HAS_DTS:
                step = tl.load(dts + wide * time + t, mask=t < end, other=0.0)
                change = change * step[:, None]
                tl.store(grad_dts + wide * time + t, tl.sum(tl.where(live, slope * active, 0.0), 1), mask=row < rows)
            else:
                change = change * dt
        change = tl.where(live, change, 0.0)
        tl.store(delta + place, change, mask=known)
        moved = tl.dot(change, weights, input_precision=PRECISION)
        if EULER:
            moved += slope
        carry = tl.where(live, moved, carry)
    tl.store(grad_h0 + row[:, None] * states + j[None, :], carry, mask=known)
