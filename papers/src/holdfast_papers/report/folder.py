"""The folder of a page: which of its files are ours, and one writer at a time.

`holdfast-page.json` lists every file that was written. A file that is not on the list is neither removed nor written over,
and a folder that holds other files and no list is refused.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from holdfast._files import read_regular, temporary_for, write_atomically
from holdfast.errors import ArgumentError, DamagedResultError

INDEX = "index.html"
LIST = "holdfast-page.json"
FORMAT = "holdfast page 1"
MAX_BYTES = 64 << 20  # bytes of the list, or of an index.html
_LOCK = ".holdfast-page.lock"
_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_FILE = re.compile(rf"index\.html|assets/[a-z.]+|data/{_ID}\.js|raw/{_ID}/{_ID}")
_MARKS = (b'<meta name="fingerprint"', b"<title>holdfast: results</title>")


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """The folder for this process alone; refused if it belongs to another process, before anything is written into it."""
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / _LOCK):
        check_folder(out)
        yield


def check_folder(out: Path) -> None:
    """Refuses a folder that holds files and no page of ours.

    Args:
        out: the folder that a page is to be written into.
    """
    if written(out) is not None or not out.is_dir():
        return
    others = sorted(p.name for p in out.iterdir() if p.name != _LOCK and temporary_for(p.name) != LIST)
    if others:
        shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        raise ArgumentError(
            f"expected an empty or new folder, got {out.absolute()} with other files ({shown}); nothing was written: name "
            "another folder with --out, or move these files away"
        )


def written(out: Path) -> set[str] | None:
    """The files that were written into the folder, by their paths in it; None where it holds no page of ours."""
    described = description(out)
    if described is not None:
        return {name for name in described["files"] if isinstance(name, str) and _FILE.fullmatch(name)}
    return _written_without_list(out)


def description(out: Path) -> dict[str, Any] | None:
    """What the list says: `files`, and `damage`, the lines about conclusions that could not be shown."""
    try:
        body = json.loads(read_regular(out / LIST, MAX_BYTES))
        whole = body["format"] == FORMAT and all(isinstance(body[key], list) for key in ("files", "damage"))
    except (DamagedResultError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return body if whole else None


def replace_files(out: Path, files: Mapping[str, bytes], damage: Sequence[str]) -> None:
    """Makes the folder's page consist of `files`; index.html last, so that a page is never newer than its parts."""
    before = written(out) or set()
    for name in files:
        _refuse_others(out, name, files[name], before)
    _write_list(out, before | files.keys(), damage)  # first: a killed writer leaves nothing that is not on it
    for name in sorted(files, key=lambda name: name == INDEX):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        _write_if_new(out / name, files[name])
    for name in before - files.keys():
        _remove(out, name)
    _write_list(out, files.keys(), damage)


def _refuse_others(out: Path, name: str, content: bytes, ours: set[str]) -> None:
    assert _FILE.fullmatch(name), name
    path = out / name
    if not _within(out, path):
        raise ArgumentError(f"{path.parent} is a link to another folder; remove it, or name another folder with --out")
    if name not in ours and path.exists() and not (path.is_file() and path.read_bytes() == content):
        raise ArgumentError(f"{path} is not a file of the page; move it away, or name another folder with --out")


def _within(out: Path, path: Path) -> bool:
    return path.parent.resolve() == out.resolve() / path.parent.relative_to(out)


def _remove(out: Path, name: str) -> None:
    path = out / name
    if not _within(out, path):
        return
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # other files are in it
        if path.parent != out:
            path.parent.rmdir()


def _write_list(out: Path, names: set[str] | Any, damage: Sequence[str]) -> None:
    body = {"format": FORMAT, "files": sorted(names), "damage": [*damage]}
    _write_if_new(out / LIST, (json.dumps(body, indent=1) + "\n").encode())


def _written_without_list(out: Path) -> set[str] | None:
    """The files that a page of an earlier version names itself."""
    try:
        text = read_regular(out / INDEX, MAX_BYTES)
    except DamagedResultError:
        return None
    if not all(mark in text[:2000] for mark in _MARKS):
        return None
    raw = set(re.findall(rf'href="(raw/{_ID}/{_ID})"', text.decode(errors="replace")))
    data = {f"data/{name.split('/')[1]}.js" for name in raw}
    return {INDEX, "assets/page.js", "assets/page.css", "assets/plotly.min.js"} | raw | data


def _write_if_new(path: Path, content: bytes) -> None:
    """Spares the disk where nothing changed: flushing thirty files takes longer than comparing them."""
    if not path.is_file() or path.read_bytes() != content:
        write_atomically(path, content)
