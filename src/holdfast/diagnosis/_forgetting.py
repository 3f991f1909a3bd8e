"""How far a model remembers: the share of one input, and of a change that lasts, that is left after so many steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from holdfast.decay import DecayFit, fit_decay
from holdfast.decay._result import Reach, is_confirmed, reach_of
from holdfast.diagnosis._reading import Reading, count_weights
from holdfast.memory import InputSearch, MemoryCurve, Probe, memory_function
from holdfast.memory._checks import MAX_SETTLING_STEPS, MIN_SETTLING_STEPS, prepare
from holdfast.memory._confirming import FURTHER, may_be_short
from holdfast.memory._options import widest
from holdfast.memory._search import directions
from holdfast.memory._subject import Subject
from holdfast.memory.preserve import undisturbed

Kind = Literal["impulse", "step"]
Way = Literal["ahead", "back"]
Cause = Literal["gates", "selection", "unknown"]
WAYS: tuple[Way, Way] = ("ahead", "back")
PROBES: dict[Kind, Literal["impulse", "heaviside"]] = {"impulse": "impulse", "step": "heaviside"}
FIRST_STEPS = 256  # that a memory is followed for at first
MIN_RATIO = 1.5  # two horizons differ where one is this many times the other
SATURATING_SIZE = 1.0  # of an input from which on units and gates saturate
MAX_DIRECTIONS = 16  # of input that are tried
MIN_DIRECTIONS = 2
PROBE_WORK = 4e10  # weights times steps times inputs of one probe, from which on fewer directions are tried
FIRST_STEPS_OF_HUGE = 128  # the first of a huge model
REST_STEPS, MAX_REST_STEPS = 1024, 65536  # steps that a large model is given to come to rest, and a small one
RERUN_STEPS, RERUN_STEPS_OF_HUGE = (
    256,
    64,
)  # the same where every probe runs them again: 5 rows of 1,024 steps took 15 s
FOLLOW_WORK = 4e11  # weights times steps times rows that a large model without a state is followed for
REST_WORK = 2e10  # weights times steps of it
RERUN_WORK = 2.5e9  # the same of a model without a state to continue from: every probe runs these steps again


@dataclass(frozen=True, eq=False)
class Forgetting:
    """One memory curve, its law and its 1% horizon.

    Args:
        kind: "impulse" (one input, then none) or "step" (an input that stays).
        way: "ahead", or "back" for what a model that reads both ways tells of later inputs.
        curve: what was measured, in steps.
        fit: its law.
        reach: its 1% horizon.
        size: size of the input that reached the most at that horizon.
    """

    kind: Kind
    way: Way
    curve: MemoryCurve
    fit: DecayFit
    reach: Reach
    size: float

    @property
    def steps(self) -> float | None:
        """Steps until 1% is left; inf where it does not fade, None where it cannot be determined."""
        return self.reach.time

    @property
    def left(self) -> float:
        """The share that is left at the last step."""
        rest = self.fit.envelope
        return float(rest[-1] / rest[0]) if rest[0] > 0 and math.isfinite(rest[0]) else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        steps = None if self.steps is None or math.isinf(self.steps) else self.steps
        plain = {"kind": self.kind, "way": self.way, "steps": steps, "measured": self.reach.measured}
        fades = None if self.steps is None else math.isfinite(self.steps)
        return plain | {"fades": fades, "size": self.size, "status": self.curve.status, "fit": self.fit.to_dict()}


def measure_memory(reading: Reading, horizon: int, seed: int) -> tuple[list[Forgetting], list[str]]:
    """The memory of an impulse and of a step, and what has to be said beside them.

    Args:
        reading: the model.
        horizon: most steps to follow it for.
        seed: of random inputs.
    """
    double, why = widest(reading.model, reading.input_size)
    notes = [] if why is None else [why]
    if not reading.causal:
        return _both_ways(reading, horizon, double, seed), notes
    curves, first = [], _first_steps(reading)
    for kind in PROBES:
        one = _followed(reading, kind, min(first, horizon), horizon, double, seed)
        first = len(one.curve.time) - 1  # the next probe begins where this one had to go
        curves.append(one)
        notes += [note for note in one.curve.notes if note not in notes]
    return curves, notes


def impulse_memory(reading: Reading, horizon: int, seed: int) -> float | None:
    """Steps until 1% of one input is left; inf where it does not fade, None where it cannot be determined.

    Args:
        reading: the model.
        horizon: most steps to follow it for.
        seed: of random inputs.
    """
    return followed_impulse(reading, horizon, seed).steps


def followed_impulse(reading: Reading, horizon: int, seed: int) -> Forgetting:
    """The memory of one input, followed until 1% is left.

    Args:
        reading: the model.
        horizon: most steps to follow it for.
        seed: of random inputs.
    """
    double, _ = widest(reading.model, reading.input_size)
    if not reading.causal:
        both = _both_ways(reading, horizon, double, seed)
        return next(one for one in both if one.kind == "impulse" and one.way == "ahead")
    return _followed(reading, "impulse", min(_first_steps(reading), horizon), horizon, double, seed)


def _first_steps(reading: Reading) -> int:
    return FIRST_STEPS_OF_HUGE if reading.huge else FIRST_STEPS


def _affordable_steps(reading: Reading) -> int | None:
    """Most steps that a large model without a state is followed for; None where nothing needs to be saved."""
    if not reading.large or reading.streams:
        return None
    rows = MAX_DIRECTIONS if reading.candidates is None else len(reading.candidates) + 1
    return max(_first_steps(reading), int(FOLLOW_WORK / (count_weights(reading.model) * rows)))


def ahead_of(memory: Sequence[Forgetting]) -> float | None:
    """The memory of one input among several.

    Args:
        memory: what was measured.
    """
    return next((one.steps for one in memory if one.kind == "impulse" and one.way == "ahead"), None)


def _followed(reading: Reading, kind: Kind, steps: int, most: int, double: bool, seed: int) -> Forgetting:
    longest = reading.longest
    most = most if longest is None else min(most, longest - MIN_SETTLING_STEPS - 1)
    affordable = _affordable_steps(reading)
    cut = affordable is not None and affordable < most
    most = min(most, affordable) if affordable is not None else most
    while True:
        steps = min(steps, most)
        tried = _directions(reading, steps)
        curve = memory_function(
            reading.model,
            input_size=reading.input_size,
            horizon=steps,
            probe=Probe(PROBES[kind], max_burn_in=_rest_steps(reading)),
            search=InputSearch(
                candidates=reading.candidates,
                budget=None if reading.candidates is not None else tried,
                seed=seed,
            ),
            double=double,
        )
        if reading.candidates is None and tried < MAX_DIRECTIONS:
            few = f"{tried} directions of input were tried over {steps} steps, since the model is large"
            curve = replace(curve, notes=(*curve.notes, few))
        one = _judged(kind, "ahead", curve)
        gone = _gone(one) or (one.steps is not None and math.isinf(one.steps))
        if gone or steps >= most or curve.status != "ok":
            if cut and not gone and steps >= most:
                few = f"it was followed for {steps:,} steps, since the model is large"
                one = _noted(one, few)
            if one.reach.measured and not gone:
                one = _noted(one, may_be_short(one.steps or 0.0, steps))
            return one
        steps *= FURTHER


def _gone(one: Forgetting) -> bool:
    """Whether 1% was passed for good."""
    return one.reach.measured and is_confirmed(one.fit)


def _noted(one: Forgetting, note: str) -> Forgetting:
    return replace(one, curve=replace(one.curve, notes=(*one.curve.notes, note)))


def _directions(reading: Reading, steps: int) -> int:
    """Directions of input that are tried at three sizes each, so that one probe takes less than a minute."""
    weights = count_weights(reading.model)
    return min(MAX_DIRECTIONS, max(MIN_DIRECTIONS, int(PROBE_WORK / max(3 * steps * weights, 1))))


def _rest_steps(reading: Reading) -> int | None:
    """Most steps that the model is given to come to rest; None where nothing needs to be saved."""
    weights = max(count_weights(reading.model), 1)
    if not reading.streams and reading.large:
        return RERUN_STEPS_OF_HUGE if reading.huge else RERUN_STEPS
    if not reading.streams:
        return max(REST_STEPS, min(MAX_SETTLING_STEPS, int(RERUN_WORK / weights)))
    steps = max(REST_STEPS, int(REST_WORK / weights))
    return None if steps > MAX_REST_STEPS else steps


def _judged(kind: Kind, way: Way, curve: MemoryCurve) -> Forgetting:
    fit = fit_decay(curve)
    reach = reach_of(fit)
    at = (
        len(curve.time) - 1
        if reach.time is None or not reach.measured
        else int(np.searchsorted(curve.time, reach.time))
    )
    size = 1.0 if curve.maximiser is None else float(np.abs(curve.maximiser[max(at - 1, 0)]).max())
    return Forgetting(kind, way, curve, fit, reach, size)


def _both_ways(reading: Reading, horizon: int, double: bool, seed: int) -> list[Forgetting]:
    """Of a model that sees later inputs: an input in the middle of zeros, read at each distance after and before it."""
    steps, longest = FIRST_STEPS, reading.longest
    horizon = horizon if longest is None else min(horizon, (longest - 1) // 4)  # as long a run as `_middle` makes
    while True:
        steps = min(steps, horizon)
        curves = [
            _judged(kind, way, curve)
            for kind in PROBES
            for way, curve in zip(WAYS, _middle(reading, kind, steps, double, seed), strict=True)
        ]
        if all(map(_gone, curves)) or steps >= horizon:
            return curves
        steps *= FURTHER


def _middle(reading: Reading, kind: Kind, steps: int, double: bool, seed: int) -> list[MemoryCurve]:
    generator = torch.Generator().manual_seed(seed)
    with undisturbed(reading.model, evaluate=True), torch.no_grad():
        subject = Subject(reading.model, reading.input_size, double=double)
        prepare(subject, generator, causal=False)
        x = reading.candidates
        if x is None:
            unit = directions(reading.input_size, MAX_DIRECTIONS, generator)
            x = torch.cat([0.1 * unit, unit, 10 * unit])
        # as many steps again on both sides, so that the ends of the run are no part of the answer
        middle = 2 * steps
        u = subject.zeros(len(x) + 1, 4 * steps + 1)
        last = {"impulse": middle + 1, "step": None}[kind]
        u[:-1, middle:last] = x.to(u).unsqueeze(1)
        y = subject(u)
        size = x.abs().amax(-1).to(y)
        floor = (subject.rounding(y).max() / size.min()).item()
        moved = (y[:-1] - y[-1:]) / size.reshape(-1, 1, 1)
        if kind == "step":
            moved = torch.diff(moved, dim=1)  # entry k is the change from step k to k + 1
            sides = moved[:, middle - 1 : middle + steps], moved[:, middle - 1 - steps : middle].flip(1)
        else:
            sides = moved[:, middle : middle + steps + 1], moved[:, middle - steps : middle + 1].flip(1)
        return [_curve(side.abs().amax(2).double().cpu().numpy(), x.double().cpu().numpy(), floor) for side in sides]


def _curve(sizes: np.ndarray, x: np.ndarray, floor: float) -> MemoryCurve:
    """The largest of the rows at each time, and the x that gave it."""
    sizes = np.where(np.isfinite(sizes), sizes, np.inf)
    steps = sizes.shape[1]
    return MemoryCurve(
        time=np.arange(steps), values=sizes.max(0), floor=np.full(steps, floor), maximiser=x[sizes.argmax(0)]
    )


def why_they_differ(memory: list[Forgetting], cause: Cause) -> str | None:
    """One sentence on why the step's horizon is not the impulse's; None where they are near each other or not known.

    Args:
        memory: what was measured.
        cause: "gates" (and units) that saturate, "selection" where inputs set the steps, "unknown" without a recurrence.
    """
    ahead = {one.kind: one for one in memory if one.way == "ahead"}
    a, b = ahead["impulse"].steps, ahead["step"].steps
    if a is None or b is None or math.isinf(a) or max(a, b) <= MIN_RATIO * max(min(a, b), 1.0):
        return None
    size, how = ahead["step"].size, "more slowly" if b > a else "faster"
    if cause == "unknown":
        return "The two differ, so the model is not linear: how long it keeps an input depends on the inputs around it."
    if cause == "selection":
        return (
            "The two differ by selection: the inputs set the step sizes, and with those of a constant input the model forgets "
            f"{how}."
        )
    if size < SATURATING_SIZE:
        return (
            f"The two differ although the input that lasts longest is small (size {size:g}): it shifts the state in which the "
            f"model rests, where it forgets {how}."
        )
    return (
        f"The two differ by saturation: a constant input of size {size:.3g} drives units and gates to their limits, where the "
        f"model forgets {how} than after a single input."
    )
