"""Named arrays as the bytes of an .npz file, and back: nothing is unpickled, and sizes in headers are not trusted."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from holdfast._files import damage
from holdfast.errors import ArgumentError, DamagedResultError

MAX_BYTES = 2 << 30  # of all arrays of a result, unpacked; a thousand times what the papers' experiments keep
MAX_HEADER = 10_000  # characters; numpy's own limit for a header that it parses
MAX_NAME = 200
KINDS = "biufcmMSU"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuses what cannot be saved and read back under its own name."""
    if not isinstance(arrays, Mapping):
        raise ArgumentError(f"arrays come as a dict of name and array, got {type(arrays).__name__}")
    for name, array in arrays.items():
        _check_name(name)
        dtype = np.asarray(array).dtype
        if dtype.hasobject:
            raise ArgumentError(f"array {name!r} holds Python objects; only numbers, booleans and text are saved")
        if dtype.kind not in KINDS or dtype.itemsize == 0:
            raise ArgumentError(f"array {name!r} has dtype {dtype}; only numbers, booleans and text are saved")


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of an .npz; equal arrays give equal bytes, since no times are stamped."""
    size = sum(np.asarray(array).nbytes for array in arrays.values())
    if size > MAX_BYTES:
        raise ArgumentError(f"a result holds at most {MAX_BYTES:,} bytes of arrays, got {size:,}; keep fewer numbers")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def unpack_arrays(content: bytes, path: Path, advice: str = "") -> dict[str, np.ndarray]:
    """The arrays of an .npz read from `path`; sizes are checked before anything is unpacked. `advice` is for errors."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        size = sum(member.file_size for member in members)
        if size > MAX_BYTES:
            what = f"it unpacks to {size} bytes instead of at most {MAX_BYTES}"
            raise DamagedResultError(damage(path, what, advice))
        return {member.filename.removesuffix(".npy"): _member(archive, member, path, advice) for member in members}


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path, advice: str) -> np.ndarray:
    with archive.open(member) as file:
        raw = io.BytesIO(file.read(member.file_size))  # with a number: without one, what comes is unpacked to its end
    read_header = _HEADERS.get(np.lib.format.read_magic(raw))
    if read_header is None:
        raise DamagedResultError(damage(path, f"{member.filename} has an unknown header", advice))
    shape, _, dtype = read_header(raw, max_header_size=MAX_HEADER)
    there = member.file_size - raw.tell()
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != there:
        what = f"{member.filename} says {shape} of {dtype} and holds {there} bytes"
        raise DamagedResultError(damage(path, what, advice))
    raw.seek(0)
    return np.lib.format.read_array(raw, allow_pickle=False, max_header_size=MAX_HEADER)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME or "\\" in name:
        raise ArgumentError(
            f"an array's name is text of 1 to {MAX_NAME} printable characters without '\\', got {name!r}"
        )
