"""iat-table1 (with Figure 9): MNIST read pixel by pixel by nonlinear RNNs, direct and through stable parameterizations.

A dense W: free, or W = Q g(M) Q' with the parameterization on the eigenvalues (eq. 16). All start from the same W inside the
stable region, with the same other weights, and see the same batches; each run takes the best of several recurrent rates on
short runs. The criterion, for each stable one on its own: it reaches direct's final validation loss of the same seed in fewer
steps, by the 95% interval of the paired difference; one that never reaches it is later. Undecided where direct stays below 50%
accuracy in every seed and no stable one passes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.data import ArrayTask, load_task
from holdfast.data._base import AbstractTask
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.nn import ContinuousRNN
from holdfast_papers.experiments import _runs
from holdfast_papers.experiments._paired import smaller
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.experiments.linrec import _digits
from holdfast_papers.pages import Note, Table
from holdfast_papers.results import Claim

STABLE = ("softplus", "exp", "best", "inverse")
PARAMETERIZATIONS = (*STABLE, "direct")
PAPERS_LOSS = {"softplus": 0.8903, "exp": 0.9028, "inverse": 0.9082, "direct": 0.9177}
PAPERS_ACCURACY = {"softplus": 71.36, "exp": 70.55, "inverse": 70.77, "direct": 68.47}
DIRECT_GROWS = "Direct weights past the boundary do no harm: tanh lets a state grow by at most dt in a step."
DIRECT_STAYS = (
    "Direct weights trained without leaving the stable region: there was nothing for a stable form to prevent."
)
LEARNS = 0.5  # accuracy that some parameterization has to pass
MODES = ("ratio.max", "moved", "beyond", "margin.start", "margin.end")
Runs = Mapping[tuple[str, int], Arrays]


class PixelReader(nn.Module):
    """A tanh RNN with a dense W over the pixels of an image; the scores of the ten digits are read after the last.

    Args:
        parameterization: of W, or of its eigenvalues.
        states: number of states.
        dt: size of an Euler step.
    """

    def __init__(self, parameterization: str, states: int, dt: float) -> None:
        super().__init__()
        Q = torch.linalg.qr(torch.randn(states, states, dtype=torch.float64))[0]
        W = -(Q * torch.logspace(-2, 0, states, dtype=torch.float64)) @ Q.mT
        self.layer = ContinuousRNN(
            1, states, parameterization=parameterization, W=(W + W.mT) / 2, out_features=10, dt=dt
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scores (batch, 10) for pixels (batch, time, 1)."""
        return self.layer(x)[0][:, -1]


def units(config: Config) -> list[Config]:
    """One run a parameterization and seed."""
    shared = {**drop(config, "seeds", "download"), "images": _digits.source(config)}
    return split(shared, f=PARAMETERIZATIONS, seed=range(config["seeds"]))


