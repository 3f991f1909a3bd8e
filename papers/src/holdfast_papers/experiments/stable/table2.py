"""stable-table2: test loss of language models, at the paper's learning rates and at each one's best recurrent rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from holdfast.figures import Axis, Bars, Figure, Panel
from holdfast_papers.experiments._paired import Difference, paired, smaller, together
from holdfast_papers.experiments.base import Conclusion, Config, Unit
from holdfast_papers.experiments.stable import _language as language
from holdfast_papers.experiments.stable import _language_runs as read
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

PRINTED = {
    "best, b = 0.5": (2.844, 3.035), "exp": (2.755, 3.007), "softplus": (2.679, 3.003), "direct": (2.940, 3.338),
}  # fmt: skip


def units(config: Config) -> list[Config]:
    """The runs at the paper's rates, and those at the recurrent rates of the rule."""
    return language.runs_at(config, config["data"], [config["rate"]], config["shares"])


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Every stable parameterization is below direct in test loss, by the paired difference over the seeds."""
    columns = {
        (text, "the rule's rates" if share == language.RULE else "the paper's rates"): read.pick(
            units, text, config["rate"], share
        )
        for text in read.texts(units)
        for share in config["shares"]
    }
    claims = [_claim(text, column, runs) for (text, column), runs in columns.items()]
    figure = Figure(
        "test-loss",
        "Test loss of each parameterization, median over seeds; from the smallest to the largest of the seeds.",
        [_panel(f"{read.TEXTS[text]}, {column}", runs) for (text, column), runs in columns.items()],
    )
    tables = [
        *(_table(text, column, runs) for (text, column), runs in columns.items()),
        *(
            read.modes_table(f"{read.TEXTS[text]}, {column}", runs, f"modes-{k}")
            for k, ((text, column), runs) in enumerate(columns.items())
        ),
        read.runs_table(units),
        read.speed_table(units),
    ]
    extra = (
        "The rule's rates: each parameterization's own recurrent rate by holdfast.recurrent_rate for a memory of one window of "
        f"{config['length']} tokens; the other weights' rate is {config['rate']:g} in both columns."
    )
    return Conclusion(claims, [figure], tables, [*read.notes(units), extra])


def _claim(text: str, column: str, runs: read.Runs) -> Claim:
    arms = {name: [run["test.loss"] for run in found] for name, found in runs.items()}
    each = [smaller(arms, name, ["direct"]) for name in read.stable(runs)]
    held = read.frozen(runs)
    past = sum(run["margin.end"] <= 0 for run in runs["direct"])
    lost = sum(not run.finished for run in runs["direct"])
    return Claim.decide(
        f"{column}, {text}",
        f"{', '.join(read.stable(runs))} each have a smaller test loss than direct, in nats: {read.TEXTS[text]}, {column}",
        None if held else together([found.holds for found in each]),
        {k: v for found in each for k, v in found.numbers.items()} | {"runs of direct that diverged": float(lost)},
        otherwise=f"{held} {''.join(found.why for found in each)}Direct ended with a mode at or past the boundary in {past} of "
        f"{len(runs['direct'])} seeds. {read.account(runs, [*runs])}",
    )


def _panel(title: str, runs: read.Runs) -> Panel:
    """Bars of the runs that finished; the name of a bar says how many did not."""
    names, rows = [], []
    for name, found in runs.items():
        losses = [run["test.loss"] for run in found if math.isfinite(run["test.loss"])]
        lost = len(found) - len(losses)
        names.append(f"{name} ({lost} of {len(found)} diverged)" if lost else name)
        rows.append([np.median(losses), min(losses), max(losses)] if losses else [math.nan] * 3)
    middle, low, high = np.array(rows).T
    layer = Bars("test loss", names, middle, low, high)
    return Panel(title, Axis("parameterization"), Axis("test loss, nats"), [layer])


def _table(text: str, column: str, runs: read.Runs) -> Table:
    rows = []
    for name, found in runs.items():
        train, test = ([value(run) for run in found] for value in (lambda r: r["train.loss"], lambda r: r["test.loss"]))
        gap = paired(test, [run["test.loss"] for run in runs["direct"]])
        printed = PRINTED.get(name, (None, None))
        rates = ", ".join(f"{run['rate']:.3g}" for run in found)
        rows.append([name, rates, *(_mean(losses) for losses in (train, test)), _perplexity(test), _gap(gap), *printed])
    heads = (
        "parameterization", "recurrent rate by seed", "train loss", "test loss", "test perplexity",
        "less direct (95% interval)", "paper's train loss", "paper's test loss",
    )  # fmt: skip
    name = f"{text}-{column}".replace(" ", "-").replace("'", "")
    return Table(
        name, f"{read.TEXTS[text]}, {column}: means over seeds, in nats. The paper's are of WikiText-103.", heads, rows
    )


def _mean(losses: Sequence[float]) -> float | str:
    lost = sum(not math.isfinite(loss) for loss in losses)
    return f"{lost} of {len(losses)} diverged" if lost else round(float(np.mean(losses)), 4)


def _perplexity(losses: Sequence[float]) -> float | str:
    mean = _mean(losses)
    return mean if isinstance(mean, str) else round(math.exp(mean), 2)


def _gap(gap: Difference) -> str:
    return f"{gap.mean:.4f} [{gap.low:.4f}, {gap.high:.4f}]"


EXPERIMENT = language.experiment(
    id="stable-table2",
    where="Table 2",
    title="Test loss of a language model by parameterization",
    summary="Train and test loss of language models started from the same eigenvalues through several parameterizations: at "
    "the paper's learning rates, and at each one's recurrent rate by the rule of holdfast.recurrent_rate.",
    units=units,
    conclude=conclude,
    paper={"shares": [0.8]},
    standard={"shares": [0.8, language.RULE]},
    quick={"shares": [0.8, language.RULE]},
)
