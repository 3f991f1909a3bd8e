"""The selective scan in torch operations on any device, block of steps by block of steps.

Only one block of the discretised (batch, time, channels, state) tensors exists at a time: autograd keeps the state before
each block and computes the rest again in backward.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from holdfast.kernels.scan import scan
from holdfast.kernels.selective._reference import by_channel, step_sizes

BLOCK = 64  # 8 + 8 steps of the scan inside, and one state kept for 64


def _block(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, lengths: Tensor | None,
    resets: Tensor | None, reverse: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """C h of some steps, and the state after them."""
    batch, steps, channels = u.shape
    factor = torch.exp(delta.unsqueeze(-1) * A)
    if resets is not None:
        factor = torch.where(resets[:, :, None, None], torch.zeros_like(factor), factor)
    drive = (delta * u).unsqueeze(-1) * by_channel(B, channels)
    flat = (batch, steps, A.numel())
    h, last = scan(
        factor.reshape(flat), drive.reshape(flat), state.flatten(1), lengths=lengths, reverse=reverse, backend="chunked"
    )
    return (h.reshape(drive.shape) * by_channel(C, channels)).sum(-1), last.reshape(state.shape)


def selective_chunked(
    u: Float[Tensor, "batch time channels"],
    dt: Float[Tensor, "batch time channels"],
    A: Float[Tensor, "channels state"],
    B: Float[Tensor, "batch time *groups state"],
    C: Float[Tensor, "batch time *groups state"],
    D: Float[Tensor, " channels"] | None = None,
    *,
    z: Float[Tensor, "batch time channels"] | None = None,
    dt_bias: Float[Tensor, " channels"] | None = None,
    dt_softplus: bool = False,
    h0: Float[Tensor, "batch channels state"] | None = None,
    lengths: Int64[Tensor, " batch"] | None = None,
    resets: Bool[Tensor, "batch time"] | None = None,
    reverse: bool = False,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch channels state"]]:
    """What `selective_reference` gives; differentiable, also twice.

    A reset multiplies the state by zero here: one that is not finite becomes NaN instead of zero.
    """
    time = u.shape[1]
    delta = step_sizes(dt, dt_bias, dt_softplus)
    state = u.new_zeros(u.shape[0], *A.shape) if h0 is None else h0
    parts: list[Tensor] = []
    starts = range(0, time, BLOCK)
    # transforms of torch.func do not know checkpoints
    again = torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
    for start in reversed(starts) if reverse else starts:
        here = slice(start, start + BLOCK)
        inside = None if lengths is None else (lengths - start).clamp(0, min(BLOCK, time - start))
        marks = None if resets is None else resets[:, here]
        block = (u[:, here], delta[:, here], A, B[:, here], C[:, here], state, inside, marks, reverse)
        y, state = checkpoint(_block, *block, use_reentrant=False) if again else _block(*block)
        parts.append(y)
    y = torch.cat(parts[::-1] if reverse else parts, 1) if parts else u * 0
    if D is not None:
        y = y + D * u
    if z is not None:
        y = y * functional.silu(z)
    if lengths is not None:
        inside = torch.arange(time, device=u.device) < lengths.unsqueeze(-1)
        y = torch.where(inside.unsqueeze(-1), y, torch.zeros_like(y))
    return y, state
