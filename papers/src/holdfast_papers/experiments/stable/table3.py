"""stable-table3: how often training converges as the learning rate is raised: a proxy for the paper's 3 billion weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers.experiments.base import Conclusion, Config, Unit
from holdfast_papers.experiments.stable import _language as language
from holdfast_papers.experiments.stable import _language_runs as read
from holdfast_papers.experiments.stable.fig6 import RATES, units
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

PUSHED = (*RATES, 0.03, 0.1, 0.3)
GAIN = 0.5  # nats below the start: less is no training
STEPS = 300
PRINTED = {"best, b = 0.5": "3/3", "exp": "0/3", "softplus": "0/3", "direct": "0/3"}


def trains(run: read.Run) -> bool:
    """Whether it stayed finite and ended half a nat below the start."""
    return run.finished and run["train.loss"] <= run["train.first"] - GAIN


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Best trains at a larger learning rate than every other parameterization."""
    (text,) = read.texts(units)
    by_rate = {rate: read.pick(units, text, rate, config["share"]) for rate in sorted(config["rates"])}
    counts = {name: [sum(map(trains, runs[name])) for runs in by_rate.values()] for name in language.PARAMETERIZATIONS}
    claims = [*(_claim(name, by_rate, counts, config["steps"]) for name in read.BESTS), _three_billion()]
    figure = Figure(
        "final-loss",
        f"Training loss at the end by learning rate, median over seeds: {read.TEXTS[text]}. A triangle at the top: most seeds "
        "diverged.",
        [_panel(by_rate)],
    )
    modes = [read.modes_table(f"learning rate {rate:g}", runs, f"modes-{rate:g}") for rate, runs in by_rate.items()]
    tables = [_table(by_rate, counts), *modes, read.runs_table(units), read.speed_table(units)]
    extra = (
        "A proxy: the paper's table is of a model of 3 billion weights whose sizes it does not give, at learning rate 0.01. "
        "Nothing here says anything about that model."
    )
    return Conclusion(claims, [figure], tables, [*read.notes(units), extra])


def largest(counts: Sequence[int], rates: Sequence[float], seeds: int) -> float:
    """The largest learning rate at which at least two of three seeds train; 0 where none does."""
    return max((rate for rate, count in zip(rates, counts, strict=True) if 3 * count >= 2 * seeds), default=0.0)


def separated(counts: Mapping[str, Sequence[int]], seeds: int) -> bool:
    """Whether there is a learning rate at which some parameterizations train and others do not."""
    table = np.array([*counts.values()]) * 3 >= 2 * seeds
    return bool((table.any(0) & ~table.all(0)).any())


def _claim(name: str, by_rate: Mapping[float, read.Runs], counts: Mapping[str, Sequence[int]], steps: int) -> Claim:
    rates, seeds = [*by_rate], len(next(iter(by_rate.values()))[name])
    reach = {other: largest(counts[other], rates, seeds) for other in (name, *read.RIVALS)}
    apart = separated({other: counts[other] for other in reach}, seeds)
    ready = seeds >= read.SEEDS and steps >= STEPS and apart
    return Claim.decide(
        f"largest rate, {name}",
        f"{name} trains (finite, {GAIN} nats below the start after {STEPS} steps) at a larger learning rate than every other "
        "parameterization, in at least 2 of 3 seeds",
        reach[name] > max(reach[rival] for rival in read.RIVALS) if ready else None,
        {f"largest rate that trains, {other}": rate for other, rate in reach.items()},
        otherwise=read.few(seeds)
        + ("" if apart else "At every learning rate that was tried all parameterizations train, or none does. ")
        + f"At learning rate {rates[-1]:g}: {read.account(by_rate[rates[-1]], [name, *_furthest(reach, name)])}",
    )


def _furthest(reach: Mapping[str, float], name: str) -> list[str]:
    """The others that train at a learning rate at least as large."""
    return [other for other, rate in reach.items() if other != name and rate >= reach[name]]


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
        for name in language.PARAMETERIZATIONS
    ]  # fmt: skip
    return Panel("", Axis("learning rate", log=True), Axis("training loss at the end, nats"), lines)


def _table(by_rate: Mapping[float, read.Runs], counts: Mapping[str, Sequence[int]]) -> Table:
    seeds = len(next(iter(by_rate.values()))["direct"])
    rows = [
        [name, *(f"{count}/{seeds}" for count in row), largest(row, [*by_rate], seeds), PRINTED.get(name)]
        for name, row in counts.items()
    ]
    heads = (
        "parameterization",
        *(f"rate {rate:g}" for rate in by_rate),
        "largest rate that trains",
        "paper, 3B, rate 0.01",
    )
    return Table("converged", "Runs that train, of all runs, by learning rate.", heads, rows)


EXPERIMENT = language.experiment(
    id="stable-table3",
    where="Table 3",
    title="How often a language model trains as the learning rate is raised",
    summary="Language models started from the same eigenvalues through eight parameterizations, trained at learning rates up "
    "to 0.3: which runs stay finite and fall half a nat below the start. A small stand-in for a model of 3 billion weights.",
    units=units,
    conclude=conclude,
    paper={"rates": [0.01]},
    standard={"rates": PUSHED},
    quick={"rates": [0.005, 0.01, 0.1]},
)