def run(config: Config, work: Work) -> Arrays:
    """One training run, evaluated on validation images `evaluations` times."""
    task = _task(config["images"])
    settings: dict[str, Any] = {
        "lr": config["lr"], "batch": config["batch"], "steps": config["steps"], "weight_decay": 0.0, "clip": 1.0,
        "schedule": "constant", "seed": config["seed"], "evaluate_every": config["steps"] // config["evaluations"],
        "checkpoint_every": max(1, config["steps"] // 5), "evaluate_batches": config["evaluated"] or None,
    }  # fmt: skip

    def make() -> PixelReader:
        torch.manual_seed(config["seed"])
        return PixelReader(config["f"], config["states"], config["dt"])

    model, done, choice = _runs.fit_at(make, task, settings, config["rates"], work, short=config["short"])
    start, end = _runs.Spectrum.of(make()), _runs.Spectrum.of(model)
    beyond = np.array(float((end.margin < 0).double().mean()))
    return {**_runs.record(done, start, end, work, "norm_ratio"), **choice, "beyond": beyond}


def _task(images: str) -> AbstractTask:
    if images == "mnist":
        return load_task("mnist", order="pixel")
    x, y = _digits.small_digits()
    pixels = x.float().unsqueeze(-1)
    cuts = [slice(0, 1200), slice(1200, 1500), slice(1500, None)]
    train, valid, test = ((pixels[cut], y[cut]) for cut in cuts)
    return ArrayTask(train, valid, test, name="digits")


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """How soon each stable run reaches direct's final loss of the same seed."""
    runs = {(u.config["f"], u.config["seed"]): u.arrays for u in units}
    seeds = range(config["seeds"])
    claims = [*(_sooner(runs, f, seeds) for f in STABLE), *(_better(runs, f, seeds) for f in STABLE)]
    notes: list[str | Note] = [
        "The paper says 10 epochs and no more: here one tanh RNN with a dense W of "
        f"{config['states']} states over 784 pixels, dt {config['dt']:g}, Adam at {config['lr']:g} (its rate for the "
        f"functionals, constant, gradient clipped at norm 1), batch {config['batch']}, {config['steps']:,} steps. Each run "
        f"takes the recurrent rate of {', '.join(f'{r:g}' for r in config['rates'])} with the least validation loss after "
        f"{config['short']} steps.",
        "W is symmetric at the start, with rates geometric on [0.01, 1], the same for every parameterization; direct may "
        "become any matrix, the others W = Q g(M) Q' with Q orthogonal.",
    ]
    if any(u.config["images"] != "mnist" for u in units):
        text = "MNIST is not on this machine: scikit-learn's digits, drawn at 28 x 28, stand in for it."
        notes.append(Note("other data", text))
    return Conclusion(claims, [_curves(runs, seeds)], [_table(runs, seeds)], notes)


def final(arrays: Arrays) -> float:
    """The last validation loss; inf of a run that diverged."""
    return math.inf if _runs.failed(arrays) else float(arrays["valid.curve"][-1])


def steps_to(arrays: Arrays, level: float) -> float:
    """Steps until the validation loss is first at or below the level; inf where it never is, or the run diverged."""
    below = arrays["valid.curve"] <= level
    if _runs.failed(arrays) or not below.any():
        return math.inf
    return float(arrays["valid.steps"][int(np.argmax(below))])


def _sooner(runs: Runs, f: str, seeds: range) -> Claim:
    levels = [final(runs["direct", s]) for s in seeds]
    arms = {
        # a direct run that diverged has no loss to reach: every run that ends is sooner
        name: [steps_to(runs[name, s], level) for s, level in zip(seeds, levels, strict=True)]
        for name in (f, "direct")
    }
    found = smaller(arms, f, ["direct"]).unless(_nothing_learned(runs, seeds))
    beyond = float(np.median([runs["direct", s]["beyond"] for s in seeds]))
    return Claim.decide(
        f"sooner, {f}",
        f"{f} reaches direct's final validation loss in fewer steps than direct, each at its own best rate",
        found.holds,
        {k: v for k, v in found.numbers.items() if math.isfinite(v)}
        | {"seeds in which it never does": float(sum(map(math.isinf, arms[f]))), "direct's modes that grow": beyond},
        otherwise=found.why + (DIRECT_GROWS if beyond else DIRECT_STAYS),
    )  # fmt: skip


def _nothing_learned(runs: Runs, seeds: range) -> str:
    """Why nothing is compared: direct in every seed, and every stable run, below half of the images; empty where not so."""
    accuracy = {key: float(a.get("test.accuracy", 0.0)) for key, a in runs.items()}
    learned = any(value > LEARNS for value in accuracy.values())
    return "" if learned else f"No parameterization passes an accuracy of {LEARNS:.0%}."


def _better(runs: Runs, f: str, seeds: range) -> Claim:
    arms = {name: [_runs.kept(runs[name, s], "test.loss") for s in seeds] for name in (f, "direct")}
    found = smaller(arms, f, ["direct"]).unless(_nothing_learned(runs, seeds))
    means = {name: float(np.mean(values)) for name, values in arms.items()}
    return Claim.decide(
        f"test loss, {f}",
        f"{f} ends with a test loss below direct's, in nats",
        found.holds,
        {k: v for k, v in (found.numbers | means).items() if math.isfinite(v)},
        paper={k: PAPERS_LOSS[k] for k in (f, "direct") if k in PAPERS_LOSS},
        otherwise=found.why,
    )


def _table(runs: Runs, seeds: range) -> Table:
    rows = []
    for f in PARAMETERIZATIONS:
        chosen = [runs[f, s] for s in seeds]
        done = [a for a in chosen if not _runs.failed(a)]
        loss, accuracy = ([float(a[f"test.{k}"]) for a in done] for k in ("loss", "accuracy"))
        rates = ", ".join(f"{float(a['rate']):g}" for a in chosen)
        rows.append(
            (
                f, rates, len(chosen) - len(done), _mean(loss), _error(loss), PAPERS_LOSS.get(f, "-"),
                _mean([100 * a for a in accuracy]), PAPERS_ACCURACY.get(f, "-"),
                *(float(np.median([a[k] for a in chosen])) for k in MODES),
            )
        )  # fmt: skip
    heads = (
        "f", "recurrent rates", "diverged", "test loss", "standard error", "paper's", "accuracy in %", "paper's",
        "largest gradient / weight", "modes moved", "modes that grow", "slowest rate, start", "end",
    )  # fmt: skip
    return Table("table-1", "Means over the seeds that ended, beside the paper's Table 1.", heads, rows)


def _mean(values: Sequence[float]) -> float | str:
    return float(np.mean(values)) if values else "diverged"


def _error(values: Sequence[float]) -> float | str:
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else "-"


def _curves(runs: Runs, seeds: range) -> Figure:
    lines = []
    for k, f in enumerate(PARAMETERIZATIONS):
        chosen = [runs[f, s] for s in seeds]
        count = min(len(a["valid.curve"]) for a in chosen)
        values = np.array([a["valid.curve"][:count] for a in chosen])
        spread = values.std(0) / math.sqrt(len(chosen))
        x, mean = chosen[0]["valid.steps"][:count], values.mean(0)
        lines.append(Line(f, x, mean, mean - spread, mean + spread, colour=k))
    caption = "Validation loss, mean and standard error over the seeds, as in the paper's Figure 9."
    return Figure("figure-9", caption, [Panel("", Axis("step"), Axis("validation loss", log=True), lines)])


def cost(config: Config) -> float:
    """Seconds of a unit: its own steps and those of the short runs."""
    steps = config["steps"] + len(config["rates"]) * config["short"]
    return 3 + 3e-6 * config["batch"] * config["states"] ** 1.3 * steps


EXPERIMENT = Experiment(
    id="iat-table1",
    where="Table 1 and Figure 9",
    title="MNIST by nonlinear RNNs: direct, softplus, exp, best, inverse",
    summary="A tanh RNN with a dense W reads the 784 pixels of an image. W direct or with softplus, exp, best and inverse on "
    "its eigenvalues, from the same W; how soon each reaches the loss that direct ends with.",
    presets=presets(
        {
            "download": True, "states": 64, "dt": 0.1, "batch": 128, "lr": 0.005, "steps": 4290, "evaluations": 60,
            "evaluated": 0, "short": 429, "rates": [0.001, 0.005, 0.02, 0.08], "seeds": 3,
        },
        standard={"steps": 1000, "short": 200, "evaluations": 50, "evaluated": 8},
        quick={
            "download": False, "states": 8, "batch": 32, "steps": 20, "evaluations": 4, "evaluated": 2, "short": 5, "seeds": 1,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
    version=2,
)  # fmt: skip
