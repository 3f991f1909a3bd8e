"""The steps of padded sequences in the order from the last to the first."""

from __future__ import annotations

import torch
from torch import Tensor


def backwards(x: Tensor, lengths: Tensor | None) -> Tensor:
    """For each row its steps from the last to the first, (batch, time); those after its end stay where they are."""
    steps = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    if lengths is None:
        return x.shape[1] - 1 - steps
    ends = lengths.unsqueeze(-1)
    return torch.where(steps < ends, ends - 1 - steps, steps)


def taken(x: Tensor, order: Tensor) -> Tensor:
    """The steps of x, (batch, time, features), in another order."""
    return x.gather(1, order.unsqueeze(-1).expand(x.shape))
