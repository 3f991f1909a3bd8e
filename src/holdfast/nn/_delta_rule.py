"""The gated delta rule over time (Yang et al. 2024): on a CPU the kernel in C++, elsewhere blocks of matrix products.

Both have a gradient of their own. A head's state S (keys, values) moves by S <- e^g S, then S <- S + beta k (v - S^T k)^T,
and o = S^T q. Inside a block with cumulated log decays c, gamma = e^c and Gamma_ij = e^(c_i - c_j) for i >= j, the
corrections x_i = beta_i (v_i - S^T k_i) solve

    (I + diag(beta) M) x = beta (v - gamma (k S)),  M = strictly lower part of (k k^T) o Gamma,

so that o = gamma (q S) + ((q k^T) o Gamma) x, and the block leaves e^(c_end) S + (e^(c_end - c) k)^T x. A few heads at a
time go through all blocks, so that what a block computes stays in the cache: products of one block of 6 heads run at 88
GFlop/s where those of all 16 blocks at once run at 61. Autograd of such a loop fills an array of the size of all blocks
for each of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.kernels import _delta_rule as _kernel  # noqa: F401  (defines torch.ops.holdfast.delta_rule_*)
from holdfast.kernels._common import autograd, checks, library

BLOCK = 64  # steps
MAX_NUMBERS = 1 << 16  # in an array of one block, a quarter of a megabyte in float32: six heads of 128
EPSILON = 1e-6  # below the root of a norm, as in transformers


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None,
    *,
    scale: float = 1.0,
    normalize: bool = False,
) -> tuple[Tensor, Tensor]:
    """Outputs (batch, time, heads, values) and the final state (batch, heads, keys, values).

    Args:
        q: queries (batch, time, heads, keys).
        k: keys, shaped like q.
        v: values (batch, time, heads, values).
        g: logarithm of the decay (batch, time, heads), at most 0.
        beta: how much of a value is corrected (batch, time, heads).
        state: before the first step (batch, heads, keys, values); None is 0.
        scale: of the outputs.
        normalize: whether queries and keys are divided by their norms.
    """
    plain = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if plain or autograd.has_tangent(q, k, v, g, beta, state):
        return delta_rule_reference(q, k, v, g, beta, state, scale=scale, normalize=normalize)
    if _in_cpp(q, k, v, g, beta, state):
        return autograd.apply(_NativeDeltaRule, q, k, v, g, beta, state, scale, normalize)
    return autograd.apply(_DeltaRule, q, k, v, g, beta, start_state(state, k, v), scale, normalize)


def start_state(state: Tensor | None, k: Tensor, v: Tensor) -> Tensor:
    """The state, or zeros where there is none."""
    return v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3]) if state is None else state


def _in_cpp(first: Tensor, k: Tensor, v: Tensor, *rest: Tensor | None) -> bool:
    """Whether the kernel takes these: one dtype on the CPU, and something to compute."""
    alike = all(x is None or (x.dtype is first.dtype and x.device.type == "cpu") for x in (first, k, v, *rest))
    return alike and first.dtype in checks.REAL and 0 not in (first.numel(), v.numel()) and not library.missing()


def delta_rule_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None,
    *,
    scale: float = 1.0,
    normalize: bool = False,
) -> tuple[Tensor, Tensor]:
    """`delta_rule` step by step: the truth of the tests, and what is differentiated twice.

    Args:
        q: queries (batch, time, heads, keys).
        k: keys, shaped like q.
        v: values (batch, time, heads, values).
        g: logarithm of the decay (batch, time, heads).
        beta: how much of a value is corrected (batch, time, heads).
        state: before the first step (batch, heads, keys, values); None is 0.
        scale: of the outputs.
        normalize: whether queries and keys are divided by their norms.
    """
    if normalize:
        q, k = (x * inverse_norm(x) for x in (q, k))
    state = start_state(state, k, v)
    outputs = []
    steps = [part.unbind(1) for part in (q, k, v, g, beta)]
    for q_t, k_t, v_t, g_t, beta_t in zip(*steps, strict=True):
        y, state = delta_step(q_t, k_t, v_t, g_t, beta_t, state)
        outputs.append(y)
    return scale * torch.stack(outputs, 1) if outputs else torch.zeros_like(v), state


def delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One step: outputs (batch, heads, values) and the state after it, of arguments without their dimension of time."""
    decayed = torch.exp(g)[..., None, None] * state
    x = beta[..., None, None] * (v.unsqueeze(-2) - k.unsqueeze(-2) @ decayed)
    after = torch.addcmul(decayed, k.unsqueeze(-1), x)
    return (q.unsqueeze(-2) @ after).squeeze(-2), after


