"""Runs units and conclusions in this process and returns results. Does not save; see execution.store."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from holdfast._provenance import Provenance
from holdfast.errors import ArgumentError
from holdfast_papers.experiments.base import Config, Experiment, Unit, Work
from holdfast_papers.experiments.registry import get
from holdfast_papers.pages import Page
from holdfast_papers.results import Result, check_names


def run_unit(experiment: Experiment, config: Config, work: Work | None = None) -> Result:
    """One unit, seeded by its config's `seed` (0 where it has none)."""
    work = work or Work()
    started = datetime.now(UTC)
    seed = int(config.get("seed", 0))
    with _seeded(seed):
        returned = experiment.run(config, work)
    with _named(f"{experiment.id}: the unit of {dict(config)}"):
        check_names(returned)
    arrays = {name: np.asarray(array) for name, array in returned.items()}
    origin = {"version": experiment.version, **({"source": experiment.source} if experiment.source else {})}
    provenance = Provenance.collect(seed=seed, started=started, **origin)
    return Result(experiment.owner, config, arrays, [], provenance, work.entries)


def conclude(experiment: Experiment, preset: str, config: Config, units: Sequence[Result], key: str = "") -> Result:
    """The conclusion of finished units; `key` names what it was drawn from."""
    started = datetime.now(UTC)
    with _seeded(0):
        drawn = experiment.conclude(config, [Unit(u.config, u.arrays, u.log, u.provenance.seconds) for u in units])
    for kind, items in (("claims", drawn.claims), ("figures", drawn.figures)):
        names = [item.name for item in items]
        if len(set(names)) < len(names):
            raise ArgumentError(f"{experiment.id}: {kind} must have different names, got {names}")
    with _named(f"{experiment.id}: the conclusion"):
        check_names(drawn.arrays)
    page = Page(
        paper=experiment.paper,
        where=experiment.where,
        title=experiment.title,
        summary=experiment.summary,
        preset=preset,
        figures=drawn.figures,
        tables=drawn.tables,
        notes=drawn.notes,
    )
    extra: dict[str, Any] = {
        "key": key,
        "version": experiment.version,
        "units": [experiment.identity(u.config) for u in units],
        "unit_seconds": sum(u.provenance.seconds for u in units),
    }
    if experiment.family:  # others may have run on the same units: a sum over experiments counts each once
        extra["shared_seconds"] = {experiment.identity(u.config): u.provenance.seconds for u in units}
    provenance = Provenance.collect(started=started, **extra)
    return Result(experiment.id, config, drawn.arrays, drawn.claims, provenance, page=page)


def run(
    experiment: str | Experiment,
    preset: str = "quick",
    *,
    progress: Callable[[float, str], None] | None = None,
    **changes: Any,
) -> Result:
    """Runs a whole experiment in this process, one unit after the other, and saves nothing.

    Args:
        experiment: an id, a Python file, or the Experiment itself.
        preset: "quick", "standard" or "paper".
        progress: called with the share that is done, 0 to 1, and a word about it.
        changes: settings of the preset to replace: run("stable-fig2", points=51).
    """
    experiment = get(experiment) if isinstance(experiment, str) else experiment
    config = experiment.config(preset, changes)
    tell = progress or (lambda done, text: None)
    results = []
    configs = experiment.units(config)
    for k, unit in enumerate(configs):

        def report(done: float, text: str, k: int = k) -> None:
            tell((k + done) / len(configs), text)

        results.append(run_unit(experiment, unit, Work(report)))
    tell(1.0, "concluding")
    return conclude(experiment, preset, config, results)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Says which unit gave what cannot be saved, at the moment when it comes back."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(f"{where} returned something that cannot be saved: {error}") from None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds every generator of the process, for experiments that forget one of theirs, and puts them back after."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
