"""Files of a data set: read from the data root, or downloaded once, and never used without their checksum."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast._files import write_atomically
from holdfast.data.root import ENVIRONMENT, data_root
from holdfast.errors import DamagedResultError, HoldfastError

_TIMEOUT = 20.0  # seconds without a byte after which a mirror counts as away
_CHUNK = 1 << 16


class MissingDataError(HoldfastError, FileNotFoundError):
    """A data set is not on this machine and could not be downloaded; the text names each file and its place."""


@dataclass(frozen=True)
class DataFile:
    """A gzipped file of a set: its name, size and SHA-256 of its content once unpacked, and the addresses that offer it.

    The checksum is of the content, since the same content packed by another gzip is another file. The size is known
    beforehand, so that a file which unpacks to gigabytes is not unpacked to find that its checksum is wrong.
    """

    name: str
    sha256: str
    size: int
    mirrors: tuple[str, ...]

    @property
    def most_packed(self) -> int:
        """The bytes that a gzip of the content may have: what does not compress grows by less than this."""
        return self.size + self.size // 100 + 4096


def set_folder(name: str) -> Path:
    """Where the files of a set are or will be: a folder of that name in the data root."""
    return data_root() / name


def read_file(folder: Path, file: DataFile, *, download: bool, needed: Sequence[DataFile]) -> bytes:
    """The unpacked content of `file`, downloaded first where it is missing and `download` says so.

    `needed` are all files of the set: where one cannot be had, the error lists them, so that they are fetched together.
    """
    path = folder / file.name
    if not path.is_file():
        if not download:
            raise _missing(folder, needed, "and download=False does not allow to fetch them")
        _download(folder, file, needed)
    if path.stat().st_size > file.most_packed:
        raise DamagedResultError(f"{path} is larger than its content could be; delete it and run again")
    content = _unpacked(path.read_bytes(), file, str(path))
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise DamagedResultError(f"{path} does not hold what it should (wrong SHA-256); delete it and run again")
    return content


def _unpacked(packed: bytes, file: DataFile, where: str) -> bytes:
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


def _download(folder: Path, file: DataFile, needed: Sequence[DataFile]) -> None:
    """Writes the file once its content was checked; a broken or wrong download leaves nothing behind."""
    reasons = []
    for mirror in file.mirrors:
        try:
            packed = _fetch(mirror + file.name, file)
            content = _unpacked(packed, file, mirror + file.name)
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reasons.append(f"{mirror}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() != file.sha256:
            reasons.append(f"{mirror}: its file has another SHA-256")
            continue
        _store(folder / file.name, packed)
        return
    raise _missing(folder, needed, f"and with download=True no mirror gave {file.name} ({'; '.join(reasons)})")


def _store(path: Path, packed: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, packed)
    except OSError as error:
        raise MissingDataError(
            f"{path.name} was downloaded but {path.parent} cannot be written ({error.strerror}); set {ENVIRONMENT} to a "
            "folder that can"
        ) from error


def _fetch(url: str, file: DataFile) -> bytes:
    """The bytes at `url`, with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    with (
        urllib.request.urlopen(url, timeout=_TIMEOUT) as answer,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        size = answer.headers.get("Content-Length")
        task = progress.add_task(f"downloading {file.name}", total=float(size) if size else None)
        packed = bytearray()
        while part := answer.read(_CHUNK):
            packed += part
            if len(packed) > file.most_packed:
                raise OSError(f"it sends more than the {file.most_packed:,} bytes that the file could have")
            progress.update(task, advance=len(part))
    if size and len(packed) != int(size):
        raise OSError(f"{len(packed)} of {size} bytes arrived")
    return bytes(packed)


def _missing(folder: Path, needed: Sequence[DataFile], why: str) -> MissingDataError:
    absent = [file.name for file in needed if not (folder / file.name).is_file()]
    return MissingDataError(
        f"{folder} lacks {', '.join(absent)}, {why}. Put these files there, for example from {needed[0].mirrors[0]}, or "
        f"set {ENVIRONMENT} to a folder whose {folder.name}/ has them."
    )