def inverse_norm(x: Tensor) -> Tensor:
    """1 / |x| over the last dimension, safe at 0."""
    return torch.rsqrt((x * x).sum(-1, keepdim=True) + EPSILON)


class _Block(NamedTuple):
    """What backward reads of one block of steps of a few heads, (heads, steps, ...)."""

    q: Tensor
    k: Tensor
    norms: tuple[Tensor, Tensor] | None  # what q and k were multiplied with
    beta: Tensor  # (heads, steps, 1), as are the two below
    gamma: Tensor  # e^c
    left: Tensor  # e^(c_end - c)
    pairs: Tensor  # Gamma, 0 above the diagonal
    gram: Tensor  # M
    scores: Tensor  # (q k^T) o Gamma
    inverse: Tensor  # (I + diag(beta) M)^-1
    rest: Tensor  # v - gamma (k S)
    x: Tensor
    state: Tensor  # S, before the block (heads, keys, values)


class _NativeDeltaRule(torch.autograd.Function):
    """Keeps, beside its arguments, one state in 16."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor | None,
        scale: float,
        normalize: bool,
    ) -> tuple[Tensor, Tensor]:
        inputs, save = (q, k, v, g, beta, state), any(ctx.needs_input_grad)
        y, last, saved = torch.ops.holdfast.delta_rule_forward(*inputs, scale, normalize, save)
        ctx.save_for_backward(*inputs, saved)
        ctx.how = {"scale": scale, "normalize": normalize}
        # zeros of a state's size are filled by torch's threads, which waited 16 times as long as all else on a busy machine
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        (*inputs, saved), need = ctx.saved_tensors, ctx.needs_input_grad[:6]
        if autograd.again():
            outputs = delta_rule_reference(*inputs, **ctx.how)
            return *autograd.differentiable_gradients(outputs, (grad_y, grad_last), inputs, need), None, None
        grad_y = torch.zeros_like(inputs[2]) if grad_y is None else grad_y
        grads = torch.ops.holdfast.delta_rule_backward(*inputs, *ctx.how.values(), saved, grad_y, grad_last)
        return *(grad if n else None for grad, n in zip(grads, need, strict=True)), None, None


class _DeltaRule(torch.autograd.Function):
    """Keeps a `_Block` of every block, some ten arrays of the size of the values."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, scale: float, normalize: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q, k, v, g, beta, state)
        ctx.how, ctx.blocks = {"scale": scale, "normalize": normalize}, {}
        y, last = torch.empty_like(v, memory_format=torch.contiguous_format), torch.empty_like(state)
        for row, heads in _parts(v):
            S = state[row, heads]
            for steps in _steps(v):
                q_b, k_b, v_b, g_b, beta_b = (_one(x, row, steps, heads) for x in (q, k, v, g, beta))
                out, S, block = _forward(q_b, k_b, v_b, g_b, beta_b, S, normalize)
                _one(y, row, steps, heads).copy_(out.mul_(scale))
                if any(ctx.needs_input_grad):
                    ctx.blocks[row, heads.start, steps.start] = block
            last[row, heads] = S
        return y, last

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        inputs, need = ctx.saved_tensors, ctx.needs_input_grad[:6]
        if autograd.again():
            outputs = delta_rule_reference(*inputs, **ctx.how)
            return *autograd.differentiable_gradients(outputs, (grad_y, grad_last), inputs, need), None, None
        grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
        for row, heads in _parts(grad_y):
            dS = grad_last[row, heads]
            for steps in reversed(_steps(grad_y)):
                block = ctx.blocks[row, heads.start, steps.start]
                *parts, dS = _backward(block, ctx.how["scale"] * _one(grad_y, row, steps, heads), dS)
                for grad, part in zip(grads[:5], parts, strict=True):
                    _one(grad, row, steps, heads).copy_(part)
            grads[5][row, heads] = dS
        return *(grad if n else None for grad, n in zip(grads, need, strict=True)), None, None


