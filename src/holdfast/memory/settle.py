"""Settling: how long a model must run on a constant input until its output stands still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.memory.subject import ELEMENTS, Subject

LONGEST, LONGEST_STREAM = 4096, 65536
SHORTEST = 8  # steps before a probe even where nothing moves: they show whether later inputs leak into them
RELATIVE = 1e-9  # a float64 model has settled when it moves by less than this share of what it moved altogether


@dataclass(frozen=True)
class Settling:
    """`steps` to wait, whether the output stood still by then, and by how much it still moved if not.

    `state` is the model's after these steps, where it has one.
    """

    steps: int
    settled: bool
    remaining: float
    state: Any = None


def longest_settling(subject: Subject, rows: int) -> int:
    """How long to wait by default: 4096 steps, or up to 65536 where a state spares running them with every probe."""
    if subject.row_axes is None:
        return LONGEST
    return min(max(ELEMENTS // (rows * max(subject.input_size, subject.outputs)), LONGEST), LONGEST_STREAM)


def settle(subject: Subject, x: Float[Tensor, "rows inputs"], longest: int, *, keep_state: bool = False) -> Settling:
    """Runs the constant inputs x from the model's own initial state, 64 steps, then ever more until it settles.

    Settled: over the last quarter of the run no output moves by more than RELATIVE of its whole movement, or by more
    than rounding. The steps returned end a quarter after the first moment from which that holds; with `keep_state` they
    are the whole run if the model has a state, which is returned with them: nobody has to run them again.
    """
    keeps = keep_state and subject.row_axes is not None
    constant = x.to(subject.device, subject.dtype).unsqueeze(1)
    y, state = subject.advance(constant.expand(-1, min(64, longest), -1).contiguous())
    while True:
        steps = y.shape[1]
        if not bool(torch.isfinite(y).all()):
            return Settling(SHORTEST, False, float("inf"))
        away, allowed = _movement(subject, y)
        moving = torch.nonzero(away > allowed)
        first = 0 if len(moving) == 0 else int(moving[-1]) + 1
        if first <= steps - steps // 4:
            if keeps:
                return Settling(steps, True, 0.0, state)
            return Settling(max(SHORTEST, min(first + first // 4, longest)), True, 0.0)
        if steps >= longest:
            quarter = float(away[-max(steps // 4, 1) :].max())
            return Settling(longest, False, quarter, state if keeps else None)
        y, state = _prolong(subject, constant, y, state, longest)


def settle_for(subject: Subject, x: Float[Tensor, "rows inputs"], steps: int) -> Settling:
    """Whether the constant inputs x leave the output at rest after `steps` steps, judged over a third as many more."""
    constant = x.to(subject.device, subject.dtype).unsqueeze(1)
    y = subject(constant.expand(-1, steps + max(steps // 3, 16), -1).contiguous())
    if not bool(torch.isfinite(y).all()):
        return Settling(steps, False, float("inf"))
    away, allowed = _movement(subject, y)
    remaining = float(away[max(steps - 1, 0) :].max())
    return Settling(steps, remaining <= allowed, remaining)


def _movement(subject: Subject, y: Float[Tensor, "rows steps outputs"]) -> tuple[Float[Tensor, " steps"], float]:
    """How far the outputs of each step are from the last, and how far counts as standing still."""
    away = (y - y[:, -1:]).abs().amax((0, 2))
    rounding = 4 * float(subject.rounding(y).max())
    return away, max(RELATIVE * float(away.max()), rounding)


def _prolong(subject: Subject, constant: Tensor, y: Tensor, state: Any, longest: int) -> tuple[Tensor, Any]:
    """A run twice as long, from the state where the model has one; else 4 times as long, from the beginning."""
    steps = y.shape[1]
    if subject.row_axes is None:
        return subject.advance(constant.expand(-1, min(4 * steps, longest), -1).contiguous())
    more, state = subject.advance(constant.expand(-1, min(steps, longest - steps), -1).contiguous(), state)
    return torch.cat([y, more], 1), state
