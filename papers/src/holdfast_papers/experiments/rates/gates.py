"""rates-gates: do the gates of an LSTM and a GRU keep to the reach, and does reach tell which delays are learned?

A sequence of numbers +-1 with a mark on the first: after `delay` further steps the answer is the marked number. Layers
start as torch makes them, with a forget gate near one half, and are trained at every pair of steps and learning rate.
`holdfast.stability.reach` says before training how long a time constant that run can get to. After training the memory is
measured on inputs of the task: the time constant with which the difference of two nearby states falls. A run has learned
when its squared error on test sequences is below a tenth of the answer's variance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.figures import Axis, Figure, Line, Panel, Points
from holdfast.stability import reach
from holdfast_papers.experiments._shares import Share, share
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.experiments.rates import _gated
from holdfast_papers.experiments.rates._copies import Recipe, Weights, train
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

CELLS = {"lstm": "LSTM", "gru": "GRU"}
FEATURES = 2  # number and mark
LEARNED_BELOW = 0.1  # of the answer's variance
EXCESS, MOST = 1.5, 0.95  # memory / reach, and the share of runs that keep to it
NOT_LEARNED, LEARNED, DELAYS = 0.2, 0.8, 3.0  # shares that learn below the reach and above so many delays
VANISHES = (
    " Reach is how far weights can get, not that they go there: at the start, with a time constant of 2 steps, the gradient of "
    "what lies a delay of D steps back is of the size e^(-D/2), and the other inputs decide where the steps go."
)
Judge = Callable[[Share], bool | None]
LONGEST = 1e9  # time constant that stands for an infinite one, in the figure


def units(config: Config) -> list[Config]:
    """One for each cell, delay and number of steps, with all rates and seeds at once."""
    return split(drop(config, "delays", "cells"), cell=config["cells"], delay=config["delays"], steps=config["steps"])


def draw(delay: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences (count, delay + 1, 2) and the marked numbers (count, 1)."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 2, (count, delay + 1), generator=generator).float() * 2 - 1
    marks = torch.zeros_like(values)
    marks[:, 0] = 1.0
    return torch.stack((values, marks), -1), values[:, :1]


def run(config: Config, work: Work) -> Arrays:
    """Reach before training, error and memory after it, for each rate and seed."""
    cell, delay, seeds, rates = config["cell"], config["delay"], config["seeds"], config["rates"]
    reached = [[_reached(cell, config, rate, seed) for seed in range(seeds)] for rate in rates]
    start = _gated.start(cell, FEATURES, config["units"], seeds)
    weights = {name: w.repeat(len(rates), *(1,) * (w.ndim - 1)).clone() for name, w in start.items()}
    every = torch.tensor(rates).repeat_interleave(seeds)

    def loss(weights: Weights, step: int) -> Tensor:
        drawn = [draw(delay, config["batch"], 1_000_003 * (step + 1) + seed) for seed in range(seeds)]
        x, y = (
            torch.stack(parts).repeat(len(rates), *(1,) * (2 + k))
            for k, parts in ((1, [d[0] for d in drawn]), (0, [d[1] for d in drawn]))
        )
        return (_gated.answers(cell, weights, x) - y).square().mean((1, 2))

    recipe = Recipe("adamw", config["steps"], 0.0)
    alive = train(loss, weights, tuple(weights), every, recipe, lambda done: work.progress(done))
    x, y = (part.unsqueeze(0).expand(len(every), *part.shape) for part in draw(delay, config["test"], 10**9))
    with torch.no_grad():
        error = (_gated.answers(cell, weights, x) - y).square().mean((1, 2))
    memory = _gated.time_constants(cell, weights, x[:, : config["measured"]])
    shape = (len(rates), seeds)
    return {
        "reach": np.array(reached)[..., 0],
        "provable": np.array(reached)[..., 1],
        "start": np.array(reached)[..., 2],
        "error": torch.where(alive, error.double(), torch.inf).reshape(shape).numpy(),
        "memory": torch.where(alive, memory, torch.inf).reshape(shape).numpy(),
    }


def _reached(cell: str, config: Config, rate: float, seed: int) -> tuple[float, float, float]:
    (one,) = reach(_gated.module(cell, FEATURES, config["units"], seed), rate, config["steps"])
    return one.reached, one.provable, one.now


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Three claims for each cell: memory within the reach, no learning below it, learning well above it."""
    few = config["seeds"] < 3 or len(config["delays"]) < 3
    claims = []
    for cell, shown in CELLS.items():
        own = [unit for unit in units if unit.config["cell"] == cell]
        if own:
            claims += _claims(shown, own, few)
    notes = [
        f"{config['units']} units, delays {config['delays']}, steps {config['steps']}, rates {config['rates']}, "
        f"{config['seeds']} seeds; AdamW without "
        "weight decay, one rate for all weights, clipping at 1, a warm-up of a tenth and a cosine to 0, batch "
        f"{config['batch']}.",
        "Memory is the time constant of the difference of two nearby states, mean over test sequences, second half of "
        "each; where "
        "it does not fall, as in a state that latches, it is infinite.",
    ]
    return Conclusion(claims, [_figure(units)], [_table(units)], notes)


def _flat(units: Sequence[Unit], key: str) -> np.ndarray:
    return np.concatenate([unit.arrays[key].ravel() for unit in units])


