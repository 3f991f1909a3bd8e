"""The folder that results are kept in: where a unit lies, who works on it, whether what is there can be trusted.

<root>/<experiment>/<unit>/                 one finished unit (holdfast_papers.results)
<root>/<experiment>/conclusion-<preset>/    what was concluded from the units of a preset
<root>/.locks, .scratch, .failures          who works on what; checkpoints of units in work; tracebacks
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from holdfast.errors import ArgumentError, DamagedResultError, HoldfastError
from holdfast_papers._manifest import is_leftover
from holdfast_papers.results import MANIFEST, Result, verify

# these end all work in a store; other errors are those of one folder in it
EVERYWHERE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


class StoreError(HoldfastError, OSError):
    """The results folder cannot be written; the text says why and what to do."""


class FolderError(StoreError):
    """The folder of one unit or conclusion cannot be written; the others can."""


class Store:
    """Results under one folder, shared by any number of processes.

    Args:
        root: the folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if os.fspath(root) == "":
            raise ArgumentError("--store must be the path of a folder, got an empty text")
        self.root = Path(root).absolute()  # tasks travel to processes with other current folders

    def unit(self, experiment: str, identity: str) -> Path:
        """The folder of one unit.

        Args:
            experiment: id of the experiment.
            identity: short name of the unit.
        """
        return self.root / experiment / identity

    def conclusion(self, experiment: str, preset: str) -> Path:
        """The folder of a preset's conclusion.

        Args:
            experiment: id of the experiment.
            preset: the preset.
        """
        return self.root / experiment / f"conclusion-{preset}"

    def scratch(self, folder: Path) -> Path:
        """Where the unit of that `folder` keeps checkpoints while it runs."""
        return self.root / ".scratch" / self._name(folder)

    def failure(self, folder: Path) -> Path:
        """Where the traceback of a failed unit of that `folder` is written."""
        return self.root / ".failures" / f"{self._name(folder)}.txt"

    def prepare(self) -> None:
        """Makes the folder and tries whether it can be written, before hours of work are spent."""
        with self.guarded():
            for name in (".locks", ".scratch", ".failures"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            _trial(self.root)

    def state(self, folder: Path) -> tuple[dict[str, Any] | None, str]:
        """What result.json of a folder says once every byte was checked, and a word on damage where there is any.

        (None, "") where nothing is there; (None, why) where something is there that cannot be trusted.

        Args:
            folder: of a unit or a conclusion.
        """
        try:
            if MANIFEST not in os.listdir(folder):
                return None, f"{folder} is half-written" if os.listdir(folder) else ""
            return verify(folder), ""
        except FileNotFoundError:
            return None, ""
        except DamagedResultError as error:
            return None, str(error)
        except OSError as error:
            return None, f"{folder} cannot be read: {os.strerror(error.errno or 0)}"

    def lock(self, folder: Path) -> FileLock | None:
        """The folder's lock, held until it is released or the process ends; None if another process holds it."""
        lock = FileLock(self.root / ".locks" / f"{self._name(folder)}.lock")
        with self.guarded():
            try:
                lock.acquire(timeout=0)
            except Timeout:
                return None
        return lock

    def try_folder(self, folder: Path) -> None:
        """Tries whether a result can be written into `folder`, before the work for it is done."""
        with self._guarded_folder(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _trial(folder)
            if (folder / MANIFEST).is_dir():
                raise IsADirectoryError(errno.EISDIR, "a folder instead of a file", str(folder / MANIFEST))

    def save(self, folder: Path, result: Result) -> None:
        """Writes a result; leftovers of a killed writer, and the unit's checkpoints and traceback, are removed.

        Args:
            folder: of the unit or conclusion.
            result: what is written.
        """
        with self._guarded_folder(folder):
            if folder.is_dir():
                for left in folder.iterdir():
                    if is_leftover(left.name):
                        left.unlink(missing_ok=True)
            result.save(folder)
        with self.guarded():
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

    @contextmanager
    def _guarded_folder(self, folder: Path) -> Iterator[None]:
        """Tells what is wrong with one folder from what is wrong with the whole store."""
        try:
            with self.guarded():
                yield
        except StoreError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno in EVERYWHERE:
                raise
            raise FolderError(f"cannot write results to {folder}: {_reason(cause)}") from cause

    def _name(self, folder: Path) -> str:
        return "-".join(folder.relative_to(self.root).parts)


def _trial(folder: Path) -> None:
    # a file without a name: a kill leaves nothing behind
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x" * 4096)


def _reason(error: OSError) -> str:
    text = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"{text}: {error.filename}. Move it away and run the same command again."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}. Free some space and run the same command again: what was finished is kept."
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{text}. Make the folder writable, or choose another with --store."
    return f"{text}. What was finished is kept; run the same command again when this is fixed."
