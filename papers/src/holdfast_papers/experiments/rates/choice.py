"""rates-choice: which parameterization learns best, by optimizer, where the memory must be learned and where it is given.

Tasks, steps and sweeps of rates-rule. Each parameterization is taken at its own best rate (of the sweep, lr/4 and the
rule's, by the mean over the seeds) and at the rule's. Differences are those of logarithms of squared errors, paired by seed
and averaged over tasks and numbers of steps, with the 95% t interval over seeds; they are reported as factors. Tasks with
classes have differences in nats of their own. The start without the memory has rates from 0.1 to 0.8, the start with it
from 1/(1.05 T). SGD takes the rule with the size of a slowest mode's gradient at the start; both optimizers clip gradients
at 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel, Rule
from holdfast_papers.experiments.base import Conclusion, Config, Experiment, Unit, presets
from holdfast_papers.experiments.rates import _sweeps, _tasks, rule
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

STABLE = ("best", "exp", "softplus")
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
STARTS = {"short": "learned", "long": "given"}
LARGEST = 10.0  # error of a diverged run, in the target's variance or in nats: it has none of its own
FACTOR_MARGIN, NATS_MARGIN = 1.25, 0.01  # equality
Cells = dict[tuple[str, str], list[Unit]]  # by optimizer and start
Interval = tuple[float, float, float]  # mean, lower and upper end
SEEDS = 3  # fewer have no interval


def units(config: Config) -> list[Config]:
    """One for each task, number of steps, optimizer and start; those of rates-rule are among them."""
    return [
        rule.cell_config(config, task, steps, optimizer, start)
        for optimizer in OPTIMIZERS
        for start in STARTS
        for task in config["tasks"]
        for steps in (config["stack_steps"] if rule.is_stack(task) else config["steps"])
    ]


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Four claims for each optimizer and kind of error, each with its interval."""
    cells: Cells = {}
    for unit in units:
        cells.setdefault((unit.config["optimizer"], unit.config["start"]), []).append(unit)
    few = min(config["linear_seeds"], config["stack_seeds"]) < SEEDS
    claims: list[Claim] = []
    for optimizer, shown in OPTIMIZERS.items():
        for classes in (False, True):
            learned, given = (_kind(cells[optimizer, start], classes) for start in STARTS)
            if not learned:
                continue
            kind = "classes" if classes else "numbers"
            claims.append(_below(learned, shown, kind, few))
            claims.append(_equal(given, shown, kind, few))
            claims += [_winner(learned, shown, kind, where, few) for where in ("own best rate", "rule")]
    notes = [
        f"Tasks: {', '.join(config['tasks'])}; steps {config['steps']} (linear layers) and {config['stack_steps']} (stacks); "
        f"seeds {config['linear_seeds']} and {config['stack_seeds']}. Other weights at {config['linear_lr']:g} and "
        f"{config['stack_lr']:g} "
        f"under AdamW, {config['linear_sgd_lr']:g} and {config['stack_sgd_lr']:g} under SGD.",
    ]
    return Conclusion(claims, [_figure(cells)], [_table(cells), _cells_table(cells)], notes)


def _kind(units: Sequence[Unit], classes: bool) -> list[Unit]:
    return [unit for unit in units if (unit.config["task"] in rule.CLASSES) == classes]


def at_best(unit: Unit, name: str) -> np.ndarray:
    """Errors of the seeds at the parameterization's own best rate."""
    errors = unit.arrays["error"][_sweeps.NAMES.index(name)]
    return np.asarray(errors[int(np.argmin(_levels(unit, errors).mean(-1)))])


def at_rule(unit: Unit, name: str) -> np.ndarray:
    """Errors of the seeds at the rule's rate."""
    return np.asarray(unit.arrays["error"][_sweeps.NAMES.index(name)][-1])


def _levels(unit: Unit, errors: np.ndarray) -> np.ndarray:
    """What differences are taken of: logarithms of squared errors, nats of cross-entropies."""
    held = np.minimum(errors, LARGEST)
    return held if unit.config["task"] in rule.CLASSES else np.log(np.maximum(held, rule.FIT))


