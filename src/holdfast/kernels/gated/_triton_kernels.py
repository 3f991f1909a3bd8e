"""LSTM, GRU and the GRU in continuous time as Triton programs: a block of rows each, all of time in one launch.

As in the RNN's kernels, the input's part of the gates comes from one product over all of time, and so do the gradients of
the weights. Backward gets the sums inside the gates, which one product over all of time makes again from the states.

    LSTM           gates i, f, g, o: c' = sigmoid(f) c + sigmoid(i) tanh(g),  h' = sigmoid(o) tanh(c')
    GRU            gates r, z, n, and W_n h + b_n apart: h' = n + z (h - n),  n = tanh(n_x + r (W_n h + b_n))
    continuous     gates z, r, c: h' = h + step z (c - h),  c = tanh(c_x + U_c (r h))
"""

from __future__ import annotations

import triton
import triton.language as tl

from holdfast.kernels._common._triton_functions import ends, tanh


@triton.jit
def _matrix(w, gate, states, j, TURNED: tl.constexpr):
    """The square of one gate in the stacked matrix, [to, from], or [from, to] where TURNED."""
    across = (j < states)[:, None] & (j < states)[None, :]
    if TURNED:
        place = (gate * states + j[None, :]) * states + j[:, None]
    else:
        place = (gate * states + j[:, None]) * states + j[None, :]
    return tl.load(w + place, mask=across, other=0.0)


