"""Parameterizations compared fairly: the same eigenvalues at the start, data, order of examples, seeds and clipping.

A unit is one training run at one learning rate of the recurrent weights: that of all other weights, or the one that
holdfast.recurrent_rate gives its parameterization for the memory that the task needs ("rule").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.data import AbstractTask
from holdfast.figures import Axis, Figure, Line, Panel, Points
from holdfast.nn import DiagonalSSM
from holdfast.stability import recurrent_rate
from holdfast_papers.experiments._runs import Spectrum, record, speed
from holdfast_papers.experiments._training import trained
from holdfast_papers.experiments.base import Arrays, Config, Unit, Work
from holdfast_papers.pages import Table

PARAMETERIZATIONS = ("best", "exp", "softplus", "clip", "direct")
SEEDS = 3  # fewer decide nothing
RULE = "rule"  # instead of a share of the learning rate
Share = float | str
Trials = Mapping[tuple[str, Share], Sequence[Unit]]  # by parameterization and share of the learning rate
COLUMNS: dict[Share, str] = {1.0: "all weights at one learning rate", RULE: "each at the rule's recurrent rate"}
HEADS = (
    "parameterization", "recurrent rates", "test accuracy", "standard error", "paper", "diverged",
    "slowest rate, start", "slowest rate, end", "modes moved", "grad/weight, start", "grad/weight, largest", "tokens/s",
)  # fmt: skip


def falling(slowest: float, fastest: float, count: int) -> Tensor:
    """Eigenvalues with geometric rates from `slowest` to `fastest`, the same for every parameterization."""
    return -torch.from_numpy(np.geomspace(slowest, fastest, count))


def level_(layer: DiagonalSSM) -> DiagonalSSM:
    """Scales the input weights so that white noise gives every mode's state the same variance, as LRU does; in place.

    Otherwise a mode of rate r has 1/r times the variance of a fast one at the start, and the slowest modes are all that the
    readout sees. The eigenvalues decide the scale, so that it is the same for every parameterization.

    Args:
        layer: in continuous time, with a step of 1; its modes decay.
    """
    with torch.no_grad():
        lam = layer.eigenvalues()
        layer.U.mul_((-torch.expm1(2 * lam)).sqrt().div(torch.expm1(lam) / lam).unsqueeze(-1))
    return layer


def one_run(
    model: nn.Module, task: AbstractTask, settings: Mapping[str, Any], work: Work, memory: float | None = None
) -> Arrays:
    """Trains and keeps what `record` does, and the recurrent "rate".

    Args:
        model: ends with the last weights.
        task: the data.
        settings: of a TrainingConfig.
        work: the unit's.
        memory: time constant that the rule's rate is for; None keeps the rate of the settings.
    """
    start = Spectrum.of(model)
    if memory is not None:
        schedule = settings.get("schedule", "cosine")
        rule = recurrent_rate(model, steps=settings["steps"], memory=memory, schedule=schedule)
        settings = {**settings, "recurrent_lr": rule.rate}
    run = trained(model, task, settings, work)
    return {**record(run, start, Spectrum.of(model), work), "rate": np.array(settings["recurrent_lr"])}


def trials(units: Sequence[Unit]) -> Trials:
    """The units by parameterization and share of the learning rate, each list by seed."""
    found: dict[tuple[str, Share], list[Unit]] = {}
    for unit in sorted(units, key=lambda u: u.config["seed"]):
        found.setdefault((unit.config["parameterization"], unit.config["share"]), []).append(unit)
    return found


def accuracy(units: Sequence[Unit], split: str = "test") -> np.ndarray:
    """The accuracy of each run; 0 for one that diverged, which has none."""
    return np.array([float(u.arrays.get(f"{split}.accuracy", 0.0)) for u in units])


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean and its standard error; 0 for a single value."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), float(error)


def columns(trials: Trials) -> dict[Share, dict[str, Sequence[Unit]]]:
    """The runs by share of the learning rate and parameterization."""
    shares = dict.fromkeys(share for _, share in trials)
    names = [name for name in PARAMETERIZATIONS if any(name == other for other, _ in trials)]
    return {share: {n: trials[n, share] for n in names if (n, share) in trials} for share in shares}


def arms(shown: Mapping[str, Sequence[Unit]], split: str = "test") -> dict[str, list[float]]:
    """Accuracies in points by parameterization and seed."""
    return {name: (100 * accuracy(units, split)).tolist() for name, units in shown.items()}


def median(units: Sequence[Unit], key: str) -> float:
    """The median of a kept number over runs."""
    return float(np.median([float(u.arrays[key]) for u in units]))


def row(label: str, units: Sequence[Unit], paper: float | None) -> list[Any]:
    """A line of the table of runs, under HEADS."""
    mean, error = mean_and_error(accuracy(units))
    numbers = ["margin.start", "margin.end", "moved", "ratio.start", "ratio.max"]
    diverged = sum(int(u.arrays["diverged"]) for u in units)
    kept = [median(units, key) for key in numbers]
    rates = ", ".join(f"{float(u.arrays['rate']):.3g}" for u in units)
    return [
        label, rates, mean, error, paper, f"{diverged} of {len(units)}", *kept, round(speed(units)),
    ]  # fmt: skip


def table(name: str, caption: str, trials: Trials, paper: Mapping[str, float], more: Sequence[Any] = ()) -> Table:
    """All runs: one line for each parameterization and recurrent rate, medians over the seeds."""
    rows = [row(key, units, paper.get(key) if share == 1 else None) for (key, share), units in _ordered(trials)]
    return Table(name, caption, HEADS, [*rows, *more])


def said(shown: Mapping[str, Sequence[Unit]]) -> str:
    """What the recurrences did, in words: the reason to look at where a ranking does not show."""
    moved = ", ".join(f"{name} {median(units, 'moved'):.0%}" for name, units in shown.items())
    ends = ", ".join(f"{name} {median(units, 'margin.end'):.2g}" for name, units in shown.items())
    ratios = ", ".join(f"{name} {median(units, 'ratio.max'):.2g}" for name, units in shown.items())
    first = median(next(iter(shown.values())), "margin.start")
    return (
        f"Modes that moved by more than a tenth of their rate: {moved}. The slowest rate began at {first:.2g} and ended at "
        f"{ends} (below 0 it grows). Largest |gradient| / |weight|: {ratios}."
    )


def accuracy_panel(title: str, trials: Trials) -> Panel:
    """Test accuracy by the recurrent rate; every run is a point."""
    layers: list[Points] = []
    for k, name in enumerate(PARAMETERIZATIONS):
        found = [u for (other, _), units in trials.items() if other == name for u in units]
        if found:
            x = [float(u.arrays["rate"]) for u in found]
            layers.append(Points(name, x, accuracy(found), colour=k))
    axes = Axis("recurrent learning rate", log=True), Axis("test accuracy", limits=(0.0, 1.02))
    return Panel(title, *axes, layers)


def curve_panel(title: str, shown: Mapping[str, Sequence[Unit]], key: str, label: str) -> Panel:
    """A kept curve of the first seed over the steps: "loss" or "ratio"."""
    at = "steps" if key == "loss" else "ratio.steps"
    layers = [
        Line(name, units[0].arrays[at], units[0].arrays[key], colour=k, legend=key == "loss")
        for k, (name, units) in enumerate(shown.items())
    ]
    return Panel(title, Axis("optimizer step"), Axis(label, log=True), layers)


def curves(name: str, caption: str, shown: Mapping[str, Sequence[Unit]]) -> Figure:
    """Loss and gradient over weight of the first seed."""
    loss = curve_panel("Training loss", shown, "loss", "loss")
    ratio = curve_panel("Recurrent weights", shown, "ratio", "largest |gradient| / |weight|")
    return Figure(name, caption, [loss, ratio])


def settings_of(config: Config) -> dict[str, Any]:
    """The settings of a TrainingConfig that all comparisons share."""
    share = 1.0 if config["share"] == RULE else config["share"]
    return {
        "lr": config["lr"], "recurrent_lr": config["lr"] * share, "weight_decay": config["weight_decay"],
        "batch": config["batch"], "steps": config["steps"], "warmup": config["warmup"], "seed": config["seed"],
        "evaluate_every": config["steps"], "log_every": max(1, config["steps"] // 100),
        "monitor_every": max(1, config["steps"] // 100), "checkpoint_every": max(1, config["steps"] // 5),
    }  # fmt: skip


def _ordered(trials: Trials) -> list[tuple[tuple[str, Share], Sequence[Unit]]]:
    return sorted(trials.items(), key=lambda item: (PARAMETERIZATIONS.index(item[0][0]), str(item[0][1])))
