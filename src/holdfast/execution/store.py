"""The folder that results are kept in: where a unit lies, who works on it, whether what is there can be trusted.

<root>/<experiment>/<unit>/                 one finished unit (holdfast.results)
<root>/<experiment>/conclusion-<preset>/    what was concluded from the units of a preset
<root>/.locks, .scratch, .failures          who works on what; checkpoints of units in work; tracebacks
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from holdfast.errors import DamagedResultError, HoldfastError
from holdfast.results import MANIFEST, Result, verify


class StoreError(HoldfastError, OSError):
    """The results folder cannot be written; the text says why and what to do."""


class Store:
    """Results under one folder, shared by any number of processes."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()  # tasks travel to processes with other current folders

    def unit(self, experiment: str, identity: str) -> Path:
        """The folder of one unit."""
        return self.root / experiment / identity

    def conclusion(self, experiment: str, preset: str) -> Path:
        """The folder of a preset's conclusion."""
        return self.root / experiment / f"conclusion-{preset}"

    def scratch(self, folder: Path) -> Path:
        """Where the unit of that folder keeps checkpoints while it runs."""
        return self.root / ".scratch" / self._name(folder)

    def failure(self, folder: Path) -> Path:
        """Where the traceback of a failed unit is written."""
        return self.root / ".failures" / f"{self._name(folder)}.txt"

    def prepare(self) -> None:
        """Makes the folder and tries whether it can be written, before hours of work are spent."""
        with self.guarded():
            for name in (".locks", ".scratch", ".failures"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            trial = self.root / f".trial-{os.getpid()}"
            trial.write_bytes(b"x" * 4096)
            trial.unlink()

    def state(self, folder: Path) -> tuple[dict[str, Any] | None, str]:
        """What result.json says once every byte was checked, and a word on damage where there is any.

        (None, "") where nothing is there; (None, why) where something is there that cannot be trusted.
        """
        if not (folder / MANIFEST).exists():
            half = folder.is_dir() and any(folder.iterdir())
            return None, f"{folder} is half-written" if half else ""
        try:
            return verify(folder), ""
        except (DamagedResultError, OSError, KeyError, ValueError, TypeError) as error:
            return None, str(error)

    def lock(self, folder: Path) -> FileLock | None:
        """The folder's lock, held until it is released or the process ends; None where somebody else holds it."""
        lock = FileLock(self.root / ".locks" / f"{self._name(folder)}.lock")
        with self.guarded():
            try:
                lock.acquire(timeout=0)
            except Timeout:
                return None
        return lock

    def save(self, folder: Path, result: Result) -> None:
        """Writes a result; leftovers of a killed writer, and the unit's checkpoints and traceback, are removed."""
        with self.guarded():
            if folder.is_dir():
                for left in folder.glob(".*.tmp"):
                    left.unlink(missing_ok=True)
            result.save(folder)
            shutil.rmtree(self.scratch(folder), ignore_errors=True)
            self.failure(folder).unlink(missing_ok=True)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turns a failed write into a StoreError that says what to do."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"cannot write results to {self.root}: {_reason(error)}") from error

    def _name(self, folder: Path) -> str:
        return "-".join(folder.relative_to(self.root).parts)


def _reason(error: OSError) -> str:
    text = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}. Free some space and run the same command again: what was finished is kept."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{text}. Make the folder writable, or choose another with --store."
    return f"{text}. What was finished is kept; run the same command again when this is mended."
