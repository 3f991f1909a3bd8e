"""stable-table2: test loss of language models, at the paper's learning rates and at each one's best recurrent rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from holdfast.figures import Axis, Bars, Figure, Panel
from holdfast_papers.experiments.base import Conclusion, Config, Unit
from holdfast_papers.experiments.stable import _language as language
from holdfast_papers.experiments.stable import _language_runs as read
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

SHARES = (0.05, 0.2, 0.8, 3.2)  # recurrent rates as shares of the learning rate; the paper's is 0.8
RATES = 4  # recurrent rates that the best one is chosen of
PRINTED = {
    "best, b = 0.5": (2.844, 3.035), "exp": (2.755, 3.007), "softplus": (2.679, 3.003), "direct": (2.940, 3.338),
}  # fmt: skip


def units(config: Config) -> list[Config]:
    """The runs at the paper's rates on every text, and on the first one those at other recurrent rates."""
    others = [share for share in config["shares"] if share != config["share"]]
    return [
        *language.runs_at(config, config["data"], [config["rate"]], [config["share"]]),
        *language.runs_at(config, config["data"][:1], [config["rate"]], others),
    ]


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Every stable parameterization is below direct in test loss by two standard errors of the paired difference."""
    rate, share = config["rate"], config["share"]
    columns = {(text, "the paper's rates"): read.pick(units, text, rate, share) for text in read.texts(units)}
    if len(config["shares"]) >= RATES:
        first = read.texts(units)[0]
        columns[first, "best recurrent rate"] = chosen([read.pick(units, first, rate, s) for s in config["shares"]])
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
        f"Best recurrent rate: each run of a seed is the one of {len(config['shares'])} recurrent rates "
        f"({', '.join(f'{s * rate:g}' for s in config['shares'])}) with the smallest validation loss; the other "
        f"weights' rate is {rate:g}."
    )
    notes = [*read.notes(units), *([extra] if len(config["shares"]) >= RATES else [])]
    return Conclusion(claims, [figure], tables, notes)


def chosen(columns: Sequence[read.Runs]) -> read.Runs:
    """For each parameterization and seed, the run with the smallest validation loss."""
    return {
        name: [min(runs, key=lambda run: run["valid.loss"]) for runs in zip(*(c[name] for c in columns), strict=True)]
        for name in language.PARAMETERIZATIONS
    }


def below(losses: Sequence[float], direct: Sequence[float]) -> tuple[bool, float, float]:
    """Whether the losses are below those of direct by two standard errors, and mean and standard error of the difference.

    A run that diverged has lost to one that did not. Seeds in which direct alone diverged count as won, and the others
    decide; where there is one other, it must be below.
    """
    if not all(map(math.isfinite, losses)):
        return False, -math.inf, math.nan
    gaps = np.array([d - own for own, d in zip(losses, direct, strict=True) if math.isfinite(d)])
    if len(gaps) == 0:
        return True, math.inf, 0.0
    error = float(gaps.std(ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else 0.0
    mean = float(gaps.mean())
    return mean > 2 * error, mean, error


def _claim(text: str, column: str, runs: read.Runs) -> Claim:
    direct = [run["test.loss"] for run in runs["direct"]]
    verdicts = {name: below([run["test.loss"] for run in runs[name]], direct) for name in read.STABLE}
    numbers: dict[str, float] = {
        "runs of direct that diverged": sum(not run.finished for run in runs["direct"]),
        "seeds": len(direct),
    }
    for name, (_, mean, error) in verdicts.items():
        numbers |= {f"direct less {name}": mean} | ({f"standard error, {name}": error} if math.isfinite(error) else {})
    losers = [name for name, verdict in verdicts.items() if not verdict[0]]
    past = sum(run["margin.end"] <= 0 for run in runs["direct"])
    return Claim.decide(
        f"{column}, {text}",
        "Best, exp, softplus and tanh each have a smaller test loss than direct, by two standard errors of the paired "
        f"difference: {read.TEXTS[text]}, {column}",
        not losers if len(direct) >= read.SEEDS else None,
        numbers,
        otherwise=read.few(len(direct))
        or f"Not below direct by two standard errors: {', '.join(losers)}. Direct ended with a mode at or past the boundary in "
        f"{past} of {len(direct)} seeds. {read.account(runs, ['direct', *losers])}",
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
        gap = below(test, [run["test.loss"] for run in runs["direct"]])
        printed = PRINTED.get(name, (None, None))
        rates = ", ".join(f"{run.unit.config['lr'] * run.unit.config['share']:g}" for run in found)
        rows.append(
            [name, rates, *(_mean(losses) for losses in (train, test)), _perplexity(test), _gap(*gap[1:]), *printed]
        )
    heads = (
        "parameterization", "recurrent rate by seed", "train loss", "test loss", "test perplexity",
        "below direct by (standard error)", "paper's train loss", "paper's test loss",
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


def _gap(mean: float, error: float) -> str:
    return f"{mean:.4f} ({error:.4f})" if math.isfinite(mean) else "diverged" if mean < 0 else "direct diverged"


EXPERIMENT = language.experiment(
    id="stable-table2",
    where="Table 2",
    title="Test loss of a language model by parameterization",
    summary="Train and test loss of language models started from the same eigenvalues through eight parameterizations: at the "
    "paper's learning rates, and at the best of four recurrent rates chosen on validation data.",
    units=units,
    conclude=conclude,
    paper={"shares": [0.8]},
    standard={"shares": SHARES},
    quick={"shares": [0.8]},
)
