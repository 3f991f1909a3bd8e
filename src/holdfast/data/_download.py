"""Files of a data set: where they lie, and how one is downloaded once, never used without its checksum.

One file comes from one address with progress, never more bytes than expected, going on where an earlier try stopped.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import io
import os
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from holdfast.errors import ArgumentError, DamagedResultError, HoldfastError

ENVIRONMENT = "HOLDFAST_DATA"

# a set is there when every one of its files or folders is; a part that can be trained on counts
SETS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    ),
    "cifar10": ("data_batch_1.bin", "test_batch.bin"),
    "wikitext-2": ("wiki.valid.tokens", "wiki.test.tokens"),
    "wikitext-103": ("wiki.valid.tokens", "wiki.test.tokens"),
    "shakespeare": ("input.txt",),
    "movie-reviews": ("rt-polarity.pos", "rt-polarity.neg"),
    "imdb": ("train/pos", "train/neg", "test/pos", "test/neg"),
}
SILENCE_SECONDS = 20.0  # without a byte after which a mirror counts as away
START_SECONDS = 60.0  # before the slowest pace is asked for
MIN_BYTES_PER_SECOND = 10_000  # a telephone line brought 7,000; at 1 per second the smallest set takes days
CHUNK_BYTES = 1 << 16
# URLError and timeouts are OSErrors; an address that a mirror sends us on to may be none at all: ValueError
NETWORK = (OSError, http.client.HTTPException, ValueError)


def data_root() -> Path:
    """The folder named by HOLDFAST_DATA, else holdfast/data in the user's cache folder, which need not exist yet.

    Returns:
        the folder, with one folder inside for each set.

    Raises:
        ArgumentError: HOLDFAST_DATA names no folder.

    Example:
        >>> from unittest import mock
        >>> from holdfast import data
        >>> with mock.patch.dict("os.environ", HOLDFAST_DATA=""):  # as if it were not set
        ...     data.data_root().parts[-2:]
        ('holdfast', 'data')
    """
    named = os.environ.get(ENVIRONMENT)
    if not named:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "data"
    if not os.path.isdir(named):
        raise ArgumentError(f"{ENVIRONMENT} must name a folder, got {named!r}; create it or unset the variable")
    return Path(named)


def find_sets() -> dict[str, bool]:
    """For each known set, whether all of its files are in the data root.

    Returns:
        True or False by the name of the set, such as "mnist". Existence is checked, not the content.

    Raises:
        ArgumentError: HOLDFAST_DATA names no folder.

    Example:
        >>> import tempfile
        >>> from unittest import mock
        >>> from holdfast import data
        >>> with tempfile.TemporaryDirectory() as empty, mock.patch.dict("os.environ", HOLDFAST_DATA=empty):
        ...     any(data.find_sets().values())
        False
    """
    root = data_root()
    return {name: all((root / name / file).exists() for file in files) for name, files in SETS.items()}


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

    # the length as http.client read it: a header that is not a number counts as missing
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
            # checked at each piece and against a total time: a mirror that drips a byte per second never times out by silence
            have += len(received)
            if time.monotonic() - began > limit and have != total:
                raise OSError(
                    f"{have:,} bytes arrived within the limit of {limit:,.0f} seconds for up to {most:,}; "
                    "the next try continues from there"
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
        raise OSError(f"{have:,} of {total:,} bytes arrived; the next try continues from there")


def _open(part: Path, have: int) -> io.FileIO:
    """The file at its end, or emptied where nothing of it is used."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        return io.FileIO(part, "a" if have else "w")
    except OSError as error:
        raise CannotWriteError(f"{part.parent} cannot be written ({error.strerror})") from error


class MissingDataError(HoldfastError, FileNotFoundError):
    """A data set is not on this machine and could not be downloaded; the text names each file and its place."""


@dataclass(frozen=True)
class DataFile:
    """A file of a set: its name, size and SHA-256 of its content once unpacked, and the addresses that offer it.

    The checksum is of the content, since the same content packed by another gzip is another file. The size is known
    beforehand, so that a file which unpacks to gigabytes is not unpacked to find that its checksum is wrong. A name that
    does not end in .gz is content as it is.
    """

    name: str
    sha256: str
    size: int
    mirrors: tuple[str, ...]

    @property
    def most_packed(self) -> int:
        """The bytes that a gzip of the content may have: what does not compress grows by less than this."""
        return self.size + self.size // 100 + 4096 if self.name.endswith(".gz") else self.size


