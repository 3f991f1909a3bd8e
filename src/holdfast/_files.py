"""Files that are whole or absent, reading that trusts neither a file's kind nor its size, manifests under a checksum."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import DamagedResultError

_TEMPORARY = re.compile(r"\.(.+)\.\d+-[0-9a-f]{8}\.tmp")
MAX_BYTES = 64 << 20  # of a manifest; those of the papers' experiments have up to 50,000
# a manifest is valid JSON whose first member is the checksum of all bytes after it
_HEAD = b'{"sha256": "'
_NECK = b'",\n'


def write_atomically(path: Path, content: bytes) -> None:
    """Puts a file in place so that a reader sees the old one or the new one, also after a crash.

    Args:
        path: where it goes.
        content: its bytes.
    """
    # not tempfile: its files are readable by their owner only
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
            raise DamagedResultError(damage(path, f"it is {_kind(about.st_mode)} instead of a file", advice))
        if about.st_size > most:
            what = f"it has {about.st_size:,} bytes, expected at most {most:,}"
            raise DamagedResultError(damage(path, what, advice))
        with open(handle, "rb", closefd=False) as file:
            return file.read(most + 1)
    finally:
        os.close(handle)


def damage(path: Path, what: str, advice: str = "") -> str:
    """The text of the error for a saved file that cannot be trusted; `advice` is a sentence on what to do."""
    return f"{path} is damaged or half-written: {what}" + (f". {advice}" if advice else "")


def _why(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
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


def seal(body: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest: JSON whose first member is the checksum of the rest."""
    rest = json.dumps(body, indent=1, allow_nan=False).encode()[1:].lstrip()
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + _NECK + rest + b"\n"


def open_seal(path: Path, format: str, advice: str = "", most: int = MAX_BYTES) -> dict[str, Any]:
    """What a file of at most `most` bytes written by `seal` says, checksum and format checked; `advice` is for errors."""
    raw = read_regular(path, most, advice)
    if not raw.startswith(_HEAD):
        raise DamagedResultError(damage(path, "it does not begin with the header of a holdfast file", advice))
    start = len(_HEAD) + 64 + len(_NECK)
    rest = raw[start:-1]
    expected = _HEAD + hashlib.sha256(rest).hexdigest().encode() + _NECK
    if raw[:start] != expected or raw[-1:] != b"\n":
        raise DamagedResultError(damage(path, "its checksum does not match its contents", advice))
    try:
        body: dict[str, Any] = json.loads(b"{" + rest)
    except (ValueError, RecursionError) as error:
        raise DamagedResultError(damage(path, f"it is not valid JSON ({error})", advice)) from None
    if body.get("format") != format:
        raise DamagedResultError(
            f"{path}: expected format {format!r}, got {body.get('format')!r}; read it with the version of holdfast "
            "that wrote it"
        )
    return body


def verified(folder: Path, entry: Mapping[str, Any], manifest: str, advice: str = "") -> bytes:
    """The content of one of the files that a manifest lists, if it is what was written."""
    path = folder / entry["file"]
    content = read_regular(path, entry["bytes"], advice)
    if len(content) != entry["bytes"]:
        what = f"it has {len(content):,} bytes, expected {entry['bytes']:,}"
        raise DamagedResultError(damage(path, what, advice))
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise DamagedResultError(damage(path, f"its checksum differs from the one recorded in {manifest}", advice))
    return content
