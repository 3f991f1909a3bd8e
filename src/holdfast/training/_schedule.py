"""Learning rates by the number of the step: a warm-up, then a cosine or a constant. Nothing is remembered."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["cosine", "constant"]


def share(step: int, steps: int, *, warmup: int, schedule: Schedule, floor: float) -> float:
    """The share of its full value that a learning rate has at a step.

    (step + 1) / warmup during the warm-up; after it 1, or floor + (1 - floor)(1 + cos(pi p)) / 2 with p from 0 to 1
    over the rest.

    Args:
        step: number of the step, from 0.
        steps: number of steps of the whole run.
        warmup: number of steps of the warm-up.
        schedule: "cosine" or "constant".
        floor: the share that the cosine ends at.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, done))) / 2
