"""One file from one address: with progress, never more bytes than expected, going on where an earlier try stopped."""

from __future__ import annotations

import errno
import http.client
import io
import os
import urllib.error
import urllib.request
from pathlib import Path

from holdfast.errors import HoldfastError

_TIMEOUT = 20.0  # seconds without a byte after which a mirror counts as away
_CHUNK = 1 << 16
NETWORK = (OSError, http.client.HTTPException)  # URLError and timeouts are OSErrors


class CannotWriteError(HoldfastError):
    """What arrives cannot be written; no other mirror would help."""


def fetch(url: str, part: Path, most: int) -> bool:
    """Brings the file `part` to all bytes at `url`; whether some were there already.

    What arrived stays in `part` where the connection breaks, and the next call asks for the rest. More than `most` bytes are
    refused, and `part` is then removed.
    """
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "holdfast"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:
            raise
        part.unlink()  # it has more bytes than the file, so it is none of its beginnings
        return fetch(url, part, most)
    with answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
        _receive(answer, part, have, most)
    return have > 0


def _receive(answer: http.client.HTTPResponse, part: Path, have: int, most: int) -> None:
    from rich.console import Console
    from rich.progress import Progress

    length = answer.headers.get("Content-Length")
    total = have + int(length) if length else None
    with (
        _open(part, have) as file,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        bar = progress.add_task(
            f"downloading {part.name.strip('.').removesuffix('.part')}", total=total, completed=have
        )
        while received := answer.read(_CHUNK):
            have += len(received)
            if have > most:
                part.unlink()
                raise OSError(f"it sends more than the {most:,} bytes that the file could have")
            try:
                if file.write(received) != len(received):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                raise CannotWriteError(f"{part.parent} cannot be written ({error.strerror})") from error
            progress.update(bar, advance=len(received))
    if total is not None and have != total:
        raise OSError(f"{have:,} of {total:,} bytes arrived; the next try goes on from there")


def _open(part: Path, have: int) -> io.FileIO:
    """The file at its end, or emptied where nothing of it is used."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        return io.FileIO(part, "a" if have else "w")
    except OSError as error:
        raise CannotWriteError(f"{part.parent} cannot be written ({error.strerror})") from error