def set_folder(name: str) -> Path:
    """Where the files of a set are or will be: a folder of that name in the data root."""
    return data_root() / name


def read_file(folder: Path, file: DataFile, *, download: bool, needed: Sequence[DataFile]) -> bytes:
    """The unpacked content of `file`, downloaded first where it is missing and `download` says so.

    `needed` are all files of the set: where one cannot be had, the error lists them, so that they are fetched together.
    """
    path = folder / file.name
    if not path.is_file():
        names, source = [f.name for f in needed], needed[0].mirrors[0]
        if not download:
            raise missing(folder, names, source, "and download=False forbids downloading them")

        def check(part: Path) -> str:
            return _fault(_unpacked(part.read_bytes(), file, part.name), file)

        obtain(path, file.mirrors, file.most_packed, check, missing_names=names)
    if path.stat().st_size > file.most_packed:
        raise DamagedResultError(
            f"{path}: expected at most {file.most_packed:,} bytes, got {path.stat().st_size:,}; delete it and run again"
        )
    content = _unpacked(path.read_bytes(), file, str(path))
    if _fault(content, file):
        raise DamagedResultError(f"{path} is damaged (wrong SHA-256 checksum); delete it and run again")
    return content


def _fault(content: bytes, file: DataFile) -> str:
    return "" if hashlib.sha256(content).hexdigest() == file.sha256 else "its file has another SHA-256"


def _unpacked(packed: bytes, file: DataFile, where: str) -> bytes:
    if not file.name.endswith(".gz"):
        return packed
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            content = stream.read(file.size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedResultError(f"{where} is not a complete gzip file ({error}); delete it and run again") from error
    if len(content) > file.size:
        raise DamagedResultError(
            f"{where} unpacks to more than the expected {file.size:,} bytes; delete it and run again"
        )
    return content


def obtain(
    path: Path, mirrors: Sequence[str], most: int, check: Callable[[Path], str], *, missing_names: Sequence[str]
) -> None:
    """Downloads the file `path` from the first mirror whose file passes; `check` says what is wrong with one, or nothing.

    One process at a time: another waits and finds the file. What is wrong is removed; what is only unfinished stays as a
    hidden file beside it, and the next call continues from there.
    """
    part = path.parent / f".{path.name}.part"
    try:
        locks = path.parent.parent / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{path.parent.name}.lock"):
            # another process had the lock and has brought it
            if path.exists():
                return
            reasons = []
            for mirror in mirrors:
                fault = _from_mirror(mirror + path.name, part, most, check)
                if not fault:
                    os.replace(part, path)
                    return
                reasons.append(f"{mirror}: {fault}")
    except (OSError, CannotWriteError) as error:
        why = f"and they cannot be downloaded there ({error})"
        raise missing(path.parent, missing_names, mirrors[0], why) from error
    why = f"and no mirror delivered {path.name} ({'; '.join(reasons)})"
    raise missing(path.parent, missing_names, mirrors[0], why)


def _from_mirror(url: str, part: Path, most: int, check: Callable[[Path], str]) -> str:
    """What is wrong with the file at `url`; nothing where it lies in `part`."""
    try:
        resumed = fetch(url, part, most)
    except NETWORK as error:
        return str(error)
    try:
        fault = check(part)
    except DamagedResultError as error:
        fault = str(error)
    if fault:
        part.unlink()
        # the beginning may have come from another mirror, which packs the same content in other bytes
        return _from_mirror(url, part, most, check) if resumed else fault
    return ""


def missing(folder: Path, names: Sequence[str], source: str, why: str) -> MissingDataError:
    """The error for files of a set that are missing and cannot be downloaded.

    Args:
        folder: where they should be.
        names: all files of the set.
        source: an address that offers them.
        why: the reason, in words that continue from the names.
    """
    absent = [name for name in names if not (folder / name).exists()]
    return MissingDataError(
        f"{folder} lacks {', '.join(absent)}, {why}. Put these files there, for example from {source}, or "
        f"set {ENVIRONMENT} to a folder whose {folder.name}/ has them."
    )
