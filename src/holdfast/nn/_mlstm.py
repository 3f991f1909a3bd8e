"""The mLSTM of xLSTM over time in blocks of matrix products, with a gradient of its own (Beck et al. 2024).

A head's memory C (keys, values) and normaliser n (keys) move by C <- f C + e^i k v^T and n <- f n + e^i k with a log gate i
and f = sigmoid of its preactivation; h = C^T q / (max(|n . q|, 1)). Both are kept divided by e^m, m <- max(log f + m, i), so
that no exponent overflows. Inside a block with cumulated log f, b, and the stabilisers M_t = m after step t,

    D_tj = e^(b_t - b_j + i_j - M_t) for t >= j,  r_t = e^(b_t + m - M_t),
    h = (r (q C) + ((q k^T) o D) v) / (max(|r (q n) + sum_j ((q k^T) o D)_tj|, e^-M) + epsilon),

and the block leaves C' = r_L C + (D_L k)^T v, n' = r_L n + sum_j D_Lj k_j, m' = M_L. A few heads at a time go through all
blocks, so that what a block computes stays in the cache. Autograd of transformers' loop writes each block's state into one
array of all of them, and its backward reads and writes that whole array once a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.kernels._common import autograd

BLOCK = 64  # steps
MAX_NUMBERS = 1 << 16  # in an array of one block, a quarter of a megabyte in float32: four heads of 256

State = tuple[Tensor, Tensor, Tensor]


def mlstm(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State | None = None, *, epsilon: float = 1e-6
) -> tuple[Tensor, State]:
    """Outputs (batch, heads, time, values) and the state after the last step, all in float32 or float64.

    Args:
        q: queries (batch, heads, time, keys); they are divided by the root of the number of keys.
        k: keys, shaped like q.
        v: values (batch, heads, time, values).
        i: log input gates (batch, heads, time).
        f: preactivations of the forget gates (batch, heads, time).
        state: C (batch, heads, keys, values), n (batch, heads, keys) and m (batch, heads, 1) before the first step; None is 0.
        epsilon: added to the divisor.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k, v, i, f = (x.to(dtype) for x in (q, k, v, i, f))
    q, f = q * q.shape[-1] ** -0.5, functional.logsigmoid(f)
    C, n, m = (x.to(dtype) for x in (_rest(k, v) if state is None else state))
    if q.shape[2] == 1:
        q, k, v, i, f = (x.squeeze(2) for x in (q, k, v, i, f))
        y, after = mlstm_step(q, k, v, i, f, (C, n, m), epsilon=epsilon)
        return y.unsqueeze(2), after
    plain = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if plain or autograd.has_tangent(q, k, v, i, f, C, n, m):
        return mlstm_reference(q, k, v, i, f, (C, n, m), epsilon=epsilon)
    y, C, n, m = autograd.apply(_MLSTM, q, k, v, i, f, C, n, m, epsilon)
    return y, (C, n, m)


def _rest(k: Tensor, v: Tensor) -> State:
    batch, heads, _, keys = k.shape
    return v.new_zeros(batch, heads, keys, v.shape[-1]), v.new_zeros(batch, heads, keys), v.new_zeros(batch, heads, 1)


def mlstm_reference(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State, *, epsilon: float
) -> tuple[Tensor, State]:
    """`mlstm` step by step, of scaled queries and log forget gates: the truth of the tests, and what is differentiated twice.

    Args:
        q: queries (batch, heads, time, keys), scaled.
        k: keys, shaped like q.
        v: values (batch, heads, time, values).
        i: log input gates (batch, heads, time).
        f: log forget gates (batch, heads, time).
        state: before the first step.
        epsilon: added to the divisor.
    """
    outputs = []
    for q_t, k_t, v_t, i_t, f_t in zip(*(x.unbind(2) for x in (q, k, v, i, f)), strict=True):
        y, state = mlstm_step(q_t, k_t, v_t, i_t, f_t, state, epsilon=epsilon)
        outputs.append(y)
    return (torch.stack(outputs, 2) if outputs else torch.zeros_like(v)), state


