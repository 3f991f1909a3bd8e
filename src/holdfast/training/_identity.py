"""What a model is, as plain values: a run may only be continued with the model that it was begun with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from holdfast._codec import plain
from holdfast.data._base import AbstractTask
from holdfast.training import _checkpoint as checkpoint
from holdfast.training._config import TrainingConfig

_SCALARS = (bool, int, float, str, type(None))
PATH_KEYS = ("file", "path", "folder", "root", "factory")  # a run may be continued after its data or code have moved


def identity_of(
    model: nn.Module, task: AbstractTask, config: TrainingConfig, tables: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """Everything that decides what a run computes, by part and name.

    Args:
        model: before its first step.
        task: the data.
        config: the settings.
        tables: those of the config file, where the run has one; [optimizer] and [run] are in `config`.
    """
    tables = tables or {}
    return {
        "config": plain(config.identity()),
        "task": plain(task.identity()),
        "weights": plain(checkpoint.shapes_of(model)),
        "model": plain(dict(_modules(model))),
        "[task]": plain(_portable(tables.get("task", {}))),
        "[model]": plain(_portable(tables.get("model", {}))),
    }


def _modules(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Class and plain settings of each module: dropout or a discretization leave no trace in the weights."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        yield path or "class", type(module).__qualname__
        for name, value in vars(module).items():
            # `training` is a mode that fit sets itself; private names are caches as often as settings
            if name != "training" and not name.startswith("_") and _is_setting(value):
                yield prefix + name, value


def _is_setting(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(isinstance(item, _SCALARS) for item in value)
    return isinstance(value, _SCALARS)


def _portable(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: Path(value).name if key in PATH_KEYS and isinstance(value, str) else value for key, value in table.items()
    }
