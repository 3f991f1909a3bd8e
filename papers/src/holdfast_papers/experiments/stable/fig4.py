"""stable-fig4: gradient over weight in a language model at the start, and its training loss at the paper's learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.figures import Axis, Bars, Figure, Panel
from holdfast_papers.experiments._paired import together
from holdfast_papers.experiments.base import Conclusion, Config, Unit
from holdfast_papers.experiments.stable import _language as language
from holdfast_papers.experiments.stable import _language_runs as read
from holdfast_papers.results import Claim

PLAIN = ("direct", "relu")


def units(config: Config) -> list[Config]:
    """The runs at the paper's learning rate."""
    return language.runs_at(config, config["data"], [config["rate"]], [config["share"]])


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """(a) best has the smallest largest ratio at the start; (b) its loss is steadier than that of ReLU and exp."""
    by_text = {text: read.pick(units, text, config["rate"], config["share"]) for text in read.texts(units)}
    claims = [
        claim
        for text, runs in by_text.items()
        for claim in (*_start(text, runs), _narrow(text, runs), *_steady(text, runs))
    ]
    figures = [
        Figure(
            "start",
            "Gradient over weight of the recurrent weights at the first step: median over weights, and bars from the 5% "
            "quantile to the largest. All models have the same eigenvalues.",
            [_spread(read.TEXTS[text], runs) for text, runs in by_text.items()],
        ),
        Figure(
            "loss",
            f"Training loss at learning rate {config['rate']:g}, median over seeds.",
            [read.loss_panel(read.TEXTS[text], runs, k == 0) for k, (text, runs) in enumerate(by_text.items())],
        ),
    ]
    tables = [*read.modes_tables(by_text), read.runs_table(units), read.speed_table(units)]
    return Conclusion(claims, figures, tables, read.notes(units))


def _start(text: str, runs: read.Runs) -> list[Claim]:
    claims = []
    for name in read.BESTS:
        found = read.smallest(runs, name, read.rivals(runs), lambda run: run["ratio.start"], factor=True)
        claims.append(
            Claim.decide(
                f"start, {name}, {text}",
                f"At the same eigenvalues, the largest gradient over weight at the start is smallest for {name}: "
                f"{read.TEXTS[text]}",
                found.holds,
                found.numbers | read.medians(runs, "largest", lambda run: run["ratio.start"]),
                otherwise=found.why + read.account(runs, [name]),
            )
        )
    return claims


def _narrow(text: str, runs: read.Runs) -> Claim:
    plain = [name for name in PLAIN if name in runs]
    each = [read.smallest(runs, n, plain, lambda run: run["ratio.start"], factor=True) for n in read.stable(runs)]
    return Claim.decide(
        f"stable ones narrower, {text}",
        "At the start the largest gradient over weight of every stable parameterization is below that of "
        f"{' and '.join(plain)}: {read.TEXTS[text]}",
        together([found.holds for found in each]),
        {key: number for found in each for key, number in found.numbers.items()},
        otherwise="".join(found.why for found in each) + read.account(runs, [*read.stable(runs), *plain]),
    )


def _steady(text: str, runs: read.Runs) -> list[Claim]:
    claims = []
    others = [name for name in ("relu", "exp") if name in runs]
    for name in read.BESTS:
        found = read.smallest(runs, name, others, lambda run: run.upward).unless(read.frozen(runs))
        claims.append(
            Claim.decide(
                f"steadier than {' and '.join(others)}, {name}, {text}",
                f"The training loss of {name} moves upward less, in sum, than that of {' and '.join(others)}: "
                f"{read.TEXTS[text]}, in nats",
                found.holds,
                found.numbers | read.medians(runs, "upward moves", lambda run: run.upward),
                otherwise=found.why + read.account(runs, [name, *others]),
            )
        )
    return claims


def _spread(title: str, runs: read.Runs) -> Panel:
    table = np.array([np.median([r.unit.arrays["start"] for r in found], 0) for found in runs.values()])
    low, middle, high = table[:, :, 1].min(1), np.median(table[:, :, 2], 1), table[:, :, 4].max(1)
    return Panel(
        title,
        Axis("parameterization"),
        Axis("|gradient| / |weight|", log=True),
        [Bars("start", [*runs], middle, low, high)],
    )


EXPERIMENT = language.experiment(
    id="stable-fig4",
    where="Figure 4",
    title="Gradient over weight in a language model at the start, and its training loss",
    summary="Language models of Hyena-type blocks with real diagonal recurrences, started from the same eigenvalues through "
    "eight parameterizations: gradient over weight at the first step, and the training loss at the paper's learning rate.",
    units=units,
    conclude=conclude,
)