def mlstm_step(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State, *, epsilon: float
) -> tuple[Tensor, State]:
    """One step: outputs (batch, heads, values) and the state after it, of arguments without their dimension of time."""
    C, n, m = state
    i, f = i.unsqueeze(-1), f.unsqueeze(-1)
    after = torch.maximum(f + m, i)
    forget, gain = torch.exp(f + m - after), torch.exp(i - after) * k
    C = torch.addcmul(forget.unsqueeze(-1) * C, gain.unsqueeze(-1), v.unsqueeze(-2))
    n = torch.addcmul(gain, forget, n)
    divisor = torch.maximum((q * n).sum(-1, keepdim=True).abs(), torch.exp(-after)) + epsilon
    return (q.unsqueeze(-2) @ C).squeeze(-2) / divisor, (C, n, after)


class _Block(NamedTuple):
    """What backward reads of one block of steps of a few heads, (heads, steps, ...)."""

    q: Tensor
    k: Tensor
    v: Tensor
    pairs: Tensor  # D, 0 above the diagonal
    scores: Tensor  # (q k^T) o D
    kept: Tensor  # r (heads, steps, 1), as are the three below
    dot: Tensor  # what the divisor is the size of
    floor: Tensor  # e^-M
    divisor: Tensor
    top: Tensor  # index of the largest exponent of each step; the number of steps where that is the state's
    y: Tensor
    C: Tensor  # before the block
    n: Tensor  # (heads, 1, keys)


