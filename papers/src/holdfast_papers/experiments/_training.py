"""Training inside a unit: in its scratch folder, so that a killed unit continues where it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from holdfast.data._base import AbstractTask
from holdfast.training import TrainingRun, fit
from holdfast.training._objective import Loss
from holdfast_papers.experiments.base import Work


def trained(
    model: nn.Module,
    task: AbstractTask,
    config: Mapping[str, Any],
    work: Work,
    *,
    name: str = "run",
    part: tuple[float, float] = (0.0, 1.0),
    loss: Loss | None = None,
) -> TrainingRun:
    """Trains the model in place on one thread; a run that diverges says so in its status.

    Args:
        model: ends with the last weights.
        task: the data.
        config: settings of a TrainingConfig.
        work: the unit's; where it has no scratch, nothing is kept.
        name: of the run's folder, for units with more than one run.
        part: begin and end of the unit's progress that this run is.
        loss: `loss(outputs, batch)` instead of the task's own.
    """
    begin, end = part

    def report(text: str, step: int | None, steps: int | None) -> None:
        work.progress(begin + (end - begin) * (step or 0) / max(steps or 1, 1), text)

    settings = {"accelerator": "cpu", "threads": 1, **config}
    with TemporaryDirectory() as fallback:
        folder = (work.scratch or Path(fallback)) / name
        return fit(model, task, settings, folder=folder, resume=True, loss=loss, progress=report)
