"""rates-rule: does the library's recurrent learning rate train as well as the best of a sweep, on tasks it was not chosen on?

The rule is that of `holdfast.recurrent_rate`: eta = c d / S, at most what changes the slowest rate by the cap of delta in a
step; d the way of the free weight from the slowest rate at the start to 1/T, S the sum of the schedule's shares. c and the
cap were chosen on the seen tasks alone. Every layer starts with rates from 0.1 to 0.8: the memory has to be learned.

An error is a mean over seeds: geometric for squared errors, relative to the target's variance, of which everything below
1e-6 counts as 1e-6; arithmetic for cross-entropies. The best of the sweep is the smallest over its eight rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel, Points, Rule
from holdfast.stability._reach import MAX_CHANGE, PROGRESS
from holdfast_papers.experiments._paired import together
from holdfast_papers.experiments._shares import Share, share
from holdfast_papers.experiments.base import Conclusion, Config, Experiment, Unit, presets
from holdfast_papers.experiments.rates import _sweeps, _tasks
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

FIT = 1e-6  # relative squared errors below count as this: what float32 resolves
RATIOS = {"median": 2.0, "most": 5.0}  # error at the rule / best of the sweep
GAINS = {"median": 0.7, "most": 0.4}  # (start - rule) / (start - best), cross-entropy
HALF, MOST, BETTER = 0.5, 0.9, 0.8  # shares of the cells; a median is what half of them keep to
CLASSES = ("recall-16", "digits", "recall-64", "pixels")
UNIT_KEYS = ("seeds", "batch", "width", "modes", "test", "exponents")


def units(config: Config) -> list[Config]:
    """One for each task and number of steps."""
    listed = [*_tasks.SEEN, *_tasks.HELD_OUT]
    return [cell_config(config, task, steps, "adamw", "short") for task in listed for steps in steps_of(config, task)]


def steps_of(config: Config, task: str) -> list[int]:
    """The numbers of steps of a task."""
    if task not in config["tasks"]:
        return []
    return list(config["stack_steps"] if is_stack(task) else config["steps"]) + (
        list(config["long_steps"]) if task in _tasks.LINEAR_HELD_OUT else []
    )


def is_stack(task: str) -> bool:
    """Whether a stack learns it, not a single linear layer."""
    return task in _tasks.STACK_SEEN or task in _tasks.STACK_HELD_OUT


def cell_config(config: Config, task: str, steps: int, optimizer: str, start: str) -> dict[str, Any]:
    """The settings of one unit, which rates-choice shares."""
    kind = "stack" if is_stack(task) else "linear"
    return {key: config[key] for key in ("exponents", "test")} | {
        "task": task, "steps": steps, "optimizer": optimizer, "start": start, "seeds": config[f"{kind}_seeds"],
        "lr": config[f"{kind}_lr"] if optimizer == "adamw" else config[f"{kind}_sgd_lr"], "batch": config[f"{kind}_batch"],
        "width": config["width"] if is_stack(task) else 0, "modes": config["modes"],
        "rule": [PROGRESS, MAX_CHANGE],  # the rates of a unit follow from the library's constants
    }  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A cell: one task, number of steps and parameterization.

    Args:
        task: its name.
        steps: optimizer steps.
        name: the parameterization.
        rates: of the sweep.
        errors: of the sweep, means over the seeds.
        start: error before training.
        rule: error at the rule.
        usual: error at a quarter of the other weights' rate.
        rate: of the rule.
    """

    task: str
    steps: int
    name: str
    rates: np.ndarray
    errors: np.ndarray
    start: float
    rule: float
    usual: float
    rate: float

    @property
    def classes(self) -> bool:
        """Whether errors are cross-entropies."""
        return self.task in CLASSES

    @property
    def best(self) -> float:
        """The smallest error of the sweep."""
        return float(self.errors.min())

    @property
    def score(self) -> float:
        """Error at the rule over the best; of cross-entropies the share of the best's gain."""
        if self.classes:
            return (self.start - self.rule) / (self.start - self.best)
        return self.rule / self.best


def mean_error(task: str, errors: np.ndarray) -> np.ndarray:
    """The mean over the last axis, the seeds: arithmetic for classes, geometric otherwise."""
    if task in CLASSES:
        return np.asarray(errors.mean(-1))
    return np.asarray(np.exp(np.log(np.maximum(errors, FIT)).mean(-1)))