class _MLSTM(torch.autograd.Function):
    """Keeps a `_Block` of every block, some eight arrays of the size of the values."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, C: Tensor, n: Tensor, m: Tensor, epsilon: float
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(q, k, v, i, f, C, n, m)
        ctx.epsilon, ctx.blocks = epsilon, {}
        y, last = torch.empty_like(v, memory_format=torch.contiguous_format), [torch.empty_like(x) for x in (C, n, m)]
        for row, heads in _parts(v):
            state = [x[row, heads] for x in (C, n, m)]
            for steps in _steps(v):
                q_b, k_b, v_b, i_b, f_b = (x[row, heads, steps] for x in (q, k, v, i, f))
                out, state, block = _forward(q_b, k_b, v_b, i_b, f_b, state, epsilon)
                y[row, heads, steps] = out
                if any(ctx.needs_input_grad):
                    ctx.blocks[row, heads.start, steps.start] = block
            for end, part in zip(last, state, strict=True):
                end[row, heads] = part
        return y, *last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, need = ctx.saved_tensors, ctx.needs_input_grad[:8]
        if autograd.again():
            q, k, v, i, f, *start = inputs
            y, state = mlstm_reference(q, k, v, i, f, (start[0], start[1], start[2]), epsilon=ctx.epsilon)
            return *autograd.differentiable_gradients((y, *state), grads, inputs, need), None
        made = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
        for row, heads in _parts(grads[0]):
            after = [x[row, heads] for x in grads[1:]]
            for steps in reversed(_steps(grads[0])):
                block = ctx.blocks[row, heads.start, steps.start]
                parts, after = _backward(block, grads[0][row, heads, steps], after, ctx.epsilon)
                for grad, part in zip(made[:5], parts, strict=True):
                    grad[row, heads, steps] = part
            for grad, part in zip(made[5:], after, strict=True):
                grad[row, heads] = part
        return *(grad if n else None for grad, n in zip(made, need, strict=True)), None


def _parts(v: Tensor) -> list[tuple[int, slice]]:
    """Rows of the batch and slices of heads that go through all blocks together."""
    batch, heads, _, width = v.shape
    count = max(1, MAX_NUMBERS // (BLOCK * width))
    return [(row, slice(first, min(first + count, heads))) for row in range(batch) for first in range(0, heads, count)]


def _steps(v: Tensor) -> list[slice]:
    return [slice(first, min(first + BLOCK, v.shape[2])) for first in range(0, v.shape[2], BLOCK)]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: list[Tensor], epsilon: float
) -> tuple[Tensor, list[Tensor], _Block]:
    """Outputs of a block, the state after it, and what backward reads."""
    C, n, m = state
    b = f.cumsum(-1)
    size = b.shape[-1]
    above = torch.ones(size, size, dtype=torch.bool, device=q.device).triu_(1)
    exponents = (b.unsqueeze(-1) + (i - b).unsqueeze(-2)).masked_fill_(above, -torch.inf)
    # the state's exponent behind those of the steps: the last index is the state's
    most, top = torch.cat([exponents, (b + m).unsqueeze(-1)], -1).max(-1, keepdim=True)
    pairs, kept = exponents.sub_(most).exp_(), torch.exp((b + m).unsqueeze(-1) - most)
    scores = torch.bmm(q, k.mT).mul_(pairs)
    n_row = n.unsqueeze(-2)
    dot = torch.addcmul(scores.sum(-1, keepdim=True), kept, (q * n_row).sum(-1, keepdim=True))
    floor = torch.exp(-most)
    divisor = torch.maximum(dot.abs(), floor) + epsilon
    y = torch.baddbmm(torch.bmm(scores, v), kept * q, C).div_(divisor)
    weighed = pairs[:, -1].unsqueeze(-1) * k
    after = torch.baddbmm(kept[:, -1:] * C, weighed.mT, v)
    n_after = torch.addcmul(weighed.sum(1), kept[:, -1], n)
    block = _Block(q, k, v, pairs, scores, kept, dot, floor, divisor, top, y, C, n_row)
    return y, [after, n_after, most[:, -1]], block


def _backward(
    block: _Block, dy: Tensor, state: list[Tensor], epsilon: float
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Gradients of q, k, v, i, f of a block and of the state before it; `state` has those of the state after it."""
    dC, dn, dm = state
    q, k, v, pairs, scores, kept, dot, floor, divisor, top, y, C, n = block
    last, end = pairs[:, -1].unsqueeze(-1), kept[:, -1:]
    dy = dy / divisor  # of what is divided
    d_divisor = -(dy * y).sum(-1, keepdim=True)
    d_dot = torch.where(dot.abs() > floor, d_divisor * torch.sign(dot), 0)
    d_scores = torch.baddbmm(d_dot, dy, v.mT).tril_()
    read, wrote = torch.bmm(dy, C.mT).addcmul_(d_dot, n), torch.bmm(v, dC.mT) + dn.unsqueeze(1)
    dv = torch.bmm(scores.mT, dy).baddbmm_(last * k, dC)
    # exponents: the gradient of each is that of what it multiplies, times that
    moved = d_scores * scores
    of_last = last * (k * wrote).sum(-1, keepdim=True)
    moved[:, -1] += of_last.squeeze(-1)
    of_state = kept * (q * read).sum(-1, keepdim=True)
    carried = end * ((C * dC).sum((1, 2), keepdim=True) + (n * dn.unsqueeze(1)).sum(-1, keepdim=True))
    of_state[:, -1:] += carried
    # a stabiliser cancels in h but for epsilon; what is left of the last one is that of the state's own scale
    d_most = d_divisor * epsilon
    d_most[:, -1:] += dm.unsqueeze(1) - of_last.sum(1, keepdim=True) - carried
    size = pairs.shape[-1]
    padded = torch.cat([moved, of_state], -1).scatter_add_(-1, top, d_most)
    moved, of_state = padded[..., :size], padded[..., size]
    di = moved.sum(-2)
    db = moved.sum(-1) + of_state - di
    d_scores.mul_(pairs)
    dq = torch.bmm(d_scores, k).addcmul_(kept, read)
    dk = torch.bmm(d_scores.mT, q).addcmul_(last, wrote)
    before = torch.baddbmm(end * dC, (kept * q).mT, dy)
    n_before = torch.addcmul((kept * d_dot * q).sum(1), end.squeeze(1), dn)
    return (dq, dk, dv, di, db.flip(-1).cumsum(-1).flip(-1)), [before, n_before, of_state.sum(-1, keepdim=True)]
