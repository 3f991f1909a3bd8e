"""Loss, gradient and state of every step against their recent medians: what speaks before a loss doubles."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Cause = Literal["not finite", "loss", "gradient", "state", "step size", "boundary", "approach", "dead"]
Series = Literal["loss", "gradient", "state", "step size"]

WINDOW_STEPS = 100  # whose median is what is usual
START_STEPS = 20  # until then the start of training is no measure yet: ratios have to be the squares of these
# chosen on 40 diverging and 45 fine runs of seeds 100 to 104 (docs/stability.md has those of seeds 0 to 4): smaller ones
# speak no earlier where a loss doubles within 2 steps, and raise false alarms (a gradient of 5 times: 6 of 45 fine runs)
RATIOS: Mapping[Series, float] = {"loss": 1.6, "gradient": 6.0, "state": 10.0, "step size": 10.0}
DEAD_STEPS = 5  # in a row with a gradient of exactly 0 of all recurrent weights, from which on they do not learn
ACUTE: frozenset[Cause] = frozenset({"not finite", "loss", "gradient", "state"})


@dataclass(frozen=True)
class Alarm:
    """One warning of a monitor.

    Args:
        step: number of the optimizer step that followed.
        cause: what was seen.
        subject: name of the weight or module; empty for the loss and the norm of all gradients.
        text: the sentence of the warning, without its consequence.
    """

    step: int
    cause: Cause
    subject: str
    text: str

    @property
    def acute(self) -> bool:
        """Whether the loss is likely to double soon; a margin may shrink and step sizes may grow for many steps more."""
        return self.cause in ACUTE

    @property
    def warning(self) -> str:
        """The sentence with its consequence before it; `text` names that itself where a recurrence does not learn."""
        if self.cause == "dead":
            return self.text
        return f"{'training has diverged' if self.cause == 'not finite' else 'training may diverge'}: {self.text}"


class Signals:
    """The last values of each series, and what stands out against them."""

    def __init__(self) -> None:
        self.windows: dict[str, deque[float]] = {name: deque(maxlen=WINDOW_STEPS) for name in RATIOS}

    def judge(self, values: Mapping[Series, float]) -> list[tuple[Series, float]]:
        """The series that stand out, with how many times their median they are; then the values join the others.

        Args:
            values: of this step; NaN where a series was not measured.
        """
        outliers: list[tuple[Series, float]] = []
        for name, value in values.items():
            window = self.windows[name]
            if math.isnan(value):
                continue
            usual = statistics.median(window) if window else 0.0
            ratio = RATIOS[name] ** (1 if len(window) >= START_STEPS else 2)
            if 0 < ratio * usual < value:
                outliers.append((name, value / usual))
            if math.isfinite(value):
                window.append(value)
        return outliers

    def state(self) -> dict[str, list[float]]:
        """The windows as plain lists, for a checkpoint."""
        return {name: list(window) for name, window in self.windows.items()}

    def load(self, state: Mapping[str, list[float]]) -> None:
        """Takes the windows that `state` gave."""
        for name, values in state.items():
            self.windows[name] = deque(values, maxlen=WINDOW_STEPS)
