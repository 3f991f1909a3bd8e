"""The folder of a run: one writer at a time, one run for its life, and nothing in it lost.

run.json        what is trained: config, data, model, versions
last.json       the newest checkpoint, with its last-0 or last-1.safetensors; best.json likewise
log.jsonl       what was recorded
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import nn

from holdfast._codec import plain
from holdfast._files import open_seal, seal, temporary_for, write_atomically
from holdfast._provenance import Provenance
from holdfast.data._base import AbstractTask
from holdfast.errors import ArgumentError, HoldfastError
from holdfast.training import _checkpoint as checkpoint
from holdfast.training._config import TrainingConfig
from holdfast.training._log import LOG

_SCALARS = (bool, int, float, str, type(None))
PATH_KEYS = ("file", "path", "folder", "root", "factory")  # a run may be continued after its data or code have moved
RUN = "run.json"
FORMAT = "holdfast run 2"
LOCK = ".holdfast-run.lock"
FILES = (RUN, LOG, LOCK, *checkpoint.FILES)
MAX_DIFFERENCES = 3  # that an error lists
_LABELS = {
    "config": "",
    "task": "data: ",
    "weights": "model: ",
    "model": "model: ",
    "[task]": "[task] ",
    "[model]": "[model] ",
}


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


class RunFolderError(HoldfastError, OSError):
    """A run's folder is in use or cannot be written; the text says why and what to do."""


class RunInUseError(RunFolderError):
    """Another process is training the run of a folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder for this process alone, created where it is missing; refused where it holds something else."""
    with guarded(folder):
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # not waiting: a run in the same folder may take days, and would be continued by mistake when it ends
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunInUseError(
                f"another run is using {folder}; wait for it to end, or choose another folder"
            ) from None
    try:
        with guarded(folder):
            for left in folder.iterdir():
                if temporary_for(left.name) in FILES:
                    left.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def in_use(folder: Path) -> bool:
    """Whether another process is training the run in a folder."""
    if not (folder / LOCK).exists():
        return False
    lock = FileLock(folder / LOCK)
    with guarded(folder):
        try:
            with lock.acquire(timeout=0):
                return False
        except Timeout:
            return True


def check_folder(folder: Path) -> None:
    """Refuses a folder that holds files and no run of ours."""
    if not folder.exists() or (folder / RUN).exists():
        return
    if not folder.is_dir():
        raise ArgumentError(f"expected a folder for the run, got the file {folder}; choose another path")
    others = sorted(p.name for p in folder.iterdir() if p.name != LOCK and temporary_for(p.name) not in FILES)
    if others:
        raise ArgumentError(
            f"expected an empty or new folder, got {folder} with other files ({', '.join(others[:3])}); nothing was written: "
            "choose another folder"
        )


def begin(folder: Path, identity: Mapping[str, Any], config: TrainingConfig) -> None:
    """Writes what is trained, before anything else."""
    provenance = Provenance.collect(seed=config.seed)
    body = {"format": FORMAT, **identity, "settings": plain(config), "provenance": plain(provenance)}
    with guarded(folder):
        write_atomically(folder / RUN, seal(body))


def read_run(folder: Path) -> dict[str, Any] | None:
    """What run.json says; None where there is no run."""
    return open_seal(folder / RUN, FORMAT, checkpoint.advice(folder)) if (folder / RUN).exists() else None


def check_same(folder: Path, saved: Mapping[str, Any], identity: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses to continue with other settings, other data or another model, and says what differs."""
    differences = [
        f"{_LABELS[part]}{key} was {_short(there, key)}, is {_short(here, key)}"
        for part, here in identity.items()
        for there in [saved[part]]
        for key in dict.fromkeys([*there, *here])
        if key not in there or key not in here or there[key] != here[key]
    ]
    if differences:
        more = f" and {len(differences) - MAX_DIFFERENCES} more" if len(differences) > MAX_DIFFERENCES else ""
        raise ArgumentError(
            f"{folder} holds a run with other settings: {'; '.join(differences[:MAX_DIFFERENCES])}{more}. Continue it with the "
            "settings it started with, or choose another folder"
        )


@contextmanager
def guarded(folder: Path, kept: str = "") -> Iterator[None]:
    """Turns a failed write into an error that says what to do; `kept` says what is not lost."""
    try:
        yield
    except HoldfastError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        todo = "Free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Fix this"
        raise RunFolderError(
            f"cannot write to {folder}: {reason}. {todo} and continue with resume. {kept}".rstrip()
        ) from error


def _short(values: Mapping[str, Any], key: str) -> str:
    text = json.dumps(values[key]) if key in values else "not given"
    return text if len(text) <= 60 else text[:59] + "…"
