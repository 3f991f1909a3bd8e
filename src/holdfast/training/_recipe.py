"""A config file: tables [task], [model], [optimizer] and [run] in TOML; a list instead of a value makes it a sweep."""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from holdfast._arguments import annotations_of, takes_sequence
from holdfast._factories import load_factory
from holdfast.data._base import AbstractTask
from holdfast.data._tasks import TASKS, load_task
from holdfast.errors import ArgumentError, unknown_name
from holdfast.training._build import KINDS, build_model, check_model_keys, model_keys
from holdfast.training._config import OPTIMIZER, TrainingConfig
from holdfast.training._folder import PATH_KEYS

Tables = dict[str, dict[str, Any]]
SECTIONS = ("task", "model", "optimizer", "run")
RUN = tuple(f.name for f in fields(TrainingConfig) if f.name not in OPTIMIZER)
_ALTERNATIVES = {"steps": "epochs", "epochs": "steps"}  # one of them is given: a change to one takes the other away
# what decides which other keys there are: a sweep over them is unfolded first
_DECIDING_KEYS = (("task", "name"), ("model", "factory"), ("model", "kind"), ("model", "layer"))


@dataclass(frozen=True)
class Recipe:
    """One training run as plain tables: what a config file says after changes and unfolding.

    Args:
        tables: [task], [model], [optimizer] and [run].
    """

    tables: Mapping[str, Mapping[str, Any]]

    @property
    def config(self) -> TrainingConfig:
        """The settings of the run."""
        return TrainingConfig.of({**self.tables["optimizer"], **self.tables["run"]})

    def load_task(self) -> AbstractTask:
        """The data."""
        options = dict(self.tables["task"])
        return load_task(options.pop("name"), **options)

    def build_model(self, task: AbstractTask) -> nn.Module:
        """A new model for `task`, with weights drawn by the run's seed."""
        spec = self.tables["model"].get("factory")
        factory = None if spec is None else load_factory(spec)
        return build_model(task, self.tables["model"], seed=self.config.seed, factory=factory)


def read_recipes(path: Path, changes: Sequence[str] = ()) -> list[tuple[dict[str, Any], Recipe]]:
    """The runs of a config file, each with the settings in which it differs from the others; one where nothing is a list.

    Args:
        path: the file.
        changes: `section.key=value`, instead of what the file says.
    """
    tables = _read(path)
    for change in changes:
        section, key, value = _change(change)
        tables[section][key] = value
        if section == "run" and key in _ALTERNATIVES:
            tables["run"].pop(_ALTERNATIVES[key], None)
    tables = {section: {k: _resolved(k, v, path.parent) for k, v in keys.items()} for section, keys in tables.items()}
    recipes = [(dict(axes), Recipe(one)) for axes, one in _unfold(tables)]
    for _, recipe in recipes:
        _check(recipe.tables)
    return recipes


def _read(path: Path) -> Tables:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"cannot read the config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} is not valid TOML: {error}") from None
    for section, keys in given.items():
        if section not in SECTIONS:
            raise unknown_name(f"table in {path}", section, SECTIONS)
        if not isinstance(keys, dict):
            raise ArgumentError(f"{path}: expected a table [{section}] with keys below it, got {section} = {keys!r}")
    return {section: given.get(section, {}) for section in SECTIONS}


def _change(text: str) -> tuple[str, str, Any]:
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals or not dot or not key:
        raise ArgumentError(f"--set: expected section.key=value, as optimizer.lr=0.01; got {text!r}")
    if section not in SECTIONS:
        raise unknown_name("section in --set", section, SECTIONS)
    try:
        return section, key, tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return section, key, value.strip()  # text needs no quotes here


def _resolved(key: str, value: Any, base: Path) -> Any:
    """A file that lies beside the config is found from any folder."""
    if isinstance(value, list):
        return [_resolved(key, one, base) for one in value]
    if key not in PATH_KEYS or not isinstance(value, str):
        return value
    file, colon, name = value.rpartition(":") if key == "factory" else (value, "", "")
    beside = base / file
    # os.path, unlike Path.exists, takes a name that is too long for a missing one
    return f"{beside.absolute()}{colon}{name}" if file and os.path.exists(beside) else value


def _unfold(tables: Tables) -> Iterator[tuple[dict[str, Any], Tables]]:
    """One run for each combination of the values in lists."""
    _check_names(tables)
    axis = next(_axes(tables), None)
    if axis is None:
        yield {}, tables
        return
    # one axis at a time: which keys there are may depend on the value that was chosen
    section, key = axis
    values = tables[section][key]
    if not values:
        raise ArgumentError(f"{section}.{key} must be a value, or a list of values to compare, got an empty list")
    for value in values:
        one = {**tables, section: {**tables[section], key: value}}
        for axes, unfolded in _unfold(one):
            yield {f"{section}.{key}": value, **axes}, unfolded


def _check_names(tables: Tables) -> None:
    for section, key in _DECIDING_KEYS:
        value = tables[section].get(key, "")
        if not isinstance(value, (str, list)):
            raise ArgumentError(f"{section}.{key} must be a name or a list of names, got {value!r}")


def _axes(tables: Tables) -> Iterator[tuple[str, str]]:
    for section, key in _DECIDING_KEYS:
        if isinstance(tables[section].get(key), list):
            yield section, key
    for section in SECTIONS:
        known = _known(tables, section)
        for key, value in tables[section].items():
            if isinstance(value, list) and not _takes_list(known.get(key), value):
                yield section, key


def _known(tables: Tables, section: str) -> Mapping[str, Any]:
    """The annotation of each key of a section."""
    if section in ("optimizer", "run"):
        return annotations_of(TrainingConfig)
    given = tables[section]
    if section == "task":
        task = TASKS.get(given.get("name", ""))
        return {} if task is None else annotations_of(task)
    if "factory" in given:
        return annotations_of(load_factory(given["factory"]))
    kinds = [given["kind"]] if "kind" in given else [*KINDS]
    return {k: a for kind in kinds for k, a in model_keys(kind, given.get("layer", "s4d")).items()}


def _takes_list(annotation: Any, value: list[Any]) -> bool:
    """Whether a list is one value of this key; a list of lists is then several."""
    return takes_sequence(annotation) and not any(isinstance(one, list) for one in value)


def _check(tables: Mapping[str, Mapping[str, Any]]) -> None:
    for section, known in (("optimizer", OPTIMIZER), ("run", RUN)):
        for key in tables[section]:
            if key not in known:
                raise unknown_name(f"key in [{section}]", key, known)
    task, model = tables["task"], tables["model"]
    if "name" not in task:
        raise ArgumentError(f"[task] needs a name, one of: {', '.join(sorted(TASKS))}")
    if task["name"] not in TASKS:
        raise unknown_name("task", task["name"], TASKS)
    options = [*inspect.signature(TASKS[task["name"]]).parameters]
    for key in task:
        if key != "name" and key not in options:
            raise unknown_name(f"key in [task] for {task['name']!r}", key, options)
    if "factory" not in model and "kind" in model:
        check_model_keys(model, model["kind"])