def _parts(v: Tensor) -> list[tuple[int, slice]]:
    """Rows of the batch and slices of heads that go through all blocks together."""
    batch, _, heads, width = v.shape
    count = max(1, MAX_NUMBERS // (BLOCK * width))
    return [(row, slice(first, min(first + count, heads))) for row in range(batch) for first in range(0, heads, count)]


def _steps(v: Tensor) -> list[slice]:
    return [slice(first, min(first + BLOCK, v.shape[1])) for first in range(0, v.shape[1], BLOCK)]


def _one(x: Tensor, row: int, steps: slice, heads: slice) -> Tensor:
    """A block of (batch, time, heads, ...) as (heads, steps, ...), a view."""
    return x[row, steps, heads].transpose(0, 1)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, S: Tensor, normalize: bool
) -> tuple[Tensor, Tensor, _Block]:
    """Outputs of a block, the state after it, and what backward reads."""
    norms = (inverse_norm(q), inverse_norm(k)) if normalize else None
    q, k = (q, k) if norms is None else (q * norms[0], k * norms[1])
    beta, c = beta.unsqueeze(-1), g.cumsum(-1)
    gamma, left = torch.exp(c).unsqueeze(-1), torch.exp(c[:, -1:] - c).unsqueeze(-1)
    # above the diagonal the exponents are positive and may overflow
    pairs = (c.unsqueeze(-1) - c.unsqueeze(-2)).tril_().exp_().tril_()
    gram = torch.bmm(k, k.mT).mul_(pairs).tril_(-1)
    scores = torch.bmm(q, k.mT).mul_(pairs)
    eye = torch.eye(c.shape[1], dtype=v.dtype, device=v.device)
    inverse = torch.linalg.solve_triangular(beta * gram, eye, upper=False, unitriangular=True)
    rest = torch.baddbmm(v, gamma * k, S, alpha=-1)
    x = torch.bmm(inverse, beta * rest)
    y = torch.baddbmm(torch.bmm(scores, x), gamma * q, S)
    after = torch.baddbmm(gamma[:, -1:] * S, (left * k).mT, x)
    return y, after, _Block(q, k, norms, beta, gamma, left, pairs, gram, scores, inverse, rest, x, S)


def _backward(block: _Block, dy: Tensor, after: Tensor) -> tuple[Tensor, ...]:
    """Gradients of q, k, v, g, beta and of the state before a block; `after` is that of the state after it."""
    q, k, norms, beta, gamma, left, pairs, gram, scores, inverse, rest, x, S = block
    dx = torch.baddbmm(torch.bmm(scores.mT, dy), left * k, after)
    solved = torch.bmm(inverse.mT, dx)  # adjoint of beta rest
    dv = beta * solved
    read_q, read_k, wrote = torch.bmm(dy, S.mT), torch.bmm(dv, S.mT), torch.bmm(x, after.mT)
    end = gamma[:, -1:]
    dS = torch.baddbmm(end * after, (gamma * q).mT, dy).baddbmm_((gamma * k).mT, dv, alpha=-1)
    d_gram = torch.bmm(solved, x.mT).neg_().tril_(-1)  # of diag(beta) M
    d_beta = (solved * rest).sum(-1) + (d_gram * gram).sum(-1)
    d_gram.mul_(beta)
    d_scores = torch.bmm(dy, x.mT).tril_()
    # logarithms of decays: the gradient of each is that of what it multiplies, times that
    moved = (d_scores * scores).addcmul_(d_gram, gram)
    of_left = left.squeeze(-1) * (k * wrote).sum(-1)
    dc = moved.sum(-1) - moved.sum(-2) - of_left
    dc += gamma.squeeze(-1) * ((q * read_q).sum(-1) - (k * read_k).sum(-1))
    dc[:, -1] += of_left.sum(-1) + end.flatten() * (S * after).sum((-2, -1))
    d_gram.mul_(pairs)
    d_scores.mul_(pairs)
    dq = torch.bmm(d_scores, k).addcmul_(gamma, read_q)
    dk = torch.bmm(d_gram + d_gram.mT, k).baddbmm_(d_scores.mT, q)
    dk.addcmul_(gamma, read_k, value=-1).addcmul_(left, wrote)
    if norms is not None:  # y = x r: dx = r (dy - y (y . dy))
        dq, dk = (r * (d - y * (y * d).sum(-1, keepdim=True)) for r, d, y in zip(norms, (dq, dk), (q, k), strict=True))
    return dq, dk, dv, dc.flip(-1).cumsum(-1).flip(-1), d_beta, dS
