"""What is to be done: the units of the chosen experiments at a preset, and what of them is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.errors import ArgumentError
from holdfast_papers.execution.earlier import earlier_units
from holdfast_papers.execution.store import Store
from holdfast_papers.execution.task import Task
from holdfast_papers.experiments import registry
from holdfast_papers.experiments.base import Config, Experiment, unit_identity
from holdfast_papers.results import MANIFEST, config_hash

MAX_LABEL = 56  # letters


@dataclass(eq=False)
class Job:
    """One experiment at one preset.

    Args:
        experiment: the experiment.
        origin: where another process finds it: a module's name or a file.
        preset: the preset.
        config: its settings.
        folder: of its conclusion.
        units: its units, as tasks.
        contents: checksum of each finished unit's arrays, by folder.
        failed: whether a unit was given up.
        concluded: whether its conclusion is saved.
    """

    experiment: Experiment
    origin: str
    preset: str
    config: Config
    folder: Path
    units: list[Task]
    contents: dict[str, str] = field(default_factory=dict)
    failed: bool = False
    concluded: bool = False

    @property
    def missing(self) -> list[Task]:
        """The units that are not finished."""
        return [task for task in self.units if task.folder not in self.contents]

    def take_in(self, task: Task, manifest: Mapping[str, Any]) -> None:
        """Notes that a unit is finished.

        Args:
            task: the unit.
            manifest: contents of its result.json.
        """
        self.contents[task.folder] = manifest["files"]["arrays"]["sha256"]

    def key(self) -> str:
        """Names everything that the conclusion depends on: version, source, config, and the units' contents."""
        contents = [self.contents[task.folder] for task in self.units]
        source = {"source": self.experiment.source} if self.experiment.source else {}
        return config_hash({"version": self.experiment.version, "config": self.config, "contents": contents, **source})

    def conclusion(self) -> Task:
        """The task that draws the conclusion; all units are finished."""
        return Task(
            "conclusion", self.experiment.id, self.origin, str(self.folder), self.config, f"{self.experiment.id} conclusion",
            preset=self.preset, key=self.key(), source=self.experiment.source, sources=[task.folder for task in self.units],
        )  # fmt: skip


def missing_units(jobs: Sequence[Job]) -> list[Task]:
    """The units of all jobs that are not finished; one that several experiments of a family share is there once."""
    return [*{task.folder: task for job in jobs for task in job.missing}.values()]


def plan(
    store: Store, ids: Sequence[str], preset: str, notice: Callable[[str], None], *, keep: bool = False
) -> list[Job]:
    """What is to be done: a job for each experiment, with what is finished already taken in.

    Args:
        store: where results are kept.
        ids: experiments, by id or file; none are all of them.
        preset: "quick", "standard" or "paper".
        notice: called with a line for each saved result that is damaged, or of code that changed since, and runs again.
        keep: take existing units though the code of an experiment of the user's own changed since.
    """
    origins = dict.fromkeys(registry.origin(id) for id in ids or registry.ids())  # one that is named twice runs once
    _check_apart(origins)
    return [plan_one(store, origin, preset, None, notice, keep=keep) for origin in origins]


def _check_apart(origins: Iterable[str]) -> None:
    """Refuses two files with one id: their conclusions would lie in one folder."""
    seen: dict[str, str] = {}
    for origin in origins:
        id = registry.load(origin).id
        if id in seen:
            raise ArgumentError(
                f"expected experiments with different ids, got {id!r} in {seen[id]} and in {origin}, whose results "
                "would overwrite each other; change one id, or run them by two commands with different --store folders"
            )
        seen[id] = origin


def plan_one(
    store: Store,
    origin: str,
    preset: str,
    config: Config | None,
    notice: Callable[[str], None],
    *,
    keep: bool = False,
) -> Job:
    """The job of one experiment, with what is finished already taken in.

    Args:
        store: where results are kept.
        origin: where the experiment is found, a module's name or a file.
        preset: that the job is kept under.
        config: its settings; None is the preset's own.
        notice: called with a line for each saved result that is damaged, or of code that changed since, and runs again.
        keep: take existing units though the code of an experiment of the user's own changed since.
    """
    job = _job(store, origin, preset, config)
    _look_for_earlier(store, job, notice, keep)
    for task in job.units:
        manifest, damage = unit_state(store, task)
        if manifest is not None:
            job.take_in(task, manifest)
        elif damage:
            notice(f"{task.label}: {damage}; it runs again")
    if not job.missing:
        job.concluded = is_concluded(store, job, notice)
    return job


