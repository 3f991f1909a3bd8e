"""`fit`: any module, any task, one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from holdfast._arguments import checked
from holdfast.data.base import AbstractTask
from holdfast.errors import ArgumentError
from holdfast.training import checkpoint
from holdfast.training.config import TrainingConfig
from holdfast.training.fabric import make_fabric, undisturbed
from holdfast.training.folder import begin, check_same, locked, read_run
from holdfast.training.loop import Loop, Progress
from holdfast.training.objective import Loss, Objective
from holdfast.training.run import TrainingRun


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
    """Trains a model on a task and keeps everything in a folder; a run that was killed goes on where it was.

    AdamW on groups of weights (`holdfast.parameter_groups`). The order of examples, dropout and the learning rates
    follow from the seed and the number of the step, so that a continued run computes what an uninterrupted one does, bit
    for bit on one thread. A run that diverges is a result: its status says so, and its weights are those before.

    Args:
        model: any module; it ends with the last weights. It is called with the inputs, and with `lengths` and
            `return_state=False` where its forward has arguments of that name.
        task: the data, from `holdfast.data.load_task` or `holdfast.data.ArrayTask`.
        config: the settings, a TrainingConfig or a dict of them.
        folder: where log and checkpoints go; new, empty, or with `resume` that of the same run.
        resume: go on with the run in the folder; where there is none, begin one.
        loss: `loss(outputs, batch)`, the mean over a batch, instead of the task's own.
        loggers: loggers of Lightning Fabric that get every line of the log.
        progress: called with a text, the step and the number of steps.
        fabric: a launched Lightning Fabric to use instead of the one that the config describes.
    """
    settings, path = TrainingConfig.of(config), Path(folder)
    if "train" not in task.splits:
        raise ArgumentError(f"{task.name} has no split 'train', only {', '.join(task.splits)}")
    own = fabric if fabric is not None else make_fabric(settings, path, loggers)
    # config first: processes that are started for the run must not wait for each other's lock
    with undisturbed(settings.threads), locked(path) if own.is_global_zero else nullcontext():
        own.barrier()
        _train(own, model, task, settings, path, resume, Objective(model, task, loss), progress)
    own.barrier()
    return TrainingRun.load(path)


def _train(
    fabric: Any, model: nn.Module, task: AbstractTask, config: TrainingConfig, folder: Path, resume: bool,
    objective: Objective, progress: Progress | None,
) -> None:  # fmt: skip
    weights = {
        name: checkpoint.describe(value) for name, value in model.state_dict().items() if hasattr(value, "dtype")
    }
    identity = {"config": config.identity(), "task": task.identity(), "model": weights}
    saved = read_run(folder)
    if saved is not None and not resume:
        raise ArgumentError(f"{folder} holds a run; continue it with resume, or choose another folder")
    if saved is not None:
        check_same(folder, saved, identity)
    fabric.barrier()
    loop = Loop(fabric, model, objective, task, config, folder, progress)
    if saved is None and fabric.is_global_zero:
        begin(folder, {**identity, "steps": loop.descent.steps}, config.as_dict())
    loop.restore()
    try:
        loop.run()
    finally:
        loop.close()
