"""stable-fig5: gradient over weight of a language model's recurrent weights while it is trained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers.experiments.base import Conclusion, Config, Unit
from holdfast_papers.experiments.stable import _language as language
from holdfast_papers.experiments.stable import _language_runs as read
from holdfast_papers.experiments.stable.fig4 import units
from holdfast_papers.results import Claim


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Best has the smallest maximum over the training; exp is a comparison of its own where its weights pass through 0."""
    by_text = {text: read.pick(units, text, config["rate"], config["share"]) for text in read.texts(units)}
    claims = [claim for text, runs in by_text.items() for name in read.BESTS for claim in _claims(text, name, runs)]
    figure = Figure(
        "ratio",
        f"Largest gradient over weight of the recurrent weights by step at learning rate {config['rate']:g}, median over "
        "seeds. A triangle at the top: most seeds have diverged.",
        [_panel(read.TEXTS[text], runs, config["steps"], k == 0) for k, (text, runs) in enumerate(by_text.items())],
    )
    tables = [*read.modes_tables(by_text), read.runs_table(units), read.speed_table(units)]
    return Conclusion(claims, [figure], tables, read.notes(units))


def _claims(text: str, name: str, runs: read.Runs) -> list[Claim]:
    through = sum(run["crossed"] > 0 for run in runs["exp"])
    # a ratio is large where a weight passes through 0, which says nothing of the gradient: exp is then a claim of its own
    rest = [rival for rival in read.rivals(runs) if rival != "exp" or not through]
    numbers = {"seeds in which exp's w passes through 0": float(through)}
    moment = _moment(name, runs) if len(runs[name]) >= read.SEEDS else ""
    claims = []
    for others, words, key in (
        (rest, f"smallest for {name}{'; exp has a claim of its own' if through else ''}", f"training, {name}, {text}"),
        (["exp"], f"smaller for {name} than for exp", f"training, {name} against exp, {text}"),
    ):  # fmt: skip
        found = read.smallest(runs, name, others, _largest, factor=True).unless(read.frozen(runs))
        claims.append(
            Claim.decide(
                key,
                f"During training the largest gradient over weight is {words}: {read.TEXTS[text]}",
                found.holds,
                found.numbers | numbers | read.medians(runs, "largest", _largest),
                otherwise=moment + found.why + read.account(runs, [name, *others]),
            )
        )
    return claims


def _largest(run: read.Run) -> float:
    return run.largest_ratio


def _moment(name: str, runs: read.Runs) -> str:
    """When the largest ratio was met, and how many weights changed sign: a ratio is large where a weight passes 0."""
    ended = [run.unit.arrays for run in runs[name] if run.finished]
    at = ", ".join(str(arrays["ratio.steps"][np.argmax(arrays["ratio"])]) for arrays in ended)
    signs = read.median(runs[name], lambda run: run["crossed"])
    return f"The largest ratio of {name} was met at step {at or 'none'}; {signs:.0%} of its weights changed sign. "


def _panel(title: str, runs: read.Runs, steps: int, legend: bool) -> Panel:
    lines = []
    for name, found in runs.items():
        where = max((run.unit.arrays["ratio.steps"] for run in found), key=len)
        table = np.full((len(found), len(where)), np.inf)
        for row, run in zip(table, found, strict=True):
            row[: len(run.unit.arrays["ratio"])] = run.unit.arrays["ratio"]
        if len(where):
            middle = np.median(table, 0).astype(np.float32)
            lines.append(Line(name, where, middle, colour=read.COLOURS[name], legend=legend))
    return Panel(title, Axis("step", limits=(0, steps)), Axis("largest |gradient| / |weight|", log=True), lines)


EXPERIMENT = language.experiment(
    id="stable-fig5",
    where="Figure 5",
    title="Gradient over weight of a language model during training",
    summary="The largest gradient over weight of the recurrent weights at every step, for language models started from the "
    "same eigenvalues through eight parameterizations and trained at the paper's learning rate.",
    units=units,
    conclude=conclude,
)
