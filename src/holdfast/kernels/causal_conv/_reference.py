"""The short causal convolution in torch's operators, on any device and in any dtype."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional


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
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "batch channels memory"]]:
    """What `holdfast.kernels.causal_conv` computes, in torch's own operators; differentiable, also twice.

    Args:
        x: inputs (batch, time, channels).
        weight: taps (channels, taps), the last for the present input.
        bias: (channels,), or None.
        state: the taps - 1 inputs before the first step (batch, channels, taps - 1), the oldest first; None is zero.
        silu: whether outputs go through silu.
        lengths: int64 (batch,): outputs after a row's length are 0, and its state is the one there.
    """
    time, memory = x.shape[1], weight.shape[1] - 1
    before = x.new_zeros(x.shape[0], x.shape[2], memory) if state is None else state
    inputs = torch.cat((before.transpose(1, 2), x), 1)
    # a few shifted products: torch's conv1d expects channels before time
    y = x * weight[:, memory]
    for k in range(memory):
        y = y + inputs[:, k : k + time] * weight[:, k]
    if bias is not None:
        y = y + bias
    if silu:
        y = functional.silu(y)
    if lengths is None:
        # no comparison of time and memory, which would bind an exporter's open length
        return y, inputs[:, time:].transpose(1, 2)
    last = last_inputs(x, state, lengths, memory)
    inside = torch.arange(time, device=x.device) < lengths.unsqueeze(-1)
    return torch.where(inside.unsqueeze(-1), y, torch.zeros_like(y)), last


def last_inputs(x: Tensor, state: Tensor | None, lengths: Tensor | None, memory: int) -> Tensor:
    """The `memory` inputs before each row's end (batch, channels, memory), those of the state where there are fewer."""
    before = x.new_zeros(x.shape[0], x.shape[2], memory) if state is None else state
    before, time = before.transpose(1, 2), x.shape[1]
    if lengths is None:
        return torch.cat((before, x[:, max(time - memory, 0) :]), 1)[:, min(time, memory) :].transpose(1, 2)
    # joined, inputs begin `memory` steps early: a row's last ones begin at its length
    at = lengths.clamp(0, time).unsqueeze(-1) + torch.arange(memory, device=x.device)
    chosen = torch.cat((before, x), 1).gather(1, at.unsqueeze(-1).expand(-1, -1, x.shape[2]))
    return chosen.transpose(1, 2)