def gap(units: Sequence[Unit], first: str, second: str, pick: Callable[[Unit, str], np.ndarray]) -> Interval:
    """Mean over cells and seeds of level(first) - level(second), with the 95% t interval over seeds."""
    from scipy.stats import t

    seeds = min(unit.config["seeds"] for unit in units)
    each = np.mean(
        [(_levels(u, pick(u, first)) - _levels(u, pick(u, second)))[:seeds] for u in units],
        axis=0,
    )
    if seeds < 2:
        return float(each.mean()), -math.inf, math.inf
    half = float(t.ppf(0.975, seeds - 1) * each.std(ddof=1) / math.sqrt(seeds))
    return float(each.mean()), float(each.mean() - half), float(each.mean() + half)


def _wins(units: Sequence[Unit], first: str, second: str, pick: Callable[[Unit, str], np.ndarray]) -> float:
    """The share of cells in which the mean of the first is below that of the second."""
    return float(np.mean([_levels(u, pick(u, first)).mean() < _levels(u, pick(u, second)).mean() for u in units]))


def _told(kind: str, interval: Interval, name: str) -> dict[str, float]:
    """An interval as factors of errors, or in nats."""
    mean, low, high = interval if kind == "classes" else tuple(math.exp(min(x, 700.0)) for x in interval)
    unit = "nats above" if kind == "classes" else "error of"
    return {f"{unit} {name}": mean, f"lower end, {name}": low, f"upper end, {name}": _finite(high)}


def _finite(value: float) -> float:
    return float(np.clip(value, -1e12, 1e12))


def _below(units: Sequence[Unit], optimizer: str, kind: str, few: bool) -> Claim:
    gaps = {name: gap(units, name, "direct", at_best) for name in STABLE}
    numbers: dict[str, float] = {}
    for name, interval in gaps.items():
        numbers |= _told(kind, interval, f"{name} less direct" if kind == "classes" else f"{name} / direct")
    below = all(high < 0 for _, _, high in gaps.values())
    above = any(low > 0 for _, low, _ in gaps.values())
    return Claim.decide(
        f"learned, {optimizer}, {kind}",
        f"Where the memory must be learned, every stable parameterization ends below direct under {optimizer}, each at "
        f"its own best rate ({kind})",
        None if few else True if below else False if above else None,
        numbers | {f"cells won, {name}": _wins(units, name, "direct", at_best) for name in STABLE},
        otherwise=_few()
        if few
        else "At least one 95% interval does not exclude equal errors."
        if not above
        else "Some stable one ends above direct.",
        essential=True,
    )


def _equal(units: Sequence[Unit], optimizer: str, kind: str, few: bool) -> Claim:
    margin = NATS_MARGIN if kind == "classes" else math.log(FACTOR_MARGIN)
    gaps = {name: gap(units, name, "direct", at_best) for name in STABLE}
    numbers: dict[str, float] = {}
    for name, interval in gaps.items():
        numbers |= _told(kind, interval, f"{name} less direct" if kind == "classes" else f"{name} / direct")
    inside = all(-margin <= low and high <= margin for _, low, high in gaps.values())
    apart = any(low > margin or high < -margin for _, low, high in gaps.values())
    said = "0.01 nats" if kind == "classes" else "a factor of 1.25"
    return Claim.decide(
        f"given, {optimizer}, {kind}",
        f"Where the memory is given, stable parameterizations and direct end equal within {said} under {optimizer} ({kind})",
        None if few else True if inside else False if apart else None,
        numbers,
        otherwise=_few()
        if few
        else "At least one 95% interval lies outside the margin."
        if apart
        else "At least one 95% interval reaches outside the margin.",
        essential=True,
    )


def _winner(units: Sequence[Unit], optimizer: str, kind: str, where: str, few: bool) -> Claim:
    pick = at_best if where == "own best rate" else at_rule
    interval = gap(units, "exp", "best", pick)
    _, low, high = interval
    winner = "exp" if high < 0 else "best" if low > 0 else None
    verdict = f"{winner} ends below" if winner else "neither ends below the other"
    return Claim.decide(
        f"exp and best, {optimizer}, {kind}, {where}",
        f"exp and best differ under {optimizer} where the memory must be learned, at {'the' if where == 'rule' else 'their'} "
        f"{'rates of the rule' if where == 'rule' else 'own best rates'} ({kind}): {verdict}",
        None if few or winner is None else True,
        _told(kind, interval, "exp less best" if kind == "classes" else "exp / best")
        | {"cells won by exp": _wins(units, "exp", "best", pick), "cells": float(len(units))},
        otherwise=_few() if few else "The 95% interval does not exclude equal errors.",
    )