def rows(units: Iterable[Unit]) -> list[Row]:
    """Every cell, in the order of the units."""
    found = []
    for unit in units:
        task, count = unit.config["task"], len(unit.config["exponents"])
        errors, rates = mean_error(task, unit.arrays["error"]), unit.arrays["rates"]
        start = float(unit.arrays["start"].mean())
        for k, name in enumerate(_sweeps.NAMES):
            found.append(
                Row(task, unit.config["steps"], name, rates[k, :count], errors[k, :count], start,
                    float(errors[k, -1]), float(errors[k, -2]), float(rates[k, -1]))
            )  # fmt: skip
    return found


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The three criteria on the held-out cells, and every cell in a table."""
    every = rows(units)
    held_out = [row for row in every if row.task in _tasks.HELD_OUT]
    missing = [task for task in _tasks.HELD_OUT if task not in config["tasks"]]
    squares, entropies = ([row for row in held_out if row.classes == classes] for classes in (False, True))
    claims = [
        _squares(squares, missing),
        _entropies(entropies, missing),
        _better(held_out, missing),
    ]
    notes = [
        "Held out: delay 100 and the kernel of a trained LRU (linear layers of 64 and 32 complex modes), the adding "
        "problem of length 200, "
        "recall of length 64, pixels of MNIST at 14 x 14 (stacks of two blocks, width 16, 16 real modes each, the "
        "answer at the last step). Seen: four "
        "time scales, powers 0.7 and 1.1 and one slow mode (16 real modes), delay 30, adding 50, recall 16 and "
        "scikit-learn's digits through the stack.",
        f"AdamW, clipping at 1, warm-up of a tenth and a cosine to 0. Other weights at {config['linear_lr']:g} (linear "
        "layers) and "
        f"{config['stack_lr']:g} (stacks). Seeds: {config['linear_seeds']} and {config['stack_seeds']}.",
    ]
    notes += [f"Held-out tasks that are not part of this preset: {', '.join(missing)}."] if missing else []
    return Conclusion(claims, [_figure(held_out), _figure_rates(held_out)], [_table(every)], notes)


def _few(missing: Sequence[str]) -> str:
    return f"Needs all held-out tasks; missing: {', '.join(missing)}."


def _squares(cells: Sequence[Row], missing: Sequence[str]) -> Claim:
    scores = np.array([row.score for row in cells]) if cells else np.array([np.inf])
    half, most = share(scores <= RATIOS["median"]), share(scores <= RATIOS["most"])
    return Claim.decide(
        "squared errors",
        "On held-out tasks the error at the rule is within a factor of 2 of the best of the sweep in the median cell, "
        "and within 5 "
        "in at least 90% of the cells",
        None if missing else together([half.at_least(HALF), most.at_least(MOST)]),
        {
            "median": float(np.median(scores)),
            **_named(half, "cells within 2"),
            **_named(most, "cells within 5"),
            "largest": _finite(scores.max()),
            "cells": float(len(cells)),
        },
        otherwise=_few(missing) if missing else _left_open(half, most) + _worst(cells, falls=False),
        essential=True,
    )


def _entropies(cells: Sequence[Row], missing: Sequence[str]) -> Claim:
    scores = np.array([row.score for row in cells]) if cells else np.array([-np.inf])
    half, most = share(scores >= GAINS["median"]), share(scores >= GAINS["most"])
    return Claim.decide(
        "cross-entropy",
        "On held-out tasks with classes the rule has at least 0.7 of the best rate's gain in the median cell, and at "
        "least 0.4 in 90% "
        "of the cells",
        None if missing else together([half.at_least(HALF), most.at_least(MOST)]),
        {
            "median": _finite(float(np.median(scores))),
            **_named(half, "cells of 0.7"),
            **_named(most, "cells of 0.4"),
            "smallest": _finite(scores.min()),
            "cells": float(len(cells)),
        },
        otherwise=_few(missing) if missing else _left_open(half, most) + _worst(cells, falls=True),
        essential=True,
    )


def _better(cells: Sequence[Row], missing: Sequence[str]) -> Claim:
    found = share([row.rule < row.usual for row in cells])
    lost = "; ".join(f"{row.task}, {row.steps} steps, {row.name}" for row in cells if row.rule >= row.usual)
    return Claim.decide(
        "better than lr/4",
        "The rule ends below a quarter of the other weights' rate in at least 80% of the held-out cells",
        None if missing else found.at_least(BETTER),
        found.numbers("cells"),
        otherwise=_few(missing)
        if missing
        else f"{_left_open(found, bound=BETTER)}The cells where it does not: {lost}.",
        essential=True,
    )


def _finite(value: float) -> float:
    return float(np.clip(value, -1e9, 1e9))


def _named(found: Share, name: str) -> dict[str, float]:
    """The share with its interval, without the number of cells."""
    return {name: found.part, f"{name}, lower end": found.low, f"{name}, upper end": found.high}


def _left_open(*found: Share, bound: float | None = None) -> str:
    """A sentence where some interval holds its bound: half of the cells, then MOST of them, or the one that is given."""
    bounds = (HALF, MOST) if bound is None else (bound,)
    unsure = [f"{b:.0%}" for one, b in zip(found, bounds, strict=True) if one.at_least(b) is None]
    return f"The 95% interval of the share of cells holds {' and '.join(unsure)}. " if unsure else ""


def _worst(cells: Sequence[Row], falls: bool) -> str:
    ranked = sorted(cells, key=lambda row: row.score, reverse=not falls)[:3]
    said = "; ".join(f"{row.task}, {row.steps} steps, {row.name}: {row.score:.3g}" for row in ranked)
    return f"The cells that are farthest off: {said}."


def _figure(cells: Sequence[Row]) -> Figure:
    """Error at the rule against the best of the sweep, every held-out cell a point."""
    panels: list[Panel] = []
    for classes in (False, True):
        chosen = [row for row in cells if row.classes == classes]
        if not chosen:
            continue
        layers: list[Any] = []
        for k, name in enumerate(_sweeps.NAMES):
            own = [row for row in chosen if row.name == name]
            layers.append(Points(name, [r.best for r in own], [r.rule for r in own], colour=k, legend=not panels))
        ends = [min(r.best for r in chosen), max(r.best for r in chosen)]
        layers.append(Line("equal", ends, ends, colour=5, legend=not panels))
        label = "cross-entropy" if classes else "squared error / variance"
        axes = Axis(f"{label}, best of the sweep", log=not classes), Axis(f"{label}, at the rule", log=not classes)
        panels.append(Panel("Classes" if classes else "Numbers", *axes, layers))
    return Figure(
        "rule-and-best",
        "Held-out tasks: the error at the rule against the best of the sweep, one point per cell.",
        panels,
    )


def _figure_rates(cells: Sequence[Row]) -> Figure:
    """Errors by rate over the rule's, exp, one panel per task."""
    panels: list[Panel] = []
    for task in dict.fromkeys(row.task for row in cells):
        own = [row for row in cells if row.task == task and row.name == "exp"]
        layers: list[Any] = [
            Line(f"{row.steps} steps", row.rates / row.rate, row.errors, colour=k, markers=True, legend=not panels)
            for k, row in enumerate(own)
        ]
        layers.append(Rule("rule", x=1.0))
        log = task not in CLASSES
        panels.append(Panel(task, Axis("recurrent rate / rule", log=True), Axis("error", log=log), layers))
    caption = "Errors of exp after training, by the recurrent rate in units of the rule's, held-out tasks."
    return Figure("sweeps", caption, panels)


