"""Sequential MNIST with the recurrent learning rate by rule ("auto") against 1e-3, from a long and from a short start.

`python tools/compare_rates.py FOLDER` trains examples/configs/smnist.toml (two epochs, width 32 instead of 64, which
halves the time) with three seeds for each of two starts and two rates, and prints the accuracies on the test images with
the paired difference. Runs are kept in the folder; the same command continues where it was stopped. `--print` trains nothing.

Starts: "hippo" is what S4D begins with, time constants of 20 to 2,000 steps; "short" moves every mode to a rate between
0.1 and 1 per step, log-uniform, frequencies kept. Criterion, fixed before the first run, for each start on its own: with d
the accuracy by "auto" less that at 1e-3, paired by seed, "auto" is better if the 95% t interval of d lies above 0, worse if
below, equal if it lies within 0.1 points of 0, and undecided otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from scipy import stats
from torch import nn

import holdfast
from holdfast.data import load_task
from holdfast.nn import SequenceClassifier
from holdfast.training import TrainingRun, fit

STARTS, RATES, SEEDS = ("hippo", "short"), ("auto", 1e-3), (0, 1, 2)
SHORT = torch.logspace(0, 1, 64, dtype=torch.float64)  # time constants of the short start, in steps
EQUAL = 0.1  # points of accuracy
SETTINGS = {"lr": 4e-3, "weight_decay": 0.05, "warmup": 100, "batch": 64, "epochs": 2, "threads": 1}


def model_of(start: str, seed: int) -> nn.Module:
    """Four S4D layers of the config file at half its width."""
    torch.manual_seed(seed)
    model = SequenceClassifier(1, 10, 32, layer="s4d", parameterization="best", depth=4, state_size=64)
    if start == "short":
        for view in holdfast.recurrences(model):
            view.set_time_constants(SHORT)
    return model


def folder_of(root: Path, start: str, rate: float | str, seed: int) -> Path:
    """Where a run is kept."""
    return root / f"{start}_{rate}_{seed}"


def finished(folder: Path) -> TrainingRun | None:
    """The run in a folder if it has ended."""
    run = TrainingRun.load(folder) if (folder / "run.json").exists() else None
    return None if run is None or run.status == "running" else run


def train(root: Path, starts: Sequence[str], rates: Sequence[str], seeds: Sequence[int]) -> None:
    """Every run that is not finished, one seed of all arms after the other: a part of them is balanced."""
    task = load_task("mnist", valid=0)
    for seed, start, rate in itertools.product(seeds, starts, [rate for rate in RATES if str(rate) in rates]):
        folder = folder_of(root, start, rate, seed)
        if finished(folder) is None:
            settings = {**SETTINGS, "recurrent_lr": rate, "seed": seed}
            run = fit(model_of(start, seed), task, settings, folder=folder, resume=True)
            say(f"{folder.name} {run.summary()}")


def accuracy(root: Path, start: str, rate: float | str, seed: int) -> float | None:
    """On the test images, in percent; 10 where the run diverged."""
    run = finished(folder_of(root, start, rate, seed))
    return None if run is None else 100 * run.metrics["test"]["accuracy"] if run.status == "finished" else 10.0


def verdict(differences: list[float]) -> str:
    """By the criterion above."""
    if len(differences) < 2:
        return "undecided: fewer than two pairs of runs"
    mean = statistics.fmean(differences)
    half = stats.t.ppf(0.975, len(differences) - 1) * statistics.stdev(differences) / len(differences) ** 0.5
    low, high = mean - half, mean + half
    word = "better" if low > 0 else "worse" if high < 0 else "equal" if max(-low, high) <= EQUAL else "undecided"
    return f"{word}: {mean:+.2f} points, 95%: {low:+.2f} to {high:+.2f}"


def say(text: str) -> None:
    """A line, at once: a run takes minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--print", action="store_true", help="train nothing")
    for name, values in {"starts": STARTS, "rates": [str(rate) for rate in RATES], "seeds": SEEDS}.items():
        parser.add_argument(f"--{name}", nargs="+", type=type(values[0]), choices=values, default=values)
    chosen = parser.parse_args()
    if not chosen.print:
        train(chosen.folder, chosen.starts, chosen.rates, chosen.seeds)
    for start in STARTS:
        table = {rate: [accuracy(chosen.folder, start, rate, seed) for seed in SEEDS] for rate in RATES}
        for rate, row in table.items():
            say(f"{start:6s} {rate!s:6s}" + "".join("      -" if a is None else f"{a:7.2f}" for a in row))
        pairs = [(a, b) for a, b in zip(*table.values(), strict=True) if a is not None and b is not None]
        say(f"{start:6s} auto against 1e-3: {verdict([a - b for a, b in pairs])}")


if __name__ == "__main__":
    main()
