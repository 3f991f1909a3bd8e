"""The selective scan in torch operations on any device, block of steps by block of steps.

Only one block of the discretized (batch, time, channels, state) tensors exists at a time: autograd keeps the state before
each block and computes the rest again in backward.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from holdfast.kernels.scan import scan
from holdfast.kernels.selective._reference import SelectiveCall, by_channel, step_sizes

# the scan inside takes 3 sqrt(64) operations for 64 steps, and one state in 64 is kept: longer blocks would hold more of
# the large tensors at a time, shorter ones keep more states
BLOCK = 64


class _Steps(NamedTuple):
    """The sequences of some steps."""

    u: Tensor
    delta: Tensor
    B: Tensor
    C: Tensor
    lengths: Tensor | None  # steps of this block before each row's end
    resets: Tensor | None


def _block(steps: _Steps, A: Tensor, state: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """C h of some steps, and the state after them."""
    u, delta, B, C, lengths, resets = steps
    batch, time, channels = u.shape
    # (batch, steps, channels, state): `state` times as large as u, so it exists for one block only
    factor = torch.exp(delta.unsqueeze(-1) * A)
    if resets is not None:
        factor = torch.where(resets[:, :, None, None], torch.zeros_like(factor), factor)
    drive = (delta * u).unsqueeze(-1) * by_channel(B, channels)
    flat = (batch, time, A.numel())
    h, last = scan(
        factor.reshape(flat), drive.reshape(flat), state.flatten(1), lengths=lengths, reverse=reverse, backend="chunked"
    )
    return (h.reshape(drive.shape) * by_channel(C, channels)).sum(-1), last.reshape(state.shape)


def selective_chunked(call: SelectiveCall) -> tuple[Tensor, Tensor]:
    """What `selective_reference` gives; differentiable, also twice.

    A reset multiplies the state by zero here: one that is not finite becomes NaN instead of zero.
    """
    u, dt, A, B, C, D, z, dt_bias, h0, lengths, resets, dt_softplus, reverse = call
    time = u.shape[1]
    delta = step_sizes(dt, dt_bias, dt_softplus)
    state = u.new_zeros(u.shape[0], *A.shape) if h0 is None else h0
    parts: list[Tensor] = []
    starts = range(0, time, BLOCK)
    # cut at once: the gradient of one slice has the size of all steps
    pieces = [x.split(BLOCK, 1) for x in (u, delta, B, C)]
    # transforms of torch.func do not know checkpoints
    again = torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
    for start in reversed(starts) if reverse else starts:
        inside = None if lengths is None else (lengths - start).clamp(0, min(BLOCK, time - start))
        marks = None if resets is None else resets[:, start : start + BLOCK]
        at = start // BLOCK
        steps = _Steps(pieces[0][at], pieces[1][at], pieces[2][at], pieces[3][at], inside, marks)
        if again:
            # nothing is drawn at random: the generators need not be set back, which reads their state from the device
            y, state = checkpoint(_block, steps, A, state, reverse, use_reentrant=False, preserve_rng_state=False)
        else:
            y, state = _block(steps, A, state, reverse)
        parts.append(y)
    # u * 0 and not zeros: without steps the result still belongs to u's graph
    y = torch.cat(parts[::-1] if reverse else parts, 1) if parts else u * 0
    if D is not None:
        y = y + D * u
    if z is not None:
        y = y * functional.silu(z)
    if lengths is not None:
        inside = torch.arange(time, device=u.device) < lengths.unsqueeze(-1)
        y = torch.where(inside.unsqueeze(-1), y, torch.zeros_like(y))
    return y, state
