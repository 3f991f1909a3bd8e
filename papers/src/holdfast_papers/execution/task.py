"""A piece of work as data: it can be sent to another process or machine as JSON, and performed there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast.errors import ArgumentError
from holdfast_papers.execution.store import Store
from holdfast_papers.experiments.base import Config, Work
from holdfast_papers.experiments.registry import load
from holdfast_papers.experiments.running import conclude, run_unit
from holdfast_papers.results import Result


@dataclass(frozen=True, eq=False)
class Task:
    """A piece of work as data: one unit, or the conclusion of a preset's units.

    Args:
        kind: "unit" or "conclusion".
        experiment: id of the experiment.
        origin: where another process finds it: a module's name or a file.
        folder: where the result is saved.
        config: the settings.
        label: what it is called in messages.
        cost: estimated seconds on one core.
        preset: that it belongs to.
        key: of a conclusion, names the contents of its units.
        source: checksum of the user's own file that the experiment comes from, if it does.
        sources: of a conclusion, the folders of its units.
    """

    kind: Literal["unit", "conclusion"]
    experiment: str
    origin: str
    folder: str
    config: Config
    label: str
    cost: float = 1.0
    preset: str = ""
    key: str = ""
    source: str = ""
    sources: Sequence[str] = field(default_factory=tuple)

    def message(self) -> dict[str, Any]:
        """The task as JSON's own types."""
        return {**asdict(self), "config": dict(self.config), "sources": [*self.sources]}


def perform(task: Task, report: Callable[[float, str], None], scratch: Path | None, units: Sequence[Result]) -> Result:
    """Does the work and returns its result; `units` are the results that a conclusion is drawn from."""
    experiment = load(task.origin)
    if experiment.source != task.source:
        raise ArgumentError(
            f"{task.origin}, or a file that it imports, was edited during the run; run the same command again"
        )
    if task.kind == "conclusion":
        return conclude(experiment, task.preset, task.config, units, task.key)
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    return run_unit(experiment, task.config, Work(report, scratch))


def perform_in(store: Store, task: Task, report: Callable[[float, str], None]) -> None:
    """Does the work and saves its result in the store that this process shares."""
    folder = Path(task.folder)
    store.try_folder(folder)
    units = [Result.load(source) for source in task.sources]
    scratch = store.scratch(folder)
    if task.kind == "unit":
        with store.guarded():
            scratch.mkdir(parents=True, exist_ok=True)
    store.save(folder, perform(task, report, scratch, units))
