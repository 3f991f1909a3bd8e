"""What "stable" means where the step size comes from the input: the decays that a model showed on inputs that it saw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SELECTIVE_NOTE = (
    "selective: a step multiplies the state by exp(dt A), and dt >= 0 comes from the input. Stable means that no input "
    "makes a factor larger than 1, since A < 0; how near to 1 it comes, and so how long the state lasts, is up to the input"
)


@dataclass(frozen=True)
class SelectiveSteps:
    """The steps that a selective recurrence took on given inputs.

    Args:
        factor: the largest exp(dt A) of all steps, channels and states.
        smallest: smallest step size dt.
        largest: largest step size dt.
        steps: how many time steps were seen, of all rows.
    """

    factor: float
    smallest: float
    largest: float
    steps: int

    def words(self) -> str:
        """One sentence."""
        lasts = math.inf if self.factor >= 1 else -1 / math.log(self.factor)
        return (
            f"over the {self.steps} steps of the inputs given, exp(dt A) was at most {self.factor:.7g} (dt from "
            f"{self.smallest:.3g} to {self.largest:.3g}): repeated, that step would keep 1/e of the slowest state for "
            f"{lasts:.4g} steps"
        )


def steps_seen(delta: Tensor, A: Tensor) -> SelectiveSteps:
    """What step sizes (rows, time, channels) and rates say."""
    # A < 0: the largest is the slowest state of each channel
    slowest = A.amax(-1) if A.ndim == 2 else A
    low, high = delta.flatten(0, -2).aminmax(dim=0)
    # the shortest step keeps most of a decaying state, the longest most of a growing one
    exponent = torch.where(slowest < 0, low * slowest, high * slowest)
    return SelectiveSteps(
        math.exp(float(exponent.max())), float(low.min()), float(high.max()), delta.shape[0] * delta.shape[1]
    )
