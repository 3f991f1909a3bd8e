"""Files that are whole or absent, and reading that trusts neither a file's kind nor its size."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from pathlib import Path

from holdfast.errors import DamagedResultError

_TEMPORARY = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}\.tmp")


def write_atomically(path: Path, content: bytes) -> None:
    """Puts a file in place so that a reader sees the old one or the new one, also after a crash.

    Args:
        path: where it goes.
        content: its bytes.
    """
    # not tempfile: its files can be read by nobody but their owner
    name = path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        with open(name, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
        raise
    _sync_folder(path.parent)


def temporary_for(name: str) -> str | None:
    """The file that a killed `write_atomically` meant to write when it left a file called `name`; None for others."""
    match = _TEMPORARY.fullmatch(name)
    return match.group(1) if match else None


def read_regular(path: Path, most: int, advice: str = "") -> bytes:
    """The content of a regular file of at most `most` bytes; a link is not followed, a pipe not waited for."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise DamagedResultError(damage(path, _why(path, error), advice)) from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise DamagedResultError(damage(path, f"it is {_kind(about.st_mode)} in place of a file", advice))
        if about.st_size > most:
            raise DamagedResultError(damage(path, f"it has {about.st_size} bytes instead of at most {most}", advice))
        with open(handle, "rb", closefd=False) as file:
            return file.read(most + 1)
    finally:
        os.close(handle)


def damage(path: Path, what: str, advice: str = "") -> str:
    """The text of the error for a saved file that cannot be trusted; `advice` is a sentence on what to do."""
    return f"{path} is damaged or half-written: {what}" + (f". {advice}" if advice else "")


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file is not there"
    # not Path.is_symlink, which raises where the folder may not be entered
    return "it is a symbolic link, which is not followed" if os.path.islink(path) else os.strerror(error.errno or 0)


def _kind(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # only POSIX lets a folder be opened and flushed
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
