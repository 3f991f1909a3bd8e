"""One file from one address: with progress, never more bytes than expected, going on where an earlier try stopped."""

from __future__ import annotations

import errno
import http.client
import io
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from holdfast.errors import HoldfastError

SILENCE_SECONDS = 20.0  # without a byte after which a mirror counts as away
START_SECONDS = 60.0  # before the slowest pace is asked for
MIN_BYTES_PER_SECOND = 10_000  # a telephone line brought 7,000; at 1 a second the smallest set takes days
CHUNK_BYTES = 1 << 16
# URLError and timeouts are OSErrors; an address that a mirror sends us on to may be none at all: ValueError
NETWORK = (OSError, http.client.HTTPException, ValueError)


class CannotWriteError(HoldfastError):
    """What arrives cannot be written; no other mirror would help."""


def fetch(url: str, part: Path, most: int) -> bool:
    """Brings the file `part` to all bytes at `url`; whether some were there already.

    What arrived stays in `part` where the connection breaks or is too slow for `most` bytes, and the next call asks for the
    rest. More than `most` bytes are refused, and `part` is then removed.
    """
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "holdfast"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SILENCE_SECONDS)
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

    # the length as http.client read it: a header that is no number is none
    total = None if answer.length is None else have + answer.length
    limit = START_SECONDS + (most - have) / MIN_BYTES_PER_SECOND
    began = time.monotonic()
    with (
        _open(part, have) as file,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        bar = progress.add_task(
            f"downloading {part.name.strip('.').removesuffix('.part')}", total=total, completed=have
        )
        # read1: read would wait for a whole chunk, however slowly its bytes arrive
        while received := answer.read1(CHUNK_BYTES):
            have += len(received)
            if time.monotonic() - began > limit and have != total:
                raise OSError(
                    f"{have:,} bytes arrived within the limit of {limit:,.0f} seconds for up to {most:,}; "
                    "the next try goes on from there"
                )
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
