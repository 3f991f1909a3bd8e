"""A sweep: one training run per combination of the values in a config file, each in a folder of its own.

FOLDER/sweep.json    the settings of every run, sealed before the first begins
FOLDER/RUN/          the run, as `fit` keeps it
FOLDER/index.html    curves and results side by side

Several processes, also on several machines that share the folder, may run one sweep: a run's folder has one writer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from holdfast._arguments import positive
from holdfast._codec import plain, restored
from holdfast._files import open_seal, seal, temporary_for, write_atomically
from holdfast._page import document, paragraph, picture, table
from holdfast.errors import ArgumentError, HoldfastError
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.training import _checkpoint as checkpoint
from holdfast.training._fit import fit_recipe
from holdfast.training._folder import RUN, RunInUseError, guarded, in_use
from holdfast.training._log import LOG, read_log
from holdfast.training._loop import Progress
from holdfast.training._recipe import Recipe
from holdfast.training._run import TrainingRun

SETTINGS = "sweep.json"
FORMAT = "holdfast sweep 1"
LOCK = ".holdfast-sweep.lock"
PAGE = "index.html"
SECONDS_BETWEEN_POLLS = 0.2
SECONDS_BETWEEN_LINES = 2.0  # reading the logs of all runs for a progress line costs more than a poll
MAX_NAME_LENGTH = 80
IN_USE = 75  # exit code of a process whose run another one is training; EX_TEMPFAIL of sysexits.h


@dataclass(frozen=True)
class Sweep:
    """Training runs side by side.

    Args:
        name: of the config file.
        runs: each run by its label, as far as it got.
        failures: why a run could not be trained, by label.
    """

    name: str
    runs: Mapping[str, TrainingRun]
    failures: Mapping[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """One row per run: label, how it ended, and the metrics of its final weights."""
        columns = dict.fromkeys(
            f"{split} {metric}" for run in self.runs.values() for split, of in run.metrics.items() for metric in of
        )
        rows = []
        for label, run in self.runs.items():
            metrics = {f"{split} {metric}": value for split, of in run.metrics.items() for metric, value in of.items()}
            row = {"run": label, "status": run.status, "step": run.step}
            rows.append({**row, **{column: metrics.get(column) for column in columns}, "seconds": run.seconds})
        return rows

    def figure(self) -> Figure:
        """Training loss and every validation metric over the steps, one line per run."""
        metrics = dict.fromkeys(metric for run in self.runs.values() for metric in run.history.metrics)
        losses = {label: (run.history.steps, run.history.loss) for label, run in self.runs.items()}
        panels = [_panel("training loss", "loss", losses)]
        for metric in metrics:
            curves = {
                label: (run.history.evaluated, run.history.metrics.get(metric, np.empty(0)))
                for label, run in self.runs.items()
            }
            panels.append(_panel(f"valid {metric}", metric, curves))
        return Figure("curves", f"Loss and validation metrics of {len(self.runs)} training runs.", panels)

    def page(self) -> str:
        """The sweep as one HTML page."""
        rows = self.rows()
        body = [paragraph(f"{len(rows)} training runs."), picture(self.figure())]
        body.append(table(list(rows[0]), [[_cell(value) for value in row.values()] for row in rows]))
        body += [
            paragraph(f"{label}: diverged at step {run.step}, {run.reason}")
            for label, run in self.runs.items()
            if run.status == "diverged"
        ]
        body += [paragraph(f"{label}: failed, {reason}") for label, reason in self.failures.items()]
        return document(f"Sweep {self.name}", body)


def run_sweep(
    name: str,
    recipes: Sequence[tuple[Mapping[str, Any], Recipe]],
    folder: Path,
    *,
    resume: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Trains every run of a sweep that is not finished yet, and writes the page.

    Args:
        name: of the config file.
        recipes: the settings in which each run differs from the others, and the run.
        folder: where the sweep is kept.
        resume: continue the sweep in the folder; where there is none, begin one.
        workers: processes that train at the same time; None is one per core. One trains in this process.
        progress: called with a text, the steps that are done and their total.
    """
    positive(workers=workers)
    labels = _labels(recipes)
    _begin(folder, {label: recipe for label, (_, recipe) in zip(labels, recipes, strict=True)}, resume)
    count = min(workers or os.cpu_count() or 1, len(recipes))
    report = progress or (lambda text, done, total: None)
    # one run needs no process of its own, and is easier to interrupt
    failures = _train_here(folder, labels, report) if count == 1 else _train_in_processes(folder, labels, count, report)
    runs = {label: TrainingRun.load(folder / _name(label)) for label in labels if label not in failures}
    sweep = Sweep(name, runs, failures)
    if runs:
        with guarded(folder):
            write_atomically(folder / PAGE, sweep.page().encode())
    return sweep