def _claims(shown: str, units: Sequence[Unit], few: bool) -> list[Claim]:
    delays = np.concatenate([np.full(unit.arrays["error"].size, unit.config["delay"]) for unit in units])
    reached, memory, learned = _flat(units, "reach"), _flat(units, "memory"), _flat(units, "error") < LEARNED_BELOW
    within, below, above = memory <= EXCESS * reached, reached < delays, reached > DELAYS * delays
    needs = "Needs 3 delays and 3 seeds."
    return [
        _share(
            f"{shown}, within reach", f"The memory of a trained {shown} is at most 1.5 times the reach in at least 95% "
            "of the runs",
            within, lambda found: found.at_least(MOST), needs if few else "",
        ),
        _share(
            f"{shown}, below", f"Where the reach of a {shown} is below the delay, at most 20% of the runs learn it",
            learned[below], lambda found: found.at_most(NOT_LEARNED), needs if few else "",
        ),
        _share(
            f"{shown}, above", f"Where the reach of a {shown} is above three delays, at least 80% of the runs learn it",
            learned[above], lambda found: found.at_least(LEARNED), needs if few else "", VANISHES,
        ),
    ]  # fmt: skip


def _share(name: str, statement: str, true: np.ndarray, holds: Judge, few: str, more: str = "") -> Claim:
    """Met or not where the whole interval of the share lies on one side of the bound."""
    found = share(true)
    wins = f"{int(true.sum())} of {found.count} runs"
    decided = None if few else holds(found)
    reason = f"{wins}: the 95% interval of their share contains the bound." if decided is None else f"{wins}.{more}"
    return Claim.decide(
        name,
        statement,
        decided,
        found.numbers(),
        otherwise=few or (reason if found.count else "There is no such run."),
        essential=True,
    )


def _figure(units: Sequence[Unit]) -> Figure:
    panels: list[Panel] = []
    for cell, shown in CELLS.items():
        own = [unit for unit in units if unit.config["cell"] == cell]
        if not own:
            continue
        layers: list[Any] = []
        for k, delay in enumerate(sorted({unit.config["delay"] for unit in own})):
            same = [unit for unit in own if unit.config["delay"] == delay]
            x, y = (np.minimum(_flat(same, key), LONGEST) for key in ("reach", "memory"))
            learned = _flat(same, "error") < LEARNED_BELOW
            for chosen, label, symbol in ((~learned, "not learned", 2 * k), (learned, "learned", 2 * k + 1)):
                layers.append(Points(f"delay {delay}, {label}", x[chosen], y[chosen], colour=symbol, legend=not panels))
        ends = [1.0, LONGEST]
        layers.append(Line("reach", ends, ends, colour=6, legend=not panels))
        axes = Axis("reach before training (steps)", log=True), Axis("memory after training (steps)", log=True)
        panels.append(Panel(shown, *axes, layers))
    caption = (
        "The time constant after training, on the task's inputs, against the reach that was computed before it; one "
        "point a run, "
        "time constants above 1e9 at 1e9."
    )
    return Figure("memory-and-reach", caption, panels)


def _table(units: Sequence[Unit]) -> Table:
    heads = (
        "cell",
        "delay",
        "steps",
        "rate",
        "memory at the start",
        "reach",
        "memory, median",
        "memory, largest",
        "error, median",
        "learned",
    )
    rows: list[list[Any]] = []
    for unit in units:
        for k, rate in enumerate(unit.config["rates"]):
            one = {key: value[k] for key, value in unit.arrays.items()}
            learned = f"{int((one['error'] < LEARNED_BELOW).sum())} of {len(one['error'])}"
            rows.append(
                [CELLS[unit.config["cell"]], unit.config["delay"], unit.config["steps"], rate, float(np.median(one["start"])),
                 float(np.median(one["reach"])), float(np.median(one["memory"])), float(one["memory"].max()),
                 float(np.median(one["error"])), learned]
            )  # fmt: skip
    return Table("runs", "Medians over the seeds.", heads, rows)


def cost(config: Config) -> float:
    """Seconds of a unit."""
    copies = len(config["rates"]) * config["seeds"]
    return float(config["steps"] * (config["delay"] + 1) * (3e-4 + 1.5e-7 * copies * config["batch"]))


EXPERIMENT = Experiment(
    id="rates-gates",
    where="Beyond the papers",
    title="How long a memory the gates of an LSTM and a GRU can learn",
    summary="LSTMs and GRUs of 32 units learn to recall a number after a delay, at nine pairs of steps and learning rate; "
    "the memory that they end with is compared with the reach that was computed before training.",
    presets=presets(
        {
            "cells": ["lstm", "gru"], "units": 32, "delays": [20, 100, 400], "steps": [300, 1000, 3000],
            "rates": [0.001, 0.003, 0.01], "seeds": 3, "batch": 32, "test": 128, "measured": 32,
        },
        # the same products of steps and rate, so the same reach, from a fifth of the steps: 400 steps back take 0.15 s per
        # step; with 3 seeds the interval of the share of GRUs holds its bound
        standard={
            "steps": [60, 200, 600], "rates": [0.005, 0.015, 0.05], "seeds": 12, "batch": 16, "test": 64, "measured": 16,
        },
        quick={
            "delays": [5], "steps": [20], "rates": [0.01, 0.1], "seeds": 1, "batch": 4, "test": 8, "measured": 4, "units": 8,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
)  # fmt: skip
