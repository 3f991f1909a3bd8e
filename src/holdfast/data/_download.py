"""Files of a data set: read from the data root, or downloaded once, and never used without their checksum."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from holdfast.data._fetch import NETWORK, CannotWriteError, fetch
from holdfast.data._root import ENVIRONMENT, data_root
from holdfast.errors import DamagedResultError, HoldfastError


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
            raise missing(folder, names, source, "and download=False does not allow to fetch them")

        def check(part: Path) -> str:
            return _fault(_unpacked(part.read_bytes(), file, part.name), file)

        obtain(path, file.mirrors, file.most_packed, check, missing_names=names)
    if path.stat().st_size > file.most_packed:
        raise DamagedResultError(f"{path} is larger than its content could be; delete it and run again")
    content = _unpacked(path.read_bytes(), file, str(path))
    if _fault(content, file):
        raise DamagedResultError(f"{path} does not hold what it should (wrong SHA-256); delete it and run again")
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
        raise DamagedResultError(f"{where} is not a whole gzip file ({error}); delete it and run again") from error
    if len(content) > file.size:
        raise DamagedResultError(
            f"{where} unpacks to more than the {file.size:,} bytes it should; delete it and run again"
        )
    return content


def obtain(
    path: Path, mirrors: Sequence[str], most: int, check: Callable[[Path], str], *, missing_names: Sequence[str]
) -> None:
    """Downloads the file `path` from the first mirror whose file passes; `check` says what is wrong with one, or nothing.

    One process at a time: another waits and finds the file. What is wrong is removed; what is only unfinished stays as a
    hidden file beside it, and the next call goes on from there.
    """
    part = path.parent / f".{path.name}.part"
    try:
        locks = path.parent.parent / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{path.parent.name}.lock"):
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
        why = f"and it cannot be written ({error}), or {ENVIRONMENT} must name a folder that can"
        raise missing(path.parent, missing_names, mirrors[0], why) from error
    why = f"and with download=True no mirror gave {path.name} ({'; '.join(reasons)})"
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
    """The error for files of a set that are not there and cannot be had.

    Args:
        folder: where they should be.
        names: all files of the set.
        source: an address that offers them.
        why: the reason, in words that go on from the names.
    """
    absent = [name for name in names if not (folder / name).exists()]
    return MissingDataError(
        f"{folder} lacks {', '.join(absent)}, {why}. Put these files there, for example from {source}, or "
        f"set {ENVIRONMENT} to a folder whose {folder.name}/ has them."
    )
