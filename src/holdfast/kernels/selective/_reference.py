"""The selective scan as a plain loop: any float dtype and device, differentiable by autograd."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional


class SelectiveCall(NamedTuple):
    """The arguments of every version, all tensors in one dtype."""

    u: Tensor  # (batch, time, channels)
    dt: Tensor  # shaped like u
    A: Tensor  # (channels, state)
    B: Tensor  # (batch, time, groups, state); the torch versions also take it without groups
    C: Tensor
    D: Tensor | None  # (channels,)
    z: Tensor | None  # shaped like u
    dt_bias: Tensor | None  # (channels,)
    h0: Tensor | None  # (batch, channels, state)
    lengths: Tensor | None  # (batch,)
    resets: Tensor | None  # (batch, time)
    softplus: bool
    reverse: bool


def by_channel(weights: Float[Tensor, "batch time *groups state"], channels: int) -> Tensor:
    """Weights of groups as weights that broadcast over channels: (batch, time, channels or 1, state)."""
    if weights.ndim == 3:
        return weights.unsqueeze(2)
    return weights.repeat_interleave(channels // max(weights.shape[2], 1), dim=2)


def step_sizes(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool) -> Tensor:
    """dt + dt_bias, through softplus where asked for."""
    raw = dt if dt_bias is None else dt + dt_bias
    return functional.softplus(raw) if dt_softplus else raw


def selective_reference(
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
    """What `holdfast.kernels.selective` computes, by a plain loop; arguments as there, all tensors in one dtype.

    Args:
        u: inputs (batch, time, channels).
        dt: step sizes (batch, time, channels).
        A: rates (channels, state).
        B: input weights (batch, time, state) or (batch, time, groups, state).
        C: output weights, shaped like B.
        D: direct path (channels,), or None.
        z: gate (batch, time, channels), or None.
        dt_bias: added to dt (channels,), or None.
        dt_softplus: whether softplus makes the step sizes positive.
        h0: state before the first step (batch, channels, state); None is zero.
        lengths: int64 (batch,): outputs after a row's length are 0, and its state stays as it was there.
        resets: bool (batch, time): the state before a marked step is zero.
        reverse: run from the last step to the first.
    """
    batch, time, channels = u.shape
    delta = step_sizes(dt, dt_bias, dt_softplus)
    h = u.new_zeros(batch, *A.shape) if h0 is None else h0
    outputs = [u.new_zeros(batch, channels)] * time
    # unbound once: the gradient of a step's slice has the size of all steps
    inputs, sizes = u.unbind(1), delta.unbind(1)
    b, c = by_channel(B, channels).unbind(1), by_channel(C, channels).unbind(1)
    gates = None if z is None else z.unbind(1)
    for t in reversed(range(time)) if reverse else range(time):
        # zero-order hold for A and Euler's step for B, as Mamba has it: dt B instead of (exp(dt A) - 1) / A B
        step = sizes[t].unsqueeze(-1)
        before = h if resets is None else torch.where(resets[:, t, None, None], torch.zeros_like(h), h)
        after = torch.exp(step * A) * before + step * inputs[t].unsqueeze(-1) * b[t]
        y = (after * c[t]).sum(-1)
        if D is not None:
            y = y + D * inputs[t]
        if gates is not None:
            y = y * functional.silu(gates[t])
        if lengths is not None:
            inside = t < lengths
            after = torch.where(inside[:, None, None], after, h)
            y = torch.where(inside[:, None], y, torch.zeros_like(y))
        h, outputs[t] = after, y
    return torch.stack(outputs, 1) if time else u.new_zeros(u.shape), h