def _look_for_earlier(store: Store, job: Job, notice: Callable[[str], None], keep: bool) -> None:
    """Says which units the code left behind when it changed; with `keep` they stand for those of the code as it is."""
    earlier = earlier_units(store, job.experiment)
    places = [(k, earlier.get(config_hash(task.config))) for k, task in enumerate(job.units) if not _is_there(task)]
    changed = [(k, folder) for k, folder in places if folder is not None]
    if not changed:
        return
    units, run = ("1 unit", "runs") if len(changed) == 1 else (f"{len(changed)} units", "run")
    if keep:
        for k, folder in changed:
            job.units[k] = replace(job.units[k], folder=str(folder))
        notice(f"{job.experiment.id}: the code changed: {units} of the earlier code kept, as --keep says")
    else:
        notice(f"{job.experiment.id}: the code changed: {units} {run} again, or pass --keep")


def _is_there(task: Task) -> bool:
    """Whether something is saved for the task, sound or not."""
    return (Path(task.folder) / MANIFEST).exists()


def unit_state(store: Store, task: Task) -> tuple[dict[str, Any] | None, str]:
    """As `Store.state`, and what is there must be this very unit: a folder can be copied over another."""
    folder = Path(task.folder)
    manifest, damage = store.state(folder)
    if manifest is not None and _identity(manifest) != folder.name:
        return None, f"{folder} holds another unit ({manifest['experiment']})"
    return manifest, damage


def is_concluded(store: Store, job: Job, notice: Callable[[str], None]) -> bool:
    """Whether the existing conclusion was drawn from exactly these units."""
    manifest, damage = store.state(job.folder)
    if damage:
        notice(f"{job.experiment.id} conclusion: {damage}; it is drawn again")
    expected = (job.experiment.id, job.preset, job.key())
    return manifest is not None and _what_for(manifest) == expected


def _identity(manifest: Mapping[str, Any]) -> str | None:
    """The name that a unit's folder must have by what its result says; None where it says nothing that makes sense."""
    try:
        provenance, config = manifest["provenance"], manifest["config"]
        if provenance["seed"] != config.get("seed", 0):
            return None
        extra = provenance["extra"]
        return unit_identity(manifest["experiment"], extra["version"], extra.get("source", ""), config)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _what_for(manifest: Mapping[str, Any]) -> tuple[Any, Any, Any] | None:
    try:
        return manifest["experiment"], manifest["page"]["preset"], manifest["provenance"]["extra"]["key"]
    except (KeyError, TypeError):
        return None


def _job(store: Store, origin: str, preset: str, given: Config | None) -> Job:
    experiment = registry.load(origin)
    config = experiment.config(preset) if given is None else given
    configs = experiment.units(config)
    labels = _labels(experiment.owner, configs)
    tasks = {}
    for unit, label in zip(configs, labels, strict=True):
        folder = str(store.unit(experiment.owner, experiment.identity(unit)))
        # two equal configs are one unit
        tasks[folder] = Task(
            "unit",
            experiment.id,
            origin,
            folder,
            unit,
            label,
            experiment.cost(unit),
            preset,
            source=experiment.source,
        )
    folder_of_conclusion = store.conclusion(experiment.id, preset)
    return Job(experiment, origin, preset, config, folder_of_conclusion, [*tasks.values()])


def _labels(id: str, configs: Sequence[Config]) -> list[str]:
    """A unit is called by the settings in which it differs from the others."""
    every = dict.fromkeys(key for config in configs for key in config)
    keys = [key for key in every if len({repr(config[key]) for config in configs if key in config}) > 1]
    if "label" in keys:  # it says in words what the other settings are
        return [f"{id} {_brief(config['label'], MAX_LABEL)}" for config in configs]
    return [" ".join([id, *(f"{k}={_brief(c[k])}" for k in keys if k in c)]) for c in configs]


def _brief(value: Any, most: int = 16) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= most else text[: most - 1] + "…"