@triton.jit
def gated_forward_kernel(
    drive, w, bias, h0, c0, steps, lengths, h, cells, last, c_last, rows, time, states, step,
    CELL: tl.constexpr, GATES: tl.constexpr, HAS_H0: tl.constexpr, HAS_C0: tl.constexpr, HAS_STEPS: tl.constexpr,
    HAS_LENGTHS: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """States (and cells) at all steps, 0 after a row's end, and the last ones."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, STATES)
    known = (row < rows)[:, None] & (j < states)[None, :]
    first = row[:, None] * states + j[None, :]
    w0, w1, w2 = _matrix(w, 0, states, j, True), _matrix(w, 1, states, j, True), _matrix(w, 2, states, j, True)
    end = ends(lengths, row, rows, time, HAS_LENGTHS)
    state = tl.zeros((ROWS, STATES), tl.float32)
    cell = state
    if HAS_H0:
        state = tl.load(h0 + first, mask=known, other=0.0)
    if HAS_C0:
        cell = tl.load(c0 + first, mask=known, other=0.0)
    if CELL == "lstm":
        w3 = _matrix(w, 3, states, j, True)
    if CELL == "gru":
        inner = tl.load(bias + j, mask=j < states, other=0.0)[None, :]
    wide = row.to(tl.int64)
    for i in range(time):
        t = time - 1 - i if REVERSE else i
        live = (t < end)[:, None] & known
        source = (wide * time + t)[:, None] * (GATES * states) + j[None, :]
        target = (wide * time + t)[:, None] * states + j[None, :]
        x0 = tl.load(drive + source, mask=live, other=0.0) + tl.dot(state, w0, input_precision=PRECISION)
        x1 = tl.load(drive + source + states, mask=live, other=0.0) + tl.dot(state, w1, input_precision=PRECISION)
        x2 = tl.load(drive + source + 2 * states, mask=live, other=0.0)
        if CELL == "lstm":
            x2 += tl.dot(state, w2, input_precision=PRECISION)
            x3 = tl.load(drive + source + 3 * states, mask=live, other=0.0)
            x3 += tl.dot(state, w3, input_precision=PRECISION)
            new_cell = tl.sigmoid(x1) * cell + tl.sigmoid(x0) * tanh(x2)
            moved = tl.sigmoid(x3) * tanh(new_cell)
            tl.store(cells + target, tl.where(live, new_cell, 0.0), mask=known)
            cell = tl.where(live, new_cell, cell)
        elif CELL == "gru":
            hidden = tl.dot(state, w2, input_precision=PRECISION) + inner
            content = tanh(x2 + tl.sigmoid(x0) * hidden)
            moved = content + tl.sigmoid(x1) * (state - content)
        else:
            content = tanh(x2 + tl.dot(tl.sigmoid(x1) * state, w2, input_precision=PRECISION))
            size = step
            if HAS_STEPS:
                size = tl.load(steps + wide * time + t, mask=t < end, other=0.0)[:, None]
            moved = state + size * tl.sigmoid(x0) * (content - state)
        tl.store(h + target, tl.where(live, moved, 0.0), mask=known)
        state = tl.where(live, moved, state)
    tl.store(last + first, state, mask=known)
    if CELL == "lstm":
        tl.store(c_last + first, cell, mask=known)


@triton.jit
def gated_backward_kernel(
    w, sums, before, cells, cells_before, steps, lengths, grad_h, grad_last, grad_c, delta, grad_h0, grad_c0,
    grad_steps, rows, time, states, step,
    CELL: tl.constexpr, PARTS: tl.constexpr, HAS_GRAD: tl.constexpr, HAS_LAST: tl.constexpr, HAS_C: tl.constexpr,
    HAS_STEPS: tl.constexpr, HAS_LENGTHS: tl.constexpr, REVERSE: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Gradients of the PARTS sums inside the gates at all steps, of the first state and cell, and of the steps."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, STATES)
    known = (row < rows)[:, None] & (j < states)[None, :]
    first = row[:, None] * states + j[None, :]
    w0, w1, w2 = _matrix(w, 0, states, j, False), _matrix(w, 1, states, j, False), _matrix(w, 2, states, j, False)
    end = ends(lengths, row, rows, time, HAS_LENGTHS)
    carry = tl.zeros((ROWS, STATES), tl.float32)
    of_cell = carry
    if HAS_LAST:
        carry = tl.load(grad_last + first, mask=known, other=0.0)
    if HAS_C:
        of_cell = tl.load(grad_c + first, mask=known, other=0.0)
    if CELL == "lstm":
        w3 = _matrix(w, 3, states, j, False)
    wide = row.to(tl.int64)
    for i in range(time):
        t = i if REVERSE else time - 1 - i
        live = (t < end)[:, None] & known
        place = (wide * time + t)[:, None] * states + j[None, :]
        source = (wide * time + t)[:, None] * (PARTS * states) + j[None, :]
        slope = carry
        if HAS_GRAD:
            slope += tl.load(grad_h + place, mask=live, other=0.0)
        x0 = tl.sigmoid(tl.load(sums + source, mask=live, other=0.0))
        x1 = tl.sigmoid(tl.load(sums + source + states, mask=live, other=0.0))
        x2 = tl.load(sums + source + 2 * states, mask=live, other=0.0)
        if CELL == "lstm":
            content = tanh(x2)
            out = tl.sigmoid(tl.load(sums + source + 3 * states, mask=live, other=0.0))
            shown = tanh(tl.load(cells + place, mask=live, other=0.0))
            along = of_cell + slope * out * (1.0 - shown * shown)
            old = tl.load(cells_before + place, mask=live, other=0.0)
            d0 = tl.where(live, along * content * x0 * (1.0 - x0), 0.0)
            d1 = tl.where(live, along * old * x1 * (1.0 - x1), 0.0)
            d2 = tl.where(live, along * x0 * (1.0 - content * content), 0.0)
            d3 = tl.where(live, slope * shown * out * (1.0 - out), 0.0)
            tl.store(delta + source + 3 * states, d3, mask=known)
            of_cell = tl.where(live, along * x1, of_cell)
            moved = tl.dot(d2, w2, input_precision=PRECISION) + tl.dot(d3, w3, input_precision=PRECISION)
        elif CELL == "gru":
            hidden = tl.load(sums + source + 3 * states, mask=live, other=0.0)
            content = tanh(x2 + x0 * hidden)
            d2 = tl.where(live, slope * (1.0 - x1) * (1.0 - content * content), 0.0)
            d3 = d2 * x0
            tl.store(delta + source + 3 * states, d3, mask=known)
            d0 = d3 * hidden * (1.0 - x0)
            old = tl.load(before + place, mask=live, other=0.0)
            d1 = tl.where(live, slope * (old - content) * x1 * (1.0 - x1), 0.0)
            moved = slope * x1 + tl.dot(d3, w2, input_precision=PRECISION)
        else:
            content = tanh(x2)
            old = tl.load(before + place, mask=live, other=0.0)
            size = step
            if HAS_STEPS:
                size = tl.load(steps + wide * time + t, mask=t < end, other=0.0)[:, None]
                toward = tl.where(live, slope * x0 * (content - old), 0.0)
                tl.store(grad_steps + wide * time + t, tl.sum(toward, 1), mask=row < rows)
            d2 = tl.where(live, slope * size * x0 * (1.0 - content * content), 0.0)
            along = tl.dot(d2, w2, input_precision=PRECISION)
            d0 = tl.where(live, slope * size * (content - old) * x0 * (1.0 - x0), 0.0)
            d1 = tl.where(live, along * old * x1 * (1.0 - x1), 0.0)
            moved = slope - slope * size * x0 + along * x1
        tl.store(delta + source, d0, mask=known)
        tl.store(delta + source + states, d1, mask=known)
        tl.store(delta + source + 2 * states, d2, mask=known)
        moved += tl.dot(d0, w0, input_precision=PRECISION) + tl.dot(d1, w1, input_precision=PRECISION)
        carry = tl.where(live, moved, carry)
    tl.store(grad_h0 + first, carry, mask=known)
    if CELL == "lstm":
        tl.store(grad_c0 + first, of_cell, mask=known)
