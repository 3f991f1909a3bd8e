"""memory_on_data: how long a model keeps an input of its own data, by exchanging one and following what changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast._arguments import as_generator, checked, positive
from holdfast.errors import ArgumentError
from holdfast.memory._confirming import is_gone, may_be_short
from holdfast.memory._data_memory import DataMemory
from holdfast.memory._data_runner import Runner
from holdfast.memory._options import Run
from holdfast.memory._subject import tolerance_of
from holdfast.memory.preserve import modules_of

PLACES = 64  # inputs that are exchanged
ANSWER_LAGS = 32  # distances from the end at which inputs are exchanged where a sequence has one answer
ANSWER_ROWS = 8
FOLLOWED_SHARE = 0.75  # of a sequence over which a change is followed
MAX_WORK = 5e10  # weights times steps of all runs, from which on there are fewer places
MIN_PLACES = 8
DRAWS = 16  # that are made for an input that differs from the one in its place
BATCH_NUMBERS = 1 << 25  # numbers in the outputs of one batch: 256 MB in float64


@checked
def memory_on_data(
    model: Callable[..., Any],
    inputs: Tensor,
    *,
    lengths: Tensor | None = None,
    horizon: int | None = None,
    places: int | None = None,
    double: bool = False,
    run: Run | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> DataMemory:
    """How long a model keeps an input of its own data: one input is exchanged, and the change is followed to its end.

    At each of several places (a row and a time) the input is exchanged for another input of the same data, of another row
    where there are several. The size of the change is the largest over the outputs, at each step from there on. For a
    linear model and an exchange by d it is |C A^k B d| after k steps. Of a model with one answer per sequence the input k
    steps before the end is exchanged instead, for many k.

    `memory_function` asks what is left of the input that lasts longest, around rest on zeros; this asks what is left of
    the inputs themselves, where the data take the state. For a nonlinear model the two may differ by any factor. The model,
    its modes and the random states are left as they were.

    Args:
        model: called on the inputs as they are: a module or a function; of what it returns the first tensor counts, (batch,
            time, outputs) or (batch, time), or one answer per sequence, (batch, ...).
        inputs: data as the model takes them: numbers (rows, time, features) or tokens (rows, time); with
            `run=Run(layout="time_first")` time comes first.
        lengths: of the rows, where they are padded: nothing behind them is exchanged or looked at. A model whose
            forward has an argument `lengths` is given them.
        horizon: steps for which a change is followed; None is three quarters of the length.
        places: inputs that are exchanged; None is 64, fewer of a large model.
        double: run a float64 copy of an nn.Module, so that 1% of a small change is not lost in rounding.
        run: how the model is called; None is `Run()`.
        seed: of the places and of what is put there.
        progress: called as `progress(done, total)` after each batch.

    Returns:
        a DataMemory: `sizes` of the change, (places, lags), in units of the outputs, and `steps`, the median over places of
        the steps until 1% of the largest change is left.

    Raises:
        ShapeError: inputs that are neither (rows, time, features) nor (rows, time), or of fewer than 2 steps.
        ArgumentError: inputs that are not finite or all equal, lengths that do not fit them, or a horizon as long as they are.
        ModelError: a model that fails on the inputs, or whose same input gives other outputs.

    Example:
        >>> import torch
        >>> from holdfast.memory import memory_on_data
        >>> delay = lambda x: torch.nn.functional.pad(x, (0, 0, 2, 0))[:, : x.shape[1]]  # by 2 steps
        >>> memory_on_data(delay, torch.randn(4, 20, 1, generator=torch.Generator().manual_seed(0))).steps
        3.0
    """
    run = run or Run()
    positive(horizon=horizon, places=places)
    runner = Runner.of(model, run, double)
    x = runner.checked(inputs)
    generator = as_generator(seed)
    with run.undisturbed(runner.model), torch.no_grad():
        each_step = runner.answers_each_step(x)
        data = _Data(x, runner.row_lengths(x, lengths), lengths is not None)
        number = places or affordable_places(runner.model, x.shape[1])
        plan = _each_step(data, horizon, number, generator) if each_step else _answers(data, number, generator)
        measured = _follow(runner, data, plan, progress)
    return _result(plan, measured, each_step, number if places is None else None)


@dataclass(frozen=True, eq=False)
class _Data:
    """Inputs with the batch first, and the length of each row."""

    x: Tensor
    lengths: Tensor
    padded: bool

    def exchanged(self, row: int, time: int, generator: torch.Generator) -> Tensor | None:
        """Another input of the data, of another row where there is one; None where a few draws give none that differs."""
        for _ in range(DRAWS):
            other = int(torch.randint(len(self.x), (), generator=generator))
            if other == row and len(self.x) > 1:
                continue
            at = int(torch.randint(int(self.lengths[other]), (), generator=generator))
            if not torch.equal(self.x[other, at], self.x[row, time]):
                return self.x[other, at]
        return None


@dataclass(frozen=True, eq=False)
class _Plan:
    """Which input of which row is exchanged for what in each run, and the lags that are looked at.

    Args:
        rows: row of each run.
        times: time of its exchanged input.
        values: what is put there.
        lags: steps behind it that are looked at; of one answer per sequence the distance from the end is in `times`.
        group: of one answer per sequence, number of runs that make a row of the result; 0 otherwise.
    """

    rows: list[int]
    times: list[int]
    values: list[Tensor]
    lags: np.ndarray
    group: int = 0


def _each_step(data: _Data, horizon: int | None, places: int, generator: torch.Generator) -> _Plan:
    longest = int(data.lengths.max())
    if horizon is not None and horizon > longest - 1:
        raise ArgumentError(f"horizon must be below the length of the inputs, {longest} steps, got {horizon}")
    horizon = horizon or max(1, int(FOLLOWED_SHARE * (longest - 1)))
    # only rows that go on for so long behind a place; rows take turns, and times are spread over each of them
    able = torch.nonzero(data.lengths > horizon).flatten()
    able = able[torch.randperm(len(able), generator=generator)]
    rows: list[int] = []
    times: list[int] = []
    values: list[Tensor] = []
    for p in range(places):
        row = int(able[p % len(able)])
        time = int(torch.randint(int(data.lengths[row]) - horizon, (), generator=generator))
        value = data.exchanged(row, time, generator)
        if value is not None:
            rows, times, values = [*rows, row], [*times, time], [*values, value]
    if not rows:
        raise ArgumentError("inputs: expected some that differ, got equal ones wherever one was to be exchanged")
    return _Plan(rows, times, values, np.arange(horizon + 1.0))


def _answers(data: _Data, places: int, generator: torch.Generator) -> _Plan:
    """Each of a few rows with the input at every distance from its end exchanged in turn."""
    shortest = int(data.lengths.min())
    lags = np.unique(
        np.concatenate([np.arange(min(8, shortest)), np.geomspace(1, shortest, ANSWER_LAGS) - 1]).astype(int)
    )
    number = max(2, min(len(data.x), ANSWER_ROWS * places // PLACES))
    rows: list[int] = []
    times: list[int] = []
    values: list[Tensor] = []
    for row in torch.randperm(len(data.x), generator=generator)[:number].tolist():
        ends = [int(data.lengths[row]) - 1 - int(lag) for lag in lags]
        drawn = [data.exchanged(row, time, generator) for time in ends]
        if all(value is not None for value in drawn):
            rows, times = rows + [row] * len(lags), times + ends
            values += [value for value in drawn if value is not None]
    if not rows:
        raise ArgumentError("inputs: expected some that differ, got equal ones wherever one was to be exchanged")
    return _Plan(rows, times, values, lags.astype(float), len(lags))


@dataclass(frozen=True, eq=False)
class _Measured:
    """Of each run: changes at each lag, rounding, changes of hidden states, and whether outputs before it moved."""

    sizes: np.ndarray
    floors: np.ndarray
    states: np.ndarray | None
    leak: bool


def _follow(runner: Runner, data: _Data, plan: _Plan, progress: Callable[[int, int], None] | None) -> _Measured:
    total, done = len(plan.rows), 0
    sizes, floors, states, leak = [], [], [], False
    at_once = max(2, BATCH_NUMBERS // max(runner.numbers, 1) - 1)
    while done < total:
        part = range(done, min(total, done + at_once))
        own = sorted({plan.rows[p] for p in part})
        x = torch.cat([data.x[own], data.x[[plan.rows[p] for p in part]]])
        for k, p in enumerate(part):
            x[len(own) + k, plan.times[p]] = plan.values[p]
        lengths = data.lengths[own + [plan.rows[p] for p in part]] if data.padded else None
        y, hidden = runner.with_states(x, lengths)
        rounding = tolerance_of(y, runner.eps(y)) / 500  # 4 roundings of the largest output
        for k, p in enumerate(part):
            base, moved = own.index(plan.rows[p]), len(own) + k
            sizes.append(_sizes(y, base, moved, plan, p))
            floors.append(rounding)
            states.append(None if hidden is None or plan.group else _sizes(hidden, base, moved, plan, p))
            if not plan.group and plan.times[p]:
                before = (y[moved, : plan.times[p]] - y[base, : plan.times[p]]).abs().max()
                leak |= float(before) > 500 * rounding
        done = part.stop
        if progress is not None:
            progress(done, total)
    seen = [state for state in states if state is not None]
    return _Measured(np.stack(sizes), np.array(floors), np.stack(seen) if len(seen) == total else None, leak)


def _sizes(y: Tensor, base: int, moved: int, plan: _Plan, p: int) -> np.ndarray:
    """The largest change of an output at each lag, or of the answer."""
    change = (y[moved] - y[base]).abs().double()
    if plan.group:
        return change.max().reshape(1).cpu().numpy()
    first = plan.times[p]
    return change[first : first + len(plan.lags)].flatten(1).amax(1).cpu().numpy()


def _result(plan: _Plan, measured: _Measured, each_step: bool, chosen: int | None) -> DataMemory:
    places = np.array([plan.rows, plan.times], dtype=np.int64).T
    sizes, floors, notes = measured.sizes, measured.floors, []
    if plan.group:
        sizes, floors = sizes.reshape(-1, plan.group), floors.reshape(-1, plan.group).max(1)
        places = places[:: plan.group]
    if chosen is not None and chosen < PLACES and not plan.group:
        notes.append(f"{len(sizes)} places instead of {PLACES}, since the model is large")
    if measured.leak:
        notes.append(
            "outputs before an exchanged input move too: the model reads both ways, and what lies ahead is reported"
        )
    still = int((~(sizes.max(1) > floors)).sum())
    if still:
        notes.append(f"at {still} of {len(sizes)} places no output moved beyond rounding; they are left out")
    if bool((0.01 * sizes.max(1) < floors).mean() > 0.5):
        notes.append("1% of most changes lies below rounding: double=True sees further")
    found = DataMemory(
        plan.lags, sizes, floors, places, measured.states, not each_step, not measured.leak, tuple(notes)
    )
    last = float(plan.lags[-1])
    # steps are NaN where nothing moved, and inf where the summary says that they are more than the last lag
    if not math.isfinite(found.steps) or is_gone(found.steps, last):
        return found
    more = f"{may_be_short(found.steps, last)}, and an oscillation is small at each of its zeros; give longer sequences"
    return replace(found, notes=(*found.notes, more))


def affordable_places(model: Callable[..., Any], steps: int) -> int:
    """64, fewer where runs of so many steps would take a minute."""
    weights = sum(p.numel() for module in modules_of(model) for p in module.parameters())
    return min(PLACES, max(MIN_PLACES, int(MAX_WORK / max(weights * steps, 1))))
