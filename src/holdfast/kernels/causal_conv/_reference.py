"""The short causal convolution in torch's operators, on any device and in any dtype."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

UNBOUNDED = 1 << 40  # more steps than a row has


class ConvCall(NamedTuple):
    """The arguments of every version, all tensors in one dtype."""

    x: Tensor  # (batch, time, channels)
    weight: Tensor  # (channels, taps), the last for the present input
    bias: Tensor | None  # (channels,)
    state: Tensor | None  # (batch, channels, taps - 1), the oldest first
    lengths: Tensor | None  # (batch,)
    silu: bool


def causal_conv_reference(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "channels taps"],
    bias: Float[Tensor, " channels"] | None = None,
    state: Float[Tensor, "batch channels memory"] | None = None,
    *,
    silu: bool = False,
    lengths: Int64[Tensor, " batch"] | None = None,
    reach: Int64[Tensor, "batch time"] | None = None,
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch channels memory"]]:
    """What `holdfast.kernels.causal_conv` computes, in torch's own operators; differentiable, also twice.

    Args:
        x: inputs (batch, time, channels).
        weight: taps (channels, taps), the last for the present input.
        bias: (channels,), or None.
        state: the taps - 1 inputs before the first step (batch, channels, taps - 1), the oldest first; None is zero.
        silu: whether outputs go through silu.
        lengths: int64 (batch,): outputs after a row's length are 0, and its state is the one there.
        reach: int64 (batch, time): how many steps before a step count there, from `reach_of`; None is all.
    """
    time, memory = x.shape[1], weight.shape[1] - 1
    before = x.new_zeros(x.shape[0], x.shape[2], memory) if state is None else state
    inputs = torch.cat((before.transpose(1, 2), x), 1)
    # a few shifted products: torch's conv1d expects channels before time
    y = x * weight[:, memory]
    for k in range(memory):
        earlier = inputs[:, k : k + time]
        if reach is not None:
            earlier = torch.where((reach >= memory - k).unsqueeze(-1), earlier, torch.zeros_like(earlier))
        y = y + earlier * weight[:, k]
    if bias is not None:
        y = y + bias
    if silu:
        y = functional.silu(y)
    if lengths is None and reach is None:
        # no comparison of time and memory, which would bind an exporter's open length
        return y, inputs[:, time:].transpose(1, 2)
    last = last_inputs(x, state, lengths, memory, reach)
    if lengths is None:
        return y, last
    inside = torch.arange(time, device=x.device) < lengths.unsqueeze(-1)
    return torch.where(inside.unsqueeze(-1), y, torch.zeros_like(y)), last


def reach_of(resets: Bool[Tensor, "batch time"]) -> Int64[Tensor, "batch time"]:
    """How many steps before each step are not cut off by a reset; more than there are where none is."""
    t = torch.arange(resets.shape[1], device=resets.device)
    if resets.shape[1] == 0:
        return t.expand(resets.shape)
    return t - torch.where(resets, t, -UNBOUNDED).cummax(1).values


def last_inputs(
    x: Tensor, state: Tensor | None, lengths: Tensor | None, memory: int, reach: Tensor | None = None
) -> Tensor:
    """The `memory` inputs before each row's end (batch, channels, memory), those of the state where there are fewer.

    Zeros where `reach`, from `reach_of`, says that a reset followed.
    """
    last = _last_inputs(x, state, lengths, memory)
    if reach is None or x.shape[1] == 0:
        return last
    end = torch.full_like(reach[:, 0], x.shape[1]) if lengths is None else lengths.clamp(0, x.shape[1])
    seen = reach.gather(1, (end - 1).clamp(min=0).unsqueeze(-1))
    back = torch.arange(memory - 1, -1, -1, device=x.device)
    # a row without steps keeps its state
    kept = (back <= seen) | (end == 0).unsqueeze(-1)
    return torch.where(kept.unsqueeze(1), last, torch.zeros_like(last))


def _last_inputs(x: Tensor, state: Tensor | None, lengths: Tensor | None, memory: int) -> Tensor:
    before = x.new_zeros(x.shape[0], x.shape[2], memory) if state is None else state
    before, time = before.transpose(1, 2), x.shape[1]
    if lengths is None:
        return torch.cat((before, x[:, max(time - memory, 0) :]), 1)[:, min(time, memory) :].transpose(1, 2)
    # joined, inputs begin `memory` steps early: a row's last ones begin at its length
    at = lengths.clamp(0, time).unsqueeze(-1) + torch.arange(memory, device=x.device)
    chosen = torch.cat((before, x), 1).gather(1, at.unsqueeze(-1).expand(-1, -1, x.shape[2]))
    return chosen.transpose(1, 2)
