"""Students of the trained figures: nonlinear RNNs dh/dt = sigma(W h + U x + b), y = C h, that learn from white noise.

Every student starts from a symmetric W with rates geometric on [1/m, 4] and random eigenvectors, the same for every
parameterization, and sees the same batches in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.data import ArrayTask, load_task
from holdfast.figures import Axis, Line, Panel
from holdfast.nn import ContinuousRNN
from holdfast.parameterizations import AbstractMatrixParameterization, get_matrix
from holdfast_papers.experiments import _runs
from holdfast_papers.experiments.base import Arrays, Config, Unit, Work
from holdfast_papers.pages import Cell

FASTEST = 4.0  # of the rates at the start; the slowest is 1/m
RATES = (0.2, 0.5, 1.0, 2.0)  # of the learning rate: the recurrent rates that are tried on short runs
POINTS = 100  # records of a run
WHERE_SHOWN = "Shown by `python -m holdfast_papers.experiments.reasons {}`; the numbers are in docs/reproduce.md."
# settings of a preset that every unit with a student depends on
TRAINING = ("steps", "batch", "lr", "dt", "train_size", "train_steps", "test_size", "test_steps")
PAPER: Config = {
    "steps": 100_000, "batch": 128, "lr": 0.005, "dt": 0.1, "train_size": 12_800, "train_steps": 32, "test_size": 64,
    "test_steps": 100,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a student learns from, its rate is chosen by, and it is judged by: inputs and targets (sequences, time, 1)."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def lesson(config: Config, target: Callable[[Tensor], Tensor] | None = None) -> Lesson:
    """White noise and what is asked of it: the functional of (t+1)^-1.5, or what `target` makes of it."""

    def part(split: Any, count: int, length: int) -> tuple[Tensor, Tensor]:
        sizes = {} if split == "train" else {split: count}
        task = load_task("functional", law="power", constants=[1.5], length=length, dt=config["dt"], **sizes)
        batch = task.batch(split, torch.arange(count))
        return batch.inputs, batch.targets if target is None else target(batch.inputs)

    size, steps = config["train_size"], config["train_steps"]
    return Lesson(
        part("train", size, steps),
        part("valid", max(8, size // 8), steps),
        part("test", config["test_size"], config["test_steps"]),
    )


def form(name: str) -> str | AbstractMatrixParameterization:
    """The parameterization of W by name; "symmetric": W = Q diag(w) Q' like softplus's, with free eigenvalues w."""
    return get_matrix("normal", parameterization="direct") if name == "symmetric" else name


def student(config: Config) -> ContinuousRNN:
    """A student of `m` units before training; units of a ReLU network start with bias 1, since dead ones learn nothing.

    The slowest rate is 1/m, or 1 over the config's `longest`, the longest memory that it starts with.
    """
    m, activation = config["m"], config.get("activation", "tanh")
    longest = config.get("longest", m)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["seed"])
        Q = torch.linalg.qr(torch.randn(m, m, dtype=torch.float64))[0]
        W = -(Q * torch.logspace(-math.log10(longest), math.log10(FASTEST), m, dtype=torch.float64)) @ Q.mT
        parameterization = form(config.get("parameterization", "direct"))
        model = ContinuousRNN(
            1, m, activation=activation, parameterization=parameterization, dt=config["dt"], W=(W + W.mT) / 2
        )
    if activation == "relu":
        torch.nn.init.ones_(model.b)  # type: ignore[arg-type]
    return model


def cost(config: Config) -> float:
    """Seconds of training, roughly."""
    return config["steps"] * (0.001 + 7e-7 * config["m"] ** 2 * config["train_steps"] / 32)


def learn(config: Config, given: Lesson, work: Work) -> tuple[Any, Arrays]:
    """A trained student and what its training recorded; the recurrent rate is the common one or, "best", a chosen one."""
    steps, best = config["steps"], config.get("rate") == "best"
    every = max(1, steps // POINTS)
    settings = {
        "steps": steps, "batch": config["batch"], "lr": config["lr"], "weight_decay": 0.0, "seed": config["seed"],
        "log_every": every, "monitor_every": every, "evaluate_every": steps, "checkpoint_every": max(500, steps // 10),
    }  # fmt: skip
    rates = [factor * config["lr"] for factor in (RATES if best else (1.0,))]
    task, short = ArrayTask(given.train, given.valid), config["trial_steps"] if best else 0
    start = _runs.Spectrum.of(student(config))
    model, run, choice = _runs.fit_at(
        lambda: student(config), task, settings, rates, work, short=short, part=(0.0, 0.9)
    )
    # norms, not entries: Q's free weights start at 0, and a gradient over 0 says nothing
    return model, {**_runs.record(run, start, _runs.Spectrum.of(model), work, "norm_ratio"), **choice}


RUN_HEADS = (
    "runs", "diverged", "final loss", "slowest rate at the start", "at the end", "|grad| / |weight| at the start",
    "largest in training", "modes that moved", "recurrent rate", "steps/s of input",
)  # fmt: skip


def run_row(units: Sequence[Unit]) -> tuple[Cell, ...]:
    """Medians over the runs of one kind, under RUN_HEADS; a run that diverged counts with an infinite loss."""

    def median(name: str) -> float:
        return float(np.median([_runs.kept(u.arrays, name) for u in units]))

    loss = median("valid.loss")
    modes = ("margin.start", "margin.end", "ratio.start", "ratio.max", "moved", "rate")
    return (
        len(units), sum(_runs.failed(u.arrays) for u in units), loss if math.isfinite(loss) else "diverged",
        *map(median, modes), round(_runs.speed(units)),
    )  # fmt: skip


def loss_panel(title: str, units: Sequence[Unit], legend: bool = True) -> Panel:
    """Training loss over the steps, a line per width: the median of the seeds, with all of them in the band."""
    lines = []
    for k, m in enumerate(sorted({u.config["m"] for u in units})):
        runs = [u.arrays for u in units if u.config["m"] == m]
        longest = max((run["steps"] for run in runs), key=len)
        # what a diverged run did not reach is infinite
        padded = [np.pad(run["loss"], (0, len(longest) - len(run["loss"])), constant_values=np.inf) for run in runs]
        low, high = np.min(padded, 0), np.max(padded, 0)
        lines.append(Line(f"m = {m}", longest, np.median(padded, 0), low=low, high=high, colour=k, legend=legend))
    return Panel(title, Axis("step"), Axis("training loss", log=True), lines)
