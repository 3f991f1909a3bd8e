"""What a training run left behind, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from torch import nn

from holdfast._codec import restored
from holdfast._record import Record
from holdfast._words import duration
from holdfast.errors import ArgumentError
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.training import _checkpoint as checkpoint
from holdfast.training._folder import read_run
from holdfast.training._log import LOG, History, check_log, history_of, read_log

Status = Literal["running", "finished", "stopped early", "diverged"]


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRun(Record):
    """A training run: how it ended, what it reached, and what was recorded on the way.

    It is read from its folder, which has the weights too; `save` keeps all of it but the weights in one file.

    Args:
        folder: the folder of the run.
        status: "finished"; "stopped early", when validation no longer became better; "diverged"; or "running", where it
            was interrupted and can be continued.
        reason: why it diverged or stopped early.
        step: optimizer steps done; of a diverged run, the step that would have been the next.
        steps: optimizer steps that were requested.
        seconds: wall-clock time spent on training and evaluation, in seconds.
        metrics: of the final weights, by split; none of a diverged run.
        best: step and metrics of the best weights on "valid"; empty where there is no such split.
        history: losses, rates, metrics and gradients as arrays.
        warnings: what the gradient monitor warned of.
        task: the identity of the data that it was trained on.
        config: its settings.
        finite: whether loss and gradient were finite to the end; a run diverges by a large loss too.
        notes: with recurrent_lr = "auto", the rate of each recurrence and its reason.
    """

    _parts: ClassVar[tuple[type, ...]] = (History,)

    folder: Path
    status: Status
    reason: str
    step: int
    steps: int
    seconds: float
    metrics: Mapping[str, Mapping[str, float]]
    best: Mapping[str, Any]
    history: History
    warnings: tuple[str, ...] = ()
    task: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    finite: bool = True
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Reads a run.

        Args:
            path: its folder, or a file that `save` wrote.
        """
        path = Path(path)
        if path.is_file():
            return super().load(path)
        about = read_run(path)
        if about is None:
            raise ArgumentError(f"expected the folder of a training run, got {path}, which holds none; check the path")
        body = checkpoint.read_body(path, "last")
        if body is not None:
            check_log(path / LOG, body["log"])
        state, entries = {} if body is None else body["state"], read_log(path / LOG)
        return cls(
            folder=path,
            status=state.get("status", "running"),
            reason=state.get("reason", ""),
            step=state.get("step", 0),
            steps=about["steps"],
            seconds=state.get("seconds", 0.0),
            metrics=state.get("metrics", {}),
            best=state.get("best", {}),
            history=history_of(entries),
            warnings=_texts(entries, "warning"),
            task=restored(about["task"]),
            config=restored(about["settings"]),
            finite=state.get("finite", True),
            notes=_texts(entries, "note"),
        )

    @property
    def checkpoints(self) -> dict[str, Path]:
        """The safetensors files of the "last" and the "best" weights; names in them begin with "model."."""
        bodies = {which: checkpoint.read_body(self.folder, which) for which in ("last", "best")}
        return {which: self.folder / body["tensors"]["file"] for which, body in bodies.items() if body is not None}

    def load_weights(self, model: nn.Module, which: checkpoint.Which = "best") -> None:
        """Puts weights of the run into `model`; `which` is "best" or "last"."""
        body = checkpoint.read_body(self.folder, which)
        if body is None:
            raise ArgumentError(
                f"expected one of the checkpoints {[*self.checkpoints]} of {self.folder}, got {which!r}"
            )
        checkpoint.put_weights(model, checkpoint.read_tensors(self.folder, which, body))

    def summary(self) -> str:
        """One line: how it ended and what it reached."""
        parts = [f"{self.status} at step {self.step} of {self.steps}" + (f" ({self.reason})" if self.reason else "")]
        parts += [f"{split} {_metrics(values)}" for split, values in self.metrics.items()]
        if self.best:
            parts.append(f"best valid {_metrics(self.best['valid'])} at step {self.best['step']}")
        return ", ".join([*parts, f"in {duration(self.seconds)}"])

    def figure(self) -> Figure:
        """Training and validation loss over the steps."""
        layers = [Line("train", self.history.steps, self.history.loss)]
        valid = self.history.metrics.get("loss", np.empty(0))
        if len(valid):
            layers.append(Line("valid", self.history.evaluated, valid, markers=True))
        panel = Panel(f"Training: {self.status}", Axis("step"), Axis("loss"), layers)
        return Figure("training", f"Loss along training: {self.summary()}.", [panel])


def _texts(entries: Sequence[Mapping[str, Any]], event: str) -> tuple[str, ...]:
    return tuple(str(entry["text"]) for entry in entries if entry.get("event") == event)


def _metrics(values: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in values.items() if isinstance(value, float))
