"""How fast small deviations of one recurrence fade or grow along a trajectory: on data, or on zeros where it never rests."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from holdfast.nn import RecurrenceView
from holdfast.nn._views.reads import Reads
from holdfast.nn._views.rest import Driven

MAX_ROWS, MAX_STEPS = 4, 2000  # trajectories, and steps of each
TANGENTS = 3  # random deviations that are followed; where they agree, they have turned into place
NUDGE = 1e-5  # size of a deviation: its square, and rounding over it, are 1e-10
SMALLEST_FACTOR = 1e-9  # of a step: smaller ones are rounding
DISCARDED_SHARE = 0.25  # of the steps, in which the state and the deviations find their places
BLOCKS = 8  # stretches of time whose means say how well the exponent is known
MAX_WORK = 2e10  # weights times steps times deviations; longer trajectories are cut
MAX_SECONDS = 30.0  # of CPU time, after which a trajectory ends: a step that is not a cell of torch's is slow
MIN_STEPS = 32
BESIDE = 0.01  # size of the state from which it is seen what zero input does
CHAOTIC_EXPONENT = 1e-3  # per step: a smaller one is not chaos that 2,000 steps could show
STILL_SHARE = 1e-6  # of its size, by which a state at rest may move
SAME_SHARE = 0.02  # of its range, by which two turns of an oscillation may differ
LEFT_SHARE = 0.2  # of its range, by which an oscillation moves before it returns


@dataclass(frozen=True)
class TrajectoryExponent:
    """The mean rate at which small deviations of a state grow along a trajectory.

    Args:
        exponent: per step; negative where deviations fade.
        error: its standard error.
        steps: that were averaged, of each row.
        rows: number of trajectories.
    """

    exponent: float
    error: float
    steps: int
    rows: int

    @property
    def time_constant(self) -> float:
        """Steps in which a small deviation falls to 1/e; inf at 0, negative where it grows."""
        return -1 / self.exponent if self.exponent else math.inf

    @property
    def chaotic(self) -> bool:
        """Whether deviations grow beyond doubt."""
        return self.exponent > max(2 * self.error, CHAOTIC_EXPONENT)

    def words(self) -> str:
        """One sentence."""
        return (
            f"along {self.rows} x {self.steps} steps of the inputs given small deviations change by "
            f"e^({self.exponent:.4g} +- {self.error:.2g}) a step"
        )


Unrest = Literal["rests", "oscillating", "chaotic", "growing", "unsettled"]


@dataclass(frozen=True)
class Restless:
    """What a recurrence does on zero input where no stable state of rest was reached.

    Args:
        kind: "rests" where it only settles late, "oscillating", "chaotic", "growing" without bound, or
            "unsettled" where that is not known.
        exponent: of small deviations along the way.
        period: steps of one turn of an oscillation; None where it has none.
        largest: largest entry of the state on the way.
    """

    kind: Unrest
    exponent: TrajectoryExponent | None
    period: float | None
    largest: float

    def words(self) -> str:
        """One sentence."""
        known = self.exponent
        rate = "" if known is None else f" (exponent {known.exponent:.3g} +- {known.error:.2g} per step)"
        if self.kind == "oscillating":
            return f"on zero input it oscillates with a period of {self.period:.3g} steps{rate}"
        if self.kind == "chaotic":
            return f"on zero input it is chaotic{rate}; its state stays below {self.largest:.3g}"
        if self.kind == "growing":
            return f"on zero input its state grows without bound{rate}"
        if self.kind == "rests":
            return f"on zero input it comes to rest late{rate}"
        steps = f"{MAX_STEPS:,} steps{rate}"
        return f"on zero input it has not come to rest after {steps}; its state stays below {self.largest:.3g}"


@torch.no_grad()
def exponent_along(view: RecurrenceView, reads: Reads) -> TrajectoryExponent | None:
    """The exponent of one recurrence on what it read; None where it read nothing, or its step is not known.

    Of modes with a step size each it is the largest mean of dt lam. Linear recurrences have one for all inputs.

    Args:
        view: the recurrence.
        reads: what was seen of it.
    """
    x = reads.inputs.get(view.module)
    if view.module in reads.steps:
        delta, rates = reads.steps[view.module]
        slowest = (rates.amax(-1) if rates.ndim == 2 else rates).detach().cpu().double()
        return _of_modes(delta.detach().cpu().double() * slowest)
    if x is not None and (steps := view.step_sizes(x)) is not None:
        return _of_modes(steps * view.eigenvalues().real.detach().cpu().double().flatten())
    driven = view.driven()
    if driven is not None:
        return None if x is None else _followed(driven, _cut(view, driven.drive(x[:MAX_ROWS, :MAX_STEPS])))
    margin = view.margin()
    known = not view.nonlinear and math.isfinite(margin) and margin < 1
    return TrajectoryExponent(math.log1p(-margin), 0.0, 0, 0) if known else None


def restless(view: RecurrenceView, reads: Reads) -> Restless | None:
    """What it does on zero input, along the states that it goes through; None where its step is not known.

    Args:
        view: a nonlinear recurrence.
        reads: what it reads on zero input of the model.
    """
    driven, x = view.driven(), reads.inputs.get(view.module)
    if driven is None or x is None:
        return None
    drives = _cut(view, driven.drive(x[:1, :MAX_STEPS]))
    if drives.shape[1] < MIN_STEPS:
        return None
    # beside 0, which may be a state of rest that nothing returns to
    start = BESIDE * torch.randn(1, driven.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    states = driven.trajectory(drives, start)[0, drives.shape[1] // 2 :].numpy()
    exponent = _followed(driven, drives, start)
    largest = float(np.abs(states).max())
    if not math.isfinite(largest):
        return Restless("growing", exponent, None, math.inf)
    spread = states - states.mean(0)
    late = spread[len(spread) // 2 :]
    moved = float(np.abs(late - late[-1]).max())
    period = _period(spread)
    if moved <= STILL_SHARE * max(largest, 1e-30):
        return Restless("rests", exponent, None, largest)
    if exponent is not None and exponent.chaotic:
        return Restless("chaotic", exponent, None, largest)
    kind: Unrest = "unsettled" if period is None else "oscillating"
    return Restless(kind, exponent, period, largest)


def _cut(view: RecurrenceView, drives: Tensor) -> Tensor:
    weights = sum(weight.value.numel() for weight in view.weights)
    deviations = len(drives) * (1 + 2 * TANGENTS)
    return drives[:, : max(MIN_STEPS, int(MAX_WORK / max(weights * deviations, 1)))]


@torch.no_grad()
def _followed(
    driven: Driven, drives: Float64[Tensor, "rows time numbers"], start: Tensor | None = None
) -> TrajectoryExponent | None:
    """Random deviations by central differences, scaled back after each step; the fastest of them counts."""
    rows, steps = drives.shape[:2]
    if steps < MIN_STEPS:
        return None
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(TANGENTS, rows, driven.size, generator=generator, dtype=torch.float64)
    v = v / v.norm(dim=-1, keepdim=True)
    state = drives.new_zeros(rows, driven.size) if start is None else start
    logs, begun = [], time.process_time()
    for drive in drives.unbind(1):
        moved = torch.cat([state, (state + NUDGE * v).flatten(0, 1), (state - NUDGE * v).flatten(0, 1)])
        after = driven.step(moved, drive.repeat(1 + 2 * TANGENTS, 1))
        state, up, down = after.split([rows, TANGENTS * rows, TANGENTS * rows])
        change = ((up - down) / (2 * NUDGE)).reshape(v.shape)
        size = change.norm(dim=-1, keepdim=True)
        # a deviation that is gone within a step begins again as what is left of it by rounding
        v = torch.where(size > SMALLEST_FACTOR, change / size.clamp(min=SMALLEST_FACTOR), v)
        logs.append(size.squeeze(-1).clamp(min=SMALLEST_FACTOR).log())
        if len(logs) >= MIN_STEPS and time.process_time() - begun > MAX_SECONDS:
            break
    return _mean(torch.stack(logs, -1))


def _mean(logs: Float64[Tensor, "tangents rows time"]) -> TrajectoryExponent | None:
    kept = logs[..., int(DISCARDED_SHARE * logs.shape[-1]) :]
    if not bool(torch.isfinite(kept).all()):
        return None
    means = kept.mean((1, 2))
    best = int(means.argmax())
    blocks = torch.stack([part.mean(-1) for part in kept[best].tensor_split(BLOCKS, -1)]).flatten()
    noise = float(blocks.std() / math.sqrt(len(blocks)))
    apart = float(means.max() - means.min())  # deviations that still turn
    return TrajectoryExponent(float(means[best]), noise + apart, kept.shape[-1], kept.shape[1])


def _of_modes(factors: Float64[Tensor, "rows time modes"]) -> TrajectoryExponent:
    """Log factors of independent modes at each step."""
    means = factors.mean((0, 1))
    best = factors[..., int(means.argmax())]
    blocks = torch.stack([part.mean(1) for part in best.tensor_split(min(BLOCKS, best.shape[1]), 1)]).flatten()
    error = float(blocks.std() / math.sqrt(len(blocks))) if len(blocks) > 1 else 0.0
    return TrajectoryExponent(float(means.max()), error, factors.shape[1], factors.shape[0])


def _period(spread: Float64[np.ndarray, "time numbers"]) -> float | None:
    """Steps of one turn: after which all states return, or one over the strongest frequency where that is between steps."""
    size, strongest = float(np.abs(spread).max()), _dominant(spread)
    if not size > 0:
        return None
    left = False  # a slow drift to rest is alike from step to step, and never leaves and returns
    for lag in range(1, len(spread) // 3):
        apart = np.abs(spread[lag:] - spread[:-lag]).max()
        left = left or apart > LEFT_SHARE * size
        if left and apart <= SAME_SHARE * size:
            # slow turns are alike from step to step; a turn between steps returns after many of them only
            whole = strongest is None or 0.5 * strongest < lag < 3 * strongest
            return float(lag) if whole else strongest
    return strongest


def _dominant(spread: np.ndarray) -> float | None:
    """One over the frequency that holds most of the movement; a turn that ends between two steps never returns exactly."""
    window = np.hanning(len(spread))[:, None]
    power = (np.abs(np.fft.rfft(spread * window, axis=0)) ** 2).sum(1)
    peak = int(power[1:].argmax()) + 1
    near = power[max(peak - 3, 1) : peak + 4].sum()
    if peak < 2 or near < 0.5 * power[1:].sum():
        return None
    around = np.arange(max(peak - 3, 1), min(peak + 4, len(power)))
    frequency = float((around * power[around]).sum() / power[around].sum()) / len(spread)
    return 1 / frequency