def _few() -> str:
    return f"Needs at least {SEEDS} seeds."


def _figure(cells: Cells) -> Figure:
    """Errors over direct's at own best rates, by cell."""
    panels: list[Panel] = []
    for (optimizer, start), units in cells.items():
        own = _kind(units, False)
        if not own:
            continue
        layers: list[Any] = []
        for k, name in enumerate(STABLE):
            ratios = [
                float(np.exp((_levels(u, at_best(u, name)) - _levels(u, at_best(u, "direct"))).mean())) for u in own
            ]
            layers.append(
                Line(name, np.arange(1, len(own) + 1), np.sort(ratios), colour=k, markers=True, legend=not panels)
            )
        layers.append(Rule("direct", y=1.0))
        axes = Axis("cell, in order of its ratio"), Axis("error / direct's", log=True)
        panels.append(Panel(f"{OPTIMIZERS[optimizer]}, memory {STARTS[start]}", *axes, layers))
    caption = (
        "Squared errors of stable parameterizations over those of direct weights, each at its own best rate, sorted."
    )
    return Figure("against-direct", caption, panels)


def _table(cells: Cells) -> Table:
    heads = (
        "optimizer",
        "memory",
        "errors",
        "at",
        "pair",
        "difference",
        "lower end",
        "upper end",
        "cells won by the first",
        "cells",
    )
    lines: list[list[Any]] = []
    for (optimizer, start), units in cells.items():
        for classes in (False, True):
            own = _kind(units, classes)
            for where, pick in (("own best rate", at_best), ("rule", at_rule)):
                for first, second in (*((name, "direct") for name in STABLE), ("exp", "best")):
                    if own:
                        kind = "classes" if classes else "numbers"
                        told = [*_told(kind, gap(own, first, second, pick), "x").values()]
                        lines.append(
                            [OPTIMIZERS[optimizer], STARTS[start], "nats" if classes else "factor", where,
                             f"{first} : {second}",
                             *told, _wins(own, first, second, pick), len(own)]
                        )  # fmt: skip
    caption = (
        "Differences of errors, means over cells: factors of squared errors, nats of cross-entropies; 95% t intervals."
    )
    return Table("pairs", caption, heads, lines)


def _cells_table(cells: Cells) -> Table:
    heads = (
        "optimizer",
        "memory",
        "task",
        "steps",
        "parameterization",
        "own best rate",
        "error there",
        "rule's rate",
        "error at the rule",
    )
    lines: list[list[Any]] = []
    for (optimizer, start), units in cells.items():
        for unit in units:
            errors = rule.mean_error(unit.config["task"], np.minimum(unit.arrays["error"], LARGEST))
            for k, name in enumerate(_sweeps.NAMES):
                at = int(errors[k].argmin())
                rates = unit.arrays["rates"][k]
                lines.append(
                    [OPTIMIZERS[optimizer], STARTS[start], unit.config["task"], unit.config["steps"], name, float(rates[at]),
                     float(errors[k, at]), float(rates[-1]), float(errors[k, -1])]
                )  # fmt: skip
    return Table("cells", "Every cell: means over the seeds; a diverged run counts as 10.", heads, lines)


LINEAR = [*_tasks.LINEAR_SEEN, *_tasks.LINEAR_HELD_OUT]
EXPERIMENT = Experiment(
    id="rates-choice",
    where="Beyond the papers",
    title="Which parameterization learns a memory best, under AdamW and under SGD",
    summary="Direct, best, exp and softplus weights learn the tasks of rates-rule from the same eigenvalues, with and without "
    "the memory at the start, each at its own best rate and at the rule's.",
    presets=presets(
        rule.PAPER,
        # stacks as in rates-rule; adding 200 is left out, which no rate learns in 300 steps of 16 sequences
        standard=rule.STANDARD | {"tasks": [*LINEAR, "recall-64", "pixels"], "stack_steps": [300]},
        quick=rule.QUICK | {"tasks": ["slow", "recall-64"]},
    ),
    units=units,
    run=_sweeps.run,
    conclude=conclude,
    cost=_sweeps.cost,
    family="rates-sweeps",
)
