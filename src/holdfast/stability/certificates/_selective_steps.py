"""What "stable" means where the step size comes from the input: the decays that a model showed on inputs that it saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ArgumentError
from holdfast.kernels.selective._watch import watching
from holdfast.memory._subject import INPUT_ERRORS
from holdfast.nn import RecurrenceView
from holdfast.nn._acceleration import accelerate_quietly, mixers_of

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

    def joined(self, other: SelectiveSteps) -> SelectiveSteps:
        """Both together."""
        return SelectiveSteps(
            max(self.factor, other.factor),
            min(self.smallest, other.smallest),
            max(self.largest, other.largest),
            self.steps + other.steps,
        )


def watch_steps(model: nn.Module, views: tuple[RecurrenceView, ...], inputs: Tensor) -> dict[str, SelectiveSteps]:
    """Runs the model once and returns what each selective recurrence of these showed, by the path of its module."""
    # mixers may be nested: the innermost that is running took the step
    running: list[str] = []
    seen: dict[str, SelectiveSteps] = {}

    def watcher(delta: Tensor, A: Tensor) -> None:
        if running and delta.numel():
            steps = _steps(delta, A)
            path = running[-1]
            seen[path] = steps if path not in seen else seen[path].joined(steps)

    def left(*_: Any) -> None:
        running.pop()

    handles: list[Any] = []
    for view in views:
        if view.selective:
            handles.append(view.module.register_forward_pre_hook(lambda *_, path=view.owner: running.append(path)))
            handles.append(view.module.register_forward_hook(left, always_call=True))
    changed = accelerate_quietly(model) if mixers_of(model) else None  # transformers' own loop cannot be watched
    try:
        with torch.no_grad(), watching(watcher):
            model(inputs)
    except INPUT_ERRORS as error:
        raise ArgumentError(f"the model failed on inputs of shape {tuple(inputs.shape)}: {error}") from error
    finally:
        if changed is not None:
            changed.restore()
        for handle in handles:
            handle.remove()
    return seen


def _steps(delta: Tensor, A: Tensor) -> SelectiveSteps:
    # A < 0: the largest is the slowest state of each channel
    slowest = A.amax(-1) if A.ndim == 2 else A
    low, high = delta.flatten(0, -2).aminmax(dim=0)
    # the shortest step keeps most of a decaying state, the longest most of a growing one
    exponent = torch.where(slowest < 0, low * slowest, high * slowest)
    return SelectiveSteps(
        math.exp(float(exponent.max())), float(low.min()), float(high.max()), delta.shape[0] * delta.shape[1]
    )
