"""Training runs side by side: what a config file with lists unfolds into, as units that run anywhere."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.data.base import AbstractTask
from holdfast.errors import ArgumentError
from holdfast.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets
from holdfast.figures import Axis, Figure, Line, Panel, Table
from holdfast.training.fit import fit
from holdfast.training.recipe import Recipe


def sweep_config(name: str, runs: Sequence[tuple[Mapping[str, Any], Recipe]]) -> Config:
    """The config of a sweep.

    Args:
        name: what to call it.
        runs: the settings in which each run differs, and the run.
    """
    data: dict[str, Any] = {}
    units = []
    for axes, recipe in runs:
        key = repr(recipe.tables["task"])
        if key not in data:
            data[key] = _identity(recipe.load_task())
        label = " ".join(f"{name.partition('.')[2]}={value}" for name, value in axes.items())
        tables = {section: dict(keys) for section, keys in recipe.tables.items()}
        units.append({"label": label, "seed": recipe.config.seed, "tables": tables, "data": data[key]})
    return {"name": name, "runs": units}


def _run(config: Config, work: Work) -> Arrays:
    recipe = Recipe(config["tables"])
    task = recipe.load_task()
    if _identity(task) != config["data"]:
        raise ArgumentError(f"{task.name}: the data changed since the sweep was begun; start it again")

    def progress(text: str, done: int | None, total: int | None) -> None:
        work.progress((done or 0) / (total or 1), text)

    with _folder(work.scratch) as folder:
        model = recipe.build_model(task)
        run = fit(model, task, recipe.config, folder=folder, resume=True, progress=progress)
    work.log(
        status=run.status, reason=run.reason, step=run.step, metrics=dict(run.metrics), best=dict(run.best),
        seconds=run.seconds, data=task.describe(),
    )  # fmt: skip
    history = run.history
    curves = {f"valid.{name}": values for name, values in history.metrics.items()}
    return {"steps": history.steps, "loss": history.loss, "evaluated": history.evaluated, **curves}


def _identity(task: AbstractTask) -> Any:
    """What identifies the data, as it comes back from a file."""
    return json.loads(json.dumps(task.identity()))


@contextmanager
def _folder(scratch: Path | None) -> Iterator[Path]:
    if scratch is not None:
        yield scratch / "run"
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made) / "run"


def _conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    labels = [unit.config["label"] for unit in units]
    ends = [unit.log[-1] for unit in units]
    names = list(dict.fromkeys(name for unit in units for name in unit.arrays if name.startswith("valid.")))
    panels = [_panel("training loss", "loss", labels, [(u.arrays["steps"], u.arrays["loss"]) for u in units])]
    for name in names:
        curves = [(u.arrays["evaluated"], u.arrays.get(name, np.empty(0))) for u in units]
        panels.append(_panel(name.replace(".", " "), name.partition(".")[2], labels, curves))
    text = f"Loss and validation metrics of {len(units)} training runs over their steps: {'; '.join(labels)}."
    notes = list(dict.fromkeys(str(end["data"]) for end in ends))
    notes += [
        f"{label}: diverged at step {e['step']}, {e['reason']}"
        for label, e in zip(labels, ends, strict=True)
        if e["status"] == "diverged"
    ]
    return Conclusion([], [Figure("curves", text, panels)], [_table(labels, ends)], notes)


def _panel(title: str, y: str, labels: Sequence[str], curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> Panel:
    named = enumerate(zip(labels, curves, strict=True))
    lines = [Line(label, x, values, colour=k) for k, (label, (x, values)) in named if len(values)]
    return Panel(title, Axis("step"), Axis(y, log=y == "loss"), lines)


def _table(labels: Sequence[str], ends: Sequence[Mapping[str, Any]]) -> Table:
    columns = dict.fromkeys(
        f"{split} {name}" for end in ends for split, metrics in end["metrics"].items() for name in metrics
    )
    rows = []
    for label, end in zip(labels, ends, strict=True):
        found = {f"{s} {name}": value for s, metrics in end["metrics"].items() for name, value in metrics.items()}
        rows.append([label, end["status"], end["step"], *(found.get(column) for column in columns), end["seconds"]])
    head = ["run", "status", "step", *columns, "seconds"]
    return Table("runs", "Each run: how it ended and the metrics of its final weights.", head, rows)


EXPERIMENT = Experiment(
    id="own-sweep",
    where="Sweep",
    title="Training runs side by side",
    summary="One training run for each combination of the values in a config file.",
    presets=presets({"name": "", "runs": []}),
    run=_run,
    conclude=_conclude,
    units=lambda config: config["runs"],
)
