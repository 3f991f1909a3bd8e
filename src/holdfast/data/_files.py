"""Files of a set: the user's own, read whole and cut into splits, or one archive, downloaded, checked and unpacked by name."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Shaped
from torch import Tensor

from holdfast.data._base import Split
from holdfast.data._download import MissingDataError, missing, obtain
from holdfast.errors import ArgumentError, DamagedResultError

_UNPACKING = ".holdfast-unpacking"
_CHUNK_BYTES = 1 << 20


def read_text(path: Path) -> tuple[bytes, str]:
    """The content of a text file and its SHA-256; refuses what is empty, or no regular file."""
    try:
        # without O_NONBLOCK a named pipe would hold the process until it has a writer
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ArgumentError(f"expected a regular file, got {path}; choose another")
            content = file.read()
    except OSError as error:
        raise DamagedResultError(f"{path} cannot be read ({error.strerror}); choose another file") from error
    if not content:
        raise DamagedResultError(f"{path} is empty; put the text there")
    return content, hashlib.sha256(content).hexdigest()


def cut(steps: Shaped[Tensor, "steps ..."], valid: float, test: float) -> dict[Split, Tensor]:
    """The start of a text or series for training, then `valid` and `test` as shares of it; 0 leaves a split out."""
    if not (0 <= valid < 1 and 0 <= test < 1 and valid + test < 1):
        raise ArgumentError(
            f"valid and test must be shares of the data, each >= 0 and together below 1; got {valid=}, {test=}"
        )
    last = len(steps) - round(test * len(steps))
    middle = last - round(valid * len(steps))
    parts: dict[Split, Tensor] = {"train": steps[:middle], "valid": steps[middle:last], "test": steps[last:]}
    asked = {"train": True, "valid": valid > 0, "test": test > 0}
    return {split: part for split, part in parts.items() if asked[split]}


@dataclass(frozen=True)
class Archive:
    """An archive that holds the files of a set.

    Args:
        name: of the archive, .zip or .tar.gz.
        sha256: of the archive.
        most: bytes that the archive has at most.
        unpacked: bytes that its files have at most.
        mirrors: addresses that offer it, each ending in /.
        top: the folder within it that holds the files.
        wanted: a pattern of the files below `top` that are unpacked; all others are left out.
    """

    name: str
    sha256: str
    most: int
    unpacked: int
    mirrors: tuple[str, ...]
    top: str
    wanted: str


def find_files(folder: Path, names: Sequence[str], archive: Archive, *, download: bool, part: bool) -> Path:
    """The folder that has the files `names`: `folder` itself, or the archive's own folder within it.

    Where some are missing and `part` is true, the others must do; where all are missing, or `part` is false, the
    archive is unpacked, from `folder` or downloaded.
    """
    # a user may have unpacked it by hand, which keeps the archive's own folder
    for place in (folder, folder / archive.top):
        there = [name for name in names if (place / name).exists()]
        if len(there) == len(names) or (there and part):
            return place
    given = (folder / archive.name).is_file()
    if not given:
        if not download:
            why = f"and download=False forbids downloading {archive.name}, which has them"
            raise missing(folder, names, archive.mirrors[0] + archive.name, why)
        obtain(folder / archive.name, archive.mirrors, archive.most, lambda p: _fault(p, archive), missing_names=names)
    fault = _fault(folder / archive.name, archive)
    if fault:
        raise DamagedResultError(f"{folder / archive.name}: {fault}; delete it and run again")
    # only what has the SHA-256 that is known is ever unpacked
    unpack(folder / archive.name, archive)
    absent = [name for name in names if not (folder / name).exists()]
    if absent:
        raise DamagedResultError(f"{folder / archive.name} lacks {', '.join(absent)}; delete it and run again")
    if not given:
        (folder / archive.name).unlink()
    return folder


def _fault(path: Path, archive: Archive) -> str:
    if path.stat().st_size > archive.most:
        return f"the file has {path.stat().st_size:,} bytes, expected at most {archive.most:,}"
    return "" if checksum(path) == archive.sha256 else "its file has another SHA-256"


def checksum(path: Path) -> str:
    """SHA-256 of a file, read piece by piece."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(path: Path, archive: Archive) -> None:
    """Writes the wanted files into the archive's folder; they appear there together, once all of them are written."""
    # beside its place, on the same file system: files then appear there by a rename
    work = path.parent / _UNPACKING
    shutil.rmtree(work, ignore_errors=True)
    try:
        # a small archive may unpack to more than the disk has
        left = archive.unpacked
        for name, read in _members(path, archive):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            left -= _copy(read, work / name, left)
        for entry in sorted(work.iterdir()) if work.is_dir() else []:
            if not (path.parent / entry.name).exists():
                os.replace(entry, path.parent / entry.name)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise DamagedResultError(f"{path} is not a complete archive ({error}); delete it and run again") from error
    except DamagedResultError:
        raise
    except OSError as error:
        raise MissingDataError(f"{path} cannot be unpacked: {error}; free disk space and run again") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _members(path: Path, archive: Archive) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    wanted = re.compile(f"{re.escape(archive.top)}/({archive.wanted})")
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive_file:
            for name in archive_file.namelist():
                if match := wanted.fullmatch(name):
                    with archive_file.open(name) as member:
                        yield match.group(1), member.read
        return
    # as a stream: the index of a tar file is the whole of it
    with tarfile.open(path, "r|gz") as tar:
        for entry in tar:
            match = wanted.fullmatch(entry.name.removeprefix("./"))
            stream = tar.extractfile(entry) if match and entry.isfile() else None
            if match and stream:
                yield match.group(1), stream.read


def _copy(read: Callable[[int], bytes], to: Path, most: int) -> int:
    """Copies at most `most` bytes and says how many there were."""
    copied = 0
    with open(to, "wb") as file:
        while piece := read(_CHUNK_BYTES):
            copied += len(piece)
            if copied > most:
                raise DamagedResultError(
                    f"{to.name} unpacks to more than the expected {most:,} bytes; delete the archive and run again"
                )
            file.write(piece)
    return copied
