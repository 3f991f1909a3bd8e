"""stable-table3: at which recurrent learning rates training still works: a proxy for the paper's 3 billion weights.

A run trains if it ends within 0.1 nat of the best training loss of its seed over all parameterizations and rates. What is
compared is the largest recurrent rate that trains, seed by seed, by ratios.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers.experiments._paired import paired, smaller, together
from holdfast_papers.experiments.base import Conclusion, Config, Unit
from holdfast_papers.experiments.stable import _language as language
from holdfast_papers.experiments.stable import _language_runs as read
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

PUSHED = [0.01, 0.0316, 0.1, 0.316, 1.0, 3.16, 10.0]  # recurrent rates, by factors of sqrt 10
NEAR = 0.1  # nats from the best of all
PRINTED = {"best, b = 0.5": "3/3", "exp": "0/3", "softplus": "0/3", "direct": "0/3"}
Reach = Mapping[str, Sequence[float]]  # the largest rate that trains, by parameterization and seed


def units(config: Config) -> list[Config]:
    """The runs on the first text at every recurrent rate; the other weights keep the paper's."""
    shares = [rate / config["rate"] for rate in config["rates"]]
    return language.runs_at(config, config["data"][:1], [config["rate"]], shares)


def largest_rates(by_rate: Mapping[float, read.Runs]) -> Reach:
    """By parameterization and seed the largest recurrent rate that trains; half of the smallest one tried where none does."""
    names, seeds = [*next(iter(by_rate.values()))], len(next(iter(next(iter(by_rate.values())).values())))
    found: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(seeds):
        losses = {(r, n): _loss(runs[n][seed]) for r, runs in by_rate.items() for n in names}
        best = min(losses.values())
        for name in names:
            good = [rate for rate in by_rate if losses[rate, name] <= best + NEAR]
            found[name].append(max(good, default=min(by_rate) / 2))
    return found


def _loss(run: read.Run) -> float:
    return run["train.loss"] if run.finished else math.inf


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Best trains at a larger recurrent rate than every other, and the order is that of the rule."""
    (text,) = read.texts(units)
    by_rate = {rate: read.pick(units, text, config["rate"], rate / config["rate"]) for rate in sorted(config["rates"])}
    reach = largest_rates(by_rate)
    claims = [*(_claim(name, reach) for name in read.BESTS), _order(by_rate, reach), _three_billion()]
    figure = Figure(
        "final-loss",
        f"Training loss at the end by recurrent learning rate, median over seeds: {read.TEXTS[text]}. A triangle at the top: "
        "most seeds diverged.",
        [_panel(by_rate)],
    )
    modes = [read.modes_table(f"recurrent rate {rate:g}", runs, f"modes-{rate:g}") for rate, runs in by_rate.items()]
    tables = [_table(by_rate, reach), *modes, read.runs_table(units), read.speed_table(units)]
    extra = (
        "A proxy: the paper's table is of a model of 3 billion weights whose sizes it does not give, at learning rate 0.01. "
        "Nothing here says anything about that model."
    )
    return Conclusion(claims, [figure], tables, [*read.notes(units), extra])


def _claim(name: str, reach: Reach) -> Claim:
    turned = {other: [1 / rate for rate in rates] for other, rates in reach.items()}
    found = smaller(turned, name, [other for other in reach if other not in read.BESTS], factor=True)
    return Claim.decide(
        f"largest rate, {name}",
        f"{name} trains (within {NEAR} nats of the best of all) at a larger recurrent rate than every other parameterization; "
        "the ratios are of the other's rate to its own",
        found.holds,
        found.numbers | {f"largest rate that trains, {n}": float(np.median(v)) for n, v in reach.items()},
        otherwise=found.why,
    )


def _order(by_rate: Mapping[float, read.Runs], reach: Reach) -> Claim:
    """The rule's prediction: all reach the same change of the slowest rate by a step, so rates are as `unit.rate`."""
    runs = next(iter(by_rate.values()))
    predicted = {name: read.median(found, lambda run: run["unit.rate"]) for name, found in runs.items()}
    ordered = sorted(predicted, key=predicted.__getitem__)
    gaps = {f"{b} / {a}": paired(reach[b], reach[a], factor=True) for a, b in itertools.pairwise(ordered)}
    answers = [None if (below := gap.below()) is None else not below for gap in gaps.values()]
    numbers = {pair: math.exp(gap.mean) for pair, gap in gaps.items()}
    ends = {
        f"{pair}, {side} end": math.exp(v)
        for pair, g in gaps.items()
        for side, v in (("lower", g.low), ("upper", g.high))
    }
    return Claim.decide(
        "order of the rule",
        f"The largest rates that train are in the order of one change of the slowest rate by a step: {', '.join(ordered)}",
        together(answers),
        numbers | {k: v for k, v in ends.items() if math.isfinite(v)}
        | {f"rate of a whole change by a step, {n}": predicted[n] for n in ordered},
        otherwise="Neighbours in that order have intervals that hold 1, or lie on its other side.",
    )  # fmt: skip


def _three_billion() -> Claim:
    return Claim.decide(
        "3 billion weights",
        "At learning rate 0.01 a model of 3 billion weights converges in 3 of 3 runs with best and in none with exp, softplus "
        "or direct",
        None,
        {},
        paper={"best": 3, "exp": 0, "softplus": 0, "direct": 0},
        otherwise="Never decided here: such a model needs a cluster of GPUs, and the paper does not give its sizes.",
    )


def _panel(by_rate: Mapping[float, read.Runs]) -> Panel:
    lines = [
        Line(
            name, [*by_rate], [read.median(runs[name], lambda run: run["train.loss"]) for runs in by_rate.values()],
            colour=read.COLOURS[name], markers=True,
        )
        for name in next(iter(by_rate.values()))
    ]  # fmt: skip
    return Panel("", Axis("recurrent learning rate", log=True), Axis("training loss at the end, nats"), lines)


def _table(by_rate: Mapping[float, read.Runs], reach: Reach) -> Table:
    rows = [
        [
            name,
            *(round(read.median(runs[name], _loss), 3) if math.isfinite(read.median(runs[name], _loss)) else "diverged"
              for runs in by_rate.values()),
            ", ".join(f"{rate:g}" for rate in rates), PRINTED.get(name),
        ]
        for name, rates in reach.items()
    ]  # fmt: skip
    heads = (
        "parameterization", *(f"recurrent rate {rate:g}" for rate in by_rate), "largest rate that trains, by seed",
        "paper, 3B, rate 0.01",
    )  # fmt: skip
    return Table("converged", "Training loss at the end, medians over seeds, by recurrent learning rate.", heads, rows)


EXPERIMENT = language.experiment(
    id="stable-table3",
    where="Table 3",
    title="At which recurrent rates a language model still trains",
    summary="Language models started from the same eigenvalues through several parameterizations, trained at recurrent rates "
    "up to 10: which runs end near the best of all. A small stand-in for a model of 3 billion weights.",
    units=units,
    conclude=conclude,
    paper={"rates": [0.01]},
    standard={"rates": PUSHED, "steps": 300, "warmup": 3},
    quick={"rates": [0.01, 1.0], "steps": 100},
)