def _table(cells: Sequence[Row]) -> Table:
    heads = (
        "task", "steps", "parameterization", "rule's rate", "at the rule", "best of the sweep", "best rate / rule", "at lr/4",
        "rule/best, or share of the gain",
    )  # fmt: skip
    lines: list[list[Any]] = []
    for row in cells:
        factor = float(row.rates[int(row.errors.argmin())] / row.rate)
        label = f"{row.task} (held out)" if row.task in _tasks.HELD_OUT else row.task
        lines.append([label, row.steps, row.name, row.rate, row.rule, row.best, factor, row.usual, row.score])
    caption = "Every cell: errors after training, means over the seeds; inf is a run that diverged."
    return Table("cells", caption, heads, lines)


PAPER: dict[str, Any] = {
    "tasks": [*_tasks.SEEN, *_tasks.HELD_OUT], "steps": [100, 300, 1000], "stack_steps": [100, 300, 1000], "long_steps": [3000],
    "linear_seeds": 5, "stack_seeds": 5, "exponents": [-4, -3, -2, -1, 0, 1, 2, 3], "linear_lr": 0.01, "stack_lr": 0.004,
    "linear_sgd_lr": 0.03, "stack_sgd_lr": 0.1, "linear_batch": 32, "stack_batch": 32, "width": 16, "modes": 16, "test": 1000,
}  # fmt: skip
# linear layers as in PAPER. A stack's step costs 100 times a layer's: 3 seeds, 100 and 300 steps of 16 sequences
STANDARD: dict[str, Any] = {"stack_steps": [100, 300], "stack_seeds": 3, "stack_batch": 16, "test": 256}
QUICK: dict[str, Any] = {
    "tasks": ["slow", "delay-100", "recall-64"], "steps": [20], "stack_steps": [10], "long_steps": [], "linear_seeds": 2,
    "stack_seeds": 1, "exponents": [-2, 0, 2], "stack_batch": 4, "test": 16,
}  # fmt: skip
EXPERIMENT = Experiment(
    id="rates-rule",
    where="Beyond the papers",
    title="The recurrent learning rate by rule, on tasks that it was not chosen on",
    summary="Linear layers and stacks with a short memory at the start learn tasks with a long one, at the rule's rate, "
    "at rates around it by factors of 3, and at a quarter of the other weights' rate.",
    presets=presets(PAPER, standard=STANDARD, quick=QUICK),
    units=units,
    run=_sweeps.run,
    conclude=conclude,
    cost=_sweeps.cost,
    family="rates-sweeps",
)
