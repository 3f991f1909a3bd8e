"""stable-fig6: training loss of a language model by learning rate, and how steady it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers.experiments.base import Conclusion, Config, Unit
from holdfast_papers.experiments.stable import _language as language
from holdfast_papers.experiments.stable import _language_runs as read
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

RATES = (0.001, 0.002, 0.005, 0.01)


def units(config: Config) -> list[Config]:
    """The runs on the first text at every learning rate."""
    return language.runs_at(config, config["data"][:1], config["rates"], [config["share"]])


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The sum of the loss's upward moves is smallest for best at the largest learning rate."""
    (text,) = read.texts(units)
    by_rate = {rate: read.pick(units, text, rate, config["share"]) for rate in sorted(config["rates"])}
    claims = [*(_steady(name, by_rate) for name in read.BESTS), *(_lowest(name, by_rate) for name in read.BESTS)]
    figures = [
        Figure(
            "loss",
            f"Training loss by learning rate, median over seeds: {read.TEXTS[text]}.",
            [
                read.loss_panel(f"learning rate {rate:g}", runs, k == 0)
                for k, (rate, runs) in enumerate(by_rate.items())
            ],
        ),
        Figure(
            "upward-moves",
            f"Sum of the upward moves of the training loss, smoothed over {read.WINDOW} points of the log, by learning rate; "
            "from the smallest to the largest of the seeds. A run that diverged counts as infinite.",
            [_moves(by_rate)],
        ),
    ]
    modes = [read.modes_table(f"learning rate {rate:g}", runs, f"modes-{rate:g}") for rate, runs in by_rate.items()]
    tables = [_table(by_rate), *modes, read.runs_table(units), read.speed_table(units)]
    return Conclusion(claims, figures, tables, read.notes(units))


def _steady(name: str, by_rate: Mapping[float, read.Runs]) -> Claim:
    rate = max(by_rate)
    runs = by_rate[rate]
    found = read.smallest(runs, name, read.rivals(runs), _upward).unless(read.frozen(runs))
    return Claim.decide(
        f"steadiest, {name}",
        f"At the largest learning rate, {rate:g}, the sum of the upward moves of the smoothed training loss is smallest for "
        f"{name}, in nats",
        found.holds,
        found.numbers | read.medians(runs, "upward moves", _upward),
        otherwise=found.why + read.account(runs, [name]),
    )


def _lowest(name: str, by_rate: Mapping[float, read.Runs]) -> Claim:
    rate = max(by_rate)
    runs = by_rate[rate]
    found = read.smallest(runs, name, read.rivals(runs), _loss).unless(read.frozen(runs))
    return Claim.decide(
        f"smallest loss, {name}",
        f"At the largest learning rate, {rate:g}, {name} reaches the smallest training loss, in nats",
        found.holds,
        found.numbers | read.medians(runs, "loss", _loss),
        otherwise=found.why + read.account(runs, [name]),
    )


def _loss(run: read.Run) -> float:
    return run["train.loss"]


def _upward(run: read.Run) -> float:
    return run.upward


def _moves(by_rate: Mapping[float, read.Runs]) -> Panel:
    lines = []
    for name in next(iter(by_rate.values())):
        table = np.array([[run.upward for run in runs[name]] for runs in by_rate.values()])
        low, middle, high = table.min(1), np.median(table, 1), table.max(1)
        lines.append(Line(name, [*by_rate], middle, low, high, colour=read.COLOURS[name], markers=True))
    return Panel("", Axis("learning rate", log=True), Axis("upward moves, nats", log=True), lines)


def _table(by_rate: Mapping[float, read.Runs]) -> Table:
    rows = []
    for name in next(iter(by_rate.values())):
        cells = [(read.median(runs[name], _upward), read.median(runs[name], _loss)) for runs in by_rate.values()]
        rows.append([name, *(f"{loss:.3f} ({moves:.3f})" for moves, loss in cells)])
    heads = ("parameterization", *(f"learning rate {rate:g}" for rate in by_rate))
    caption = "Final training loss, and in brackets the sum of its upward moves, in nats: medians over seeds."
    return Table("rates", caption, heads, rows)


EXPERIMENT = language.experiment(
    id="stable-fig6",
    where="Figure 6",
    title="Training loss of a language model by learning rate",
    summary="Language models started from the same eigenvalues through eight parameterizations, trained at four learning "
    "rates: training losses, and the sum of their upward moves.",
    units=units,
    conclude=conclude,
    paper={"rates": RATES},
    standard={"rates": [0.005, 0.01]},
    quick={"rates": [0.005, 0.01]},
)
