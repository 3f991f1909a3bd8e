"""Every experiment by id. A file in a section's folder is an experiment: stable/fig2.py is stable-fig2.

Files whose names begin with an underscore are shared by experiments. Nothing has to be registered.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, unknown_name
from holdfast_papers.experiments.base import Experiment
from holdfast_papers.experiments.neighbours import beside, make_importable, source_of
from holdfast_papers.papers import SECTIONS, order_of

HERE = Path(__file__).parent
PACKAGE = "holdfast_papers.experiments"


@dataclass(frozen=True)
class Entry:
    """A line of the list of experiments.

    Args:
        id: paper and name, like "iat-fig1".
        where: the place in the paper.
        title: what it shows.
    """

    id: str
    where: str
    title: str


def ids() -> list[str]:
    """The ids that can be run, by paper and number."""
    found = [
        f"{paper}-{module.name}"
        for paper in SECTIONS
        for module in pkgutil.iter_modules([str(HERE / paper)])
        if not module.name.startswith("_")
    ]
    return sorted(found, key=order_of)


def entries() -> list[Entry]:
    """Every experiment of the four papers, and those beyond them."""
    return [Entry(e.id, e.where, e.title) for e in map(get, ids())]


@checked
def get(id: str) -> Experiment:
    """An experiment by its id, or from a Python file of the user's.

    Args:
        id: like "iat-fig1", or `path/to/file.py`.
    """
    return load(origin(id))


def origin(id: str) -> str:
    """Where an experiment is found by another process: its module's name, or the path of a file."""
    if id.endswith(".py"):
        path = Path(id).resolve()
        if not path.is_file():
            raise ArgumentError(
                f"expected an id of an experiment (see `holdfast list`) or an existing .py file, got {path}"
            )
        return str(path)
    known = ids()
    if id in known:
        return f"{PACKAGE}.{id.replace('-', '.', 1)}"
    raise unknown_name("experiment id", id, known)


def load(origin: str) -> Experiment:
    """The object EXPERIMENT of a module or file."""
    if origin.endswith(".py"):
        return _own(Path(origin))
    return _experiment(importlib.import_module(origin), origin)


def _experiment(module: ModuleType, origin: str) -> Experiment:
    experiment = getattr(module, "EXPERIMENT", None)
    if not isinstance(experiment, Experiment):
        raise ArgumentError(
            f"{origin} must define EXPERIMENT = Experiment(...), got {type(experiment).__name__}; see docs/reproduce.md"
        )
    return experiment


def _own(path: Path) -> Experiment:
    content = path.read_bytes()
    source = source_of(path, content)
    experiment = _experiment(_from_file(path, content, source), str(path))
    if experiment.paper != "own":
        name = experiment.id.split("-", 1)[1]
        raise ArgumentError(
            f"{path}: the id of your own experiment must begin with 'own-', got {experiment.id!r}, which is reserved for a "
            f'paper; write id="own-{name}"'
        )
    folder = path.parent
    return replace(
        experiment,
        source=source,
        run=beside(folder, experiment.run),
        conclude=beside(folder, experiment.conclude),
        units=beside(folder, experiment.units),
    )


def _from_file(path: Path, content: bytes, source: str) -> ModuleType:
    """The module of exactly these bytes: Python's own loader may take a stale cache for an edit within a second."""
    name = f"holdfast_experiment_{path.stem}_{source}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path):
        return loaded
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    make_importable(path.parent)
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = f" at line {lines[-1]}" if lines else ""
        raise ArgumentError(f"{path} cannot be loaded{place}: {type(error).__name__}: {error}") from error
    return module
