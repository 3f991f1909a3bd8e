"""Students of the trained figures: nonlinear RNNs dh/dt = sigma(W h + U x + b), y = C h, that learn from white noise.

Every student starts from a symmetric W with rates geometric on [1/m, 4] and random eigenvectors, the same for every
parameterization, and sees the same batches in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.data import ArrayTask, load_task
from holdfast.experiments._training import trained
from holdfast.experiments.base import Arrays, Config, Unit, Work
from holdfast.figures import Axis, Cell, Line, Panel
from holdfast.nn import ContinuousRNN
from holdfast.training import TrainingRun

FASTEST = 4.0  # of the rates at the start; the slowest is 1/m
RATES = (0.2, 0.5, 1.0, 2.0)  # of the learning rate: the recurrent rates that are tried on short runs
MOVED = 0.1  # an eigenvalue whose real part changed by more than this share has moved
POINTS = 100  # of a learning curve
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


def student(config: Config) -> ContinuousRNN:
    """A student of `m` units before training; units of a ReLU network start with bias 1, since dead ones learn nothing."""
    m, activation = config["m"], config.get("activation", "tanh")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["seed"])
        Q = torch.linalg.qr(torch.randn(m, m, dtype=torch.float64))[0]
        W = -(Q * torch.logspace(-math.log10(m), math.log10(FASTEST), m, dtype=torch.float64)) @ Q.mT
        parameterization = config.get("parameterization", "direct")
        model = ContinuousRNN(
            1, m, activation=activation, parameterization=parameterization, dt=config["dt"], W=(W + W.mT) / 2
        )
    if activation == "relu":
        torch.nn.init.ones_(model.b)  # type: ignore[arg-type]
    return model


def cost(config: Config) -> float:
    """Seconds of training, roughly."""
    return config["steps"] * (0.001 + 7e-7 * config["m"] ** 2 * config["train_steps"] / 32)


def learn(config: Config, given: Lesson, work: Work, part: tuple[float, float] = (0.0, 0.9)) -> tuple[Any, Arrays]:
    """A trained student and what its training recorded; the recurrent rate is the common one or, "best", a chosen one."""
    rate, factors = 1.0, RATES if config.get("rate") == "best" else ()
    if factors:
        short = {"steps": config["trial_steps"], "evaluate_every": config["trial_steps"]}
        losses = []
        for factor in factors:
            run = _train(student(config), given, config, work, factor, f"trial-{factor:g}", (0.0, 0.0), short)
            losses.append(run.metrics.get("valid", {}).get("loss", math.inf))
        rate = factors[int(np.argmin(losses))]
    model = student(config)
    before = model.margin(), _real(model)
    run = _train(model, given, config, work, rate, "run", part, {"evaluate_every": config["steps"]})
    work.log(status=run.status, reason=run.reason, tokens_per_second=float(np.median(run.history.tokens_per_second)))
    return model, {**_record(run, model, *before), "rate": np.array(rate * config["lr"])}


def _train(
    model: ContinuousRNN, given: Lesson, config: Config, work: Work, rate: float, name: str, part: tuple[float, float],
    changes: Mapping[str, Any],
) -> TrainingRun:  # fmt: skip
    steps = changes.get("steps", config["steps"])
    settings = {
        "steps": steps, "batch": config["batch"], "lr": config["lr"], "recurrent_lr": rate * config["lr"],
        "weight_decay": 0.0, "seed": config["seed"], "log_every": max(1, steps // POINTS),
        "monitor_every": max(1, steps // POINTS), "checkpoint_every": max(500, steps // 10), **changes,
    }  # fmt: skip
    return trained(model, ArrayTask(given.train, given.valid), settings, work, name=name, part=part)


def _record(run: TrainingRun, model: ContinuousRNN, margin: float, real: np.ndarray) -> dict[str, np.ndarray]:
    # norms, not entries: Q's free weights start at 0, and a gradient over 0 says nothing
    ratios = run.history.gradients.get("recurrence/norm_ratio", ((), np.array([math.inf])))[1]
    moved = np.abs(_real(model) - real) > MOVED * np.abs(real)
    return {
        "loss_step": run.history.steps.astype(np.float32),
        "loss": run.history.loss.astype(np.float32),
        "diverged": np.array(run.status == "diverged"),
        "final_loss": np.array(run.metrics.get("valid", {}).get("loss", math.inf)),
        "margin": np.array([margin, model.margin()]),
        "ratio": np.array([ratios[0], ratios.max()]),
        "moved": np.array(moved.mean()),
    }


def _real(model: ContinuousRNN) -> np.ndarray:
    """Real parts of the eigenvalues, sorted."""
    with torch.no_grad():
        return np.sort(model.eigenvalues().real.double().numpy())


RUN_HEADS = (
    "runs", "diverged", "final loss", "slowest rate at the start", "at the end", "|grad| / |weight| at the start",
    "largest in training", "modes that moved", "recurrent rate", "steps/s of input",
)  # fmt: skip


def run_row(units: Sequence[Unit]) -> tuple[Cell, ...]:
    """Medians over the runs of one kind, under RUN_HEADS; a run that diverged counts with an infinite loss."""

    def median(name: str, k: int | None = None) -> float:
        values = [u.arrays[name] if k is None else u.arrays[name][k] for u in units]
        return float(np.median(np.array(values, dtype=np.float64)))

    speeds = [entry["tokens_per_second"] for u in units for entry in u.log if "tokens_per_second" in entry]
    loss = median("final_loss")
    return (
        len(units), sum(bool(u.arrays["diverged"]) for u in units), loss if math.isfinite(loss) else "diverged",
        median("margin", 0), median("margin", 1), median("ratio", 0), median("ratio", 1), median("moved"), median("rate"),
        float(np.median(speeds)) if speeds else None,
    )  # fmt: skip


def loss_panel(title: str, units: Sequence[Unit], legend: bool = True) -> Panel:
    """Training loss over the steps, a line a width: the median of the seeds, with all of them in the band."""
    lines = []
    for k, m in enumerate(sorted({u.config["m"] for u in units})):
        runs = [u.arrays for u in units if u.config["m"] == m]
        longest = max((run["loss_step"] for run in runs), key=len)
        # what a diverged run did not reach is infinite
        padded = [np.pad(run["loss"], (0, len(longest) - len(run["loss"])), constant_values=np.inf) for run in runs]
        low, high = np.min(padded, 0), np.max(padded, 0)
        lines.append(Line(f"m = {m}", longest, np.median(padded, 0), low=low, high=high, colour=k, legend=legend))
    return Panel(title, Axis("step"), Axis("training loss", log=True), lines)