def train_one(folder: Path, label: str, progress: Progress | None = None) -> TrainingRun:
    """Trains or continues the run `label` of the sweep in `folder`."""
    recipe = Recipe(restored(_settings(folder)[label]))
    task = recipe.load_task()
    return fit_recipe(recipe, recipe.build_model(task), task, folder / _name(label), resume=True, progress=progress)


def _labels(recipes: Sequence[tuple[Mapping[str, Any], Recipe]]) -> list[str]:
    labels = [" ".join(f"{key.partition('.')[2]}={value}" for key, value in axes.items()) for axes, _ in recipes]
    if len({_name(label) for label in labels}) < len(labels):
        raise ArgumentError(f"the runs of a sweep must differ in their settings, got {labels}")
    return labels


def _name(label: str) -> str:
    """A folder's name for a label; what would be too long or hard to type has a checksum at its end."""
    name = label.replace(" ", "_")
    if re.fullmatch(rf"[\w.=+-]{{1,{MAX_NAME_LENGTH}}}", name, re.ASCII):
        return name
    digest = hashlib.sha256(label.encode()).hexdigest()[:8]
    return re.sub(r"[^\w.=+-]+", "_", name, flags=re.ASCII)[: MAX_NAME_LENGTH - 9] + "-" + digest


def _begin(folder: Path, recipes: Mapping[str, Recipe], resume: bool) -> None:
    runs = {label: plain(recipe.tables) for label, recipe in recipes.items()}
    with guarded(folder):
        others = [p.name for p in folder.iterdir() if not _is_ours(p.name)] if folder.exists() else []
        if others and not (folder / SETTINGS).exists():
            raise ArgumentError(
                f"expected an empty or new folder, or one with a sweep, got {folder} with other files; nothing was "
                "written: name another with --folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        # of two processes that begin one sweep, one writes its settings
        with FileLock(folder / LOCK):
            if not (folder / SETTINGS).exists():
                write_atomically(folder / SETTINGS, seal({"format": FORMAT, "runs": runs}))
                return
    if not resume:
        raise ArgumentError(f"{folder} already holds a sweep; continue it with --resume, or name another with --folder")
    if _settings(folder) != runs:
        raise ArgumentError(f"{folder} already holds a sweep with other settings; name another with --folder")


def _is_ours(name: str) -> bool:
    return name == LOCK or temporary_for(name) == SETTINGS


def _settings(folder: Path) -> dict[str, Any]:
    runs: dict[str, Any] = open_seal(folder / SETTINGS, FORMAT, checkpoint.advice(folder))["runs"]
    return runs


def _next(folder: Path, waiting: list[str], failures: dict[str, str]) -> str | None:
    """Takes the next run that must be trained out of `waiting`; None where others are training what is left."""
    for label in list(waiting):
        path = folder / _name(label)
        try:
            if in_use(path):
                continue
            unfinished = not (path / RUN).exists() or TrainingRun.load(path).status == "running"
        except HoldfastError as error:
            failures[label], unfinished = str(error), False
        waiting.remove(label)
        if unfinished:
            return label
    return None


def _train_here(folder: Path, labels: Sequence[str], progress: Progress) -> dict[str, str]:
    waiting = list(labels)
    failures: dict[str, str] = {}
    while waiting:
        label = _next(folder, waiting, failures)
        if label is None:
            _wait(waiting, progress, len(labels))
            continue

        def tick(text: str, done: int | None, total: int | None, label: str = label) -> None:
            ended = len(labels) - len(waiting) - 1
            # in thousandths of a run: runs of a sweep may have different numbers of steps
            progress(f"{label}: {text}", round(1000 * (ended + (done or 0) / (total or 1))), 1000 * len(labels))

        try:
            train_one(folder, label, tick)
        except RunInUseError:
            waiting.append(label)
        except HoldfastError as error:
            failures[label] = str(error)
        except Exception as error:  # of the user's model or data: the other runs are still trained
            failures[label] = f"{type(error).__name__}: {error}"
    return failures


def _wait(waiting: Sequence[str], progress: Progress, count: int) -> None:
    if waiting:
        text = f"waiting for another process to train {', '.join(waiting)}"
        progress(text, 1000 * (count - len(waiting)), 1000 * count)
        time.sleep(SECONDS_BETWEEN_LINES)


def _train_in_processes(folder: Path, labels: Sequence[str], count: int, progress: Progress) -> dict[str, str]:
    """Each run in a new Python process, `count` at a time; returns the failures."""
    waiting = list(labels)
    failures: dict[str, str] = {}
    running: dict[str, tuple[subprocess.Popen[bytes], Any]] = {}
    # one team of threads per process: more threads than cores makes every run slower
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
    latest = time.monotonic()
    try:
        while waiting or running:
            while len(running) < count and (label := _next(folder, waiting, failures)) is not None:
                errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process has ended
                # a new interpreter for each run: memory, threads and a crash are its own
                command = [sys.executable, "-m", "holdfast.training._sweep", str(folder), label]
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
                running[label] = process, errors
            for label, code, reason in _ended(running):
                if code == IN_USE:
                    waiting.append(label)
                elif code:
                    failures[label] = reason
            if not running:
                _wait(waiting, progress, len(labels))
                continue
            time.sleep(SECONDS_BETWEEN_POLLS)
            if time.monotonic() - latest > SECONDS_BETWEEN_LINES:
                latest = time.monotonic()
                ended = len(labels) - len(waiting) - len(running)
                shares = sum(_share(folder / _name(label)) for label in running)
                text = f"{ended} of {len(labels)} runs; now {', '.join(running)}"
                progress(text, round(1000 * (ended + shares)), 1000 * len(labels))
    finally:
        for process, errors in running.values():
            process.terminate()
            process.wait()
            errors.close()
    return failures


def _ended(running: dict[str, tuple[subprocess.Popen[bytes], Any]]) -> Iterator[tuple[str, int, str]]:
    """Takes the processes that ended out of `running`: label, exit code, and why it failed."""
    for label, (process, errors) in list(running.items()):
        code = process.poll()
        if code is None:
            continue
        del running[label]
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        errors.close()
        if code < 0:
            yield label, code, f"its process was ended by signal {-code}; continue with --resume"
        else:
            yield label, code, lines[-1] if lines else f"its process ended with code {code}"


def _share(folder: Path) -> float:
    """How much of a run is done, 0 to 1, by its log."""
    try:
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        steps = [entry["step"] for entry in read_log(folder / LOG) if "step" in entry]
    except (OSError, ValueError, HoldfastError):
        return 0.0
    return min(1.0, steps[-1] / run["steps"]) if steps else 0.0


def _panel(title: str, y: str, curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Panel:
    named = enumerate(curves.items())
    lines = [Line(label, steps, values, colour=k) for k, (label, (steps, values)) in named if len(values)]
    return Panel(title, Axis("step"), Axis(y, log=y == "loss"), lines)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str]) -> int:
    """Trains one run of a sweep, as a process of its own: FOLDER LABEL."""
    try:
        train_one(Path(arguments[0]), arguments[1])
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return IN_USE if isinstance(error, RunInUseError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
