"""`fit`: any module, any task, one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from holdfast._arguments import checked
from holdfast.data._base import AbstractTask
from holdfast.errors import ArgumentError
from holdfast.training._config import TrainingConfig
from holdfast.training._descent import Descent
from holdfast.training._fabric import make_fabric, undisturbed
from holdfast.training._folder import begin, check_same, identity_of, locked, read_run
from holdfast.training._loop import Loop, Progress
from holdfast.training._objective import Loss, Objective
from holdfast.training._rates import kept, resolved_rate, told
from holdfast.training._recipe import Recipe
from holdfast.training._run import TrainingRun


@checked
def fit(
    model: nn.Module,
    task: AbstractTask,
    config: TrainingConfig | Mapping[str, Any],
    *,
    folder: str | PathLike[str],
    resume: bool = False,
    loss: Loss | None = None,
    loggers: Sequence[Any] = (),
    progress: Progress | None = None,
    fabric: Any = None,
) -> TrainingRun:
    """Trains a model on a task and keeps everything in a folder; a run that was killed continues where it was.

    AdamW on groups of weights (`holdfast.parameter_groups`). The order of examples, dropout and the learning rates
    follow from the seed and the number of the step, so that a continued run computes what an uninterrupted one does, bit
    for bit on one thread. A run that diverges is a result: its status says so, and its weights are those before.

    Args:
        model: any module; it ends with the last weights. It is called with the inputs, and with `lengths` and
            `return_state=False` where its forward has arguments of that name.
        task: the data, from `holdfast.data.load_task` or `holdfast.data.ArrayTask`.
        config: the settings, a TrainingConfig or a dict of them.
        folder: where log and checkpoints go; new, empty, or with `resume` that of the same run.
        resume: continue with the run in the folder; where there is none, begin one.
        loss: `loss(outputs, batch)`, the mean over a batch, instead of the task's own.
        loggers: loggers of Lightning Fabric that get every line of the log.
        progress: called with a text, the step and the number of steps.
        fabric: a launched Lightning Fabric to use instead of the one that the config describes.

    Returns:
        a TrainingRun: how it ended, metrics by split, and the history, as read from the folder.

    Raises:
        ArgumentError: settings that contradict each other, a folder that holds something else or a run with other settings,
            fewer examples than a batch has, labels outside the classes of the task, or data that are not finite.
        UnknownNameError: a dict with a setting that is unknown.
        ShapeError: outputs of the model that do not fit the task.
        RunFolderError: a folder that another run is using or that cannot be written to.
        DamagedResultError: a run to be continued whose files are damaged.
        BackendError: Lightning Fabric is not installed.

    Example:
        >>> import tempfile, holdfast
        >>> from holdfast import data, training
        >>> task = data.load_task("functional", law="exponential", constants=[0.1], length=10, train=8, valid=4, test=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = training.fit(holdfast.nn.LinearRNN(1, 1), task, {"steps": 3, "batch": 4}, folder=folder)
        >>> run.status, run.step, sorted(run.metrics)
        ('finished', 3, ['test', 'valid'])
    """
    settings, path = TrainingConfig.of(config), Path(folder)
    own = fabric if fabric is not None else make_fabric(settings, path, loggers)
    return _run(own, _Job(model, task, settings, path, loss), resume, progress)


def fit_recipe(
    recipe: Recipe,
    model: nn.Module,
    task: AbstractTask,
    folder: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> TrainingRun:
    """Trains what a config file describes; its tables are part of the run's identity.

    Args:
        recipe: one run of the file.
        model: what it builds.
        task: what it loads.
        folder: where log and checkpoints go.
        resume: continue with the run in the folder; where there is none, begin one.
        progress: called with a text, the step and the number of steps.
    """
    job = _Job(model, task, recipe.config, folder, tables=recipe.tables)
    return _run(make_fabric(job.config, folder), job, resume, progress)


@dataclass(frozen=True)
class _Job:
    """What is trained, and where it is kept."""

    model: nn.Module
    task: AbstractTask
    config: TrainingConfig
    folder: Path
    loss: Loss | None = None
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _run(fabric: Any, job: _Job, resume: bool, progress: Progress | None) -> TrainingRun:
    if "train" not in job.task.splits:
        raise ArgumentError(
            f"expected a task with a split 'train', got {job.task.name} with {', '.join(job.task.splits)}"
        )
    # config first: processes that are started for the run must not wait for each other's lock
    with undisturbed(job.config.threads), locked(job.folder) if fabric.is_global_zero else nullcontext():
        fabric.barrier()
        _train(fabric, job, resume, progress)
    fabric.barrier()
    return TrainingRun.load(job.folder)


def _train(fabric: Any, job: _Job, resume: bool, progress: Progress | None) -> None:
    identity = identity_of(job.model, job.task, job.config, job.tables)
    saved = read_run(job.folder)
    if saved is not None and not resume:
        raise ArgumentError(f"{job.folder} already holds a run; continue it with resume, or choose another folder")
    if saved is not None:
        check_same(job.folder, saved, identity)
    fabric.barrier()
    objective = Objective(job.model, job.task, job.loss)
    rate = resolved_rate(job.model, job.task, job.config, saved)
    descent = Descent(fabric, job.model, objective, job.task, job.config, rate)
    loop = Loop(descent, job.folder, progress, notes=told(rate))
    if saved is None and fabric.is_global_zero:
        begin(job.folder, {**identity, "steps": descent.steps, **kept(rate)}, job.config)
    loop.restore()
    try:
        loop.run()
    finally:
        loop.close()
