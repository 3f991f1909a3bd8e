"""Values as JSON, and named arrays as the bytes of an .npz file.

`plain` and `restored` keep numbers, text, lists and dicts. `encode` and `decode` also keep arrays and dataclasses: a
file may build only the classes that its reader names. Nothing is unpickled, and sizes in headers are not trusted.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from holdfast._files import damage
from holdfast.errors import ArgumentError, DamagedResultError

Arrays = dict[str, np.ndarray]
MAX_BYTES = 2 << 30  # of all arrays of a result, unpacked; a thousand times what the papers' experiments keep
MAX_HEADER = 10_000  # characters; numpy's own limit for a header that it parses
MAX_NAME = 200
KINDS = "biufcmMSU"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def plain(value: Any, *, exact: bool = True) -> Any:
    """JSON's own types: mappings and dataclasses as objects, sequences and arrays as lists, complex numbers as pairs.

    Args:
        value: numbers, text, paths, arrays, tensors, and lists, tuples, mappings and dataclasses of these.
        exact: write infinity and NaN, for which JSON has no word, as {"float": "inf"}, so that `restored` gives them
            back; otherwise as None, for people and programs that read the JSON.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item, exact=exact) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), exact=exact) for f in fields(value) if f.init}
    if isinstance(value, (list, tuple)):
        return [plain(item, exact=exact) for item in value]
    if isinstance(value, (complex, np.complexfloating)):
        return plain([float(value.real), float(value.imag)], exact=exact)
    if isinstance(value, np.floating):  # tolist leaves a long double as it is
        value = float(value)
    if isinstance(value, (np.ndarray, np.generic, Tensor)):
        return plain(value.tolist(), exact=exact)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)} if exact else None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    raise ArgumentError(
        f"expected numbers, text, or lists and dicts of these, got {type(value).__name__} {str(value)[:80]!r}"
    )


def restored(value: Any) -> Any:
    """What `plain` was given, of what JSON returns: mappings, lists and numbers, infinity and NaN among them.

    Args:
        value: what it gave with `exact`.
    """
    if isinstance(value, dict):
        if set(value) == {"float"} and isinstance(value["float"], str):
            return float(value["float"])
        return {key: restored(item) for key, item in value.items()}
    return [restored(item) for item in value] if isinstance(value, list) else value


def encode(value: Any, arrays: Arrays, name: str = "value") -> Any:
    """JSON's own types. What JSON has no word for becomes an object with one key that says what it is.

    Args:
        value: numbers, text, arrays, lists, tuples, mappings with text as keys, paths, and dataclasses of these.
        arrays: gets every array, under the path of fields that leads to it.
        name: that path so far.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, complex):
        return {"complex": [encode(value.real, arrays), encode(value.imag, arrays)]}
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Path):
        return {"path": str(value)}
    return _encode_several(value, arrays, name)


def _encode_several(value: Any, arrays: Arrays, name: str) -> Any:
    if isinstance(value, (list, tuple)):
        items = [encode(item, arrays, f"{name}.{k}") for k, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"map": {key: encode(item, arrays, f"{name}.{key}") for key, item in value.items()}}
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        return {type(value).__name__: {key: encode(item, arrays, f"{name}.{key}") for key, item in own.items()}}
    raise ArgumentError(
        f"{name} must be something that can be saved (numbers, text, arrays, lists and dicts of them), got "
        f"{type(value).__name__}"
    )


def decode(encoded: Any, arrays: Mapping[str, np.ndarray], kinds: Mapping[str, type]) -> Any:
    """The value that `encode` was given.

    Args:
        encoded: what it gave.
        arrays: the arrays that it filled.
        kinds: the dataclasses that may be built, by name.
    """
    if isinstance(encoded, list):
        return [decode(item, arrays, kinds) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    ((kind, inside),) = encoded.items()
    if kind == "float":
        return float(inside)
    if kind == "complex":
        return complex(*(decode(part, arrays, kinds) for part in inside))
    if kind == "array":
        return arrays[inside]
    if kind == "path":
        return Path(inside)
    if kind == "tuple":
        return tuple(decode(item, arrays, kinds) for item in inside)
    values = {key: decode(item, arrays, kinds) for key, item in inside.items()}
    return values if kind == "map" else kinds[kind](**values)


def check_arrays(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuses what cannot be saved and read back under its own name."""
    if not isinstance(arrays, Mapping):
        raise ArgumentError(f"arrays must be a dict from names to arrays, got {type(arrays).__name__}")
    for name, array in arrays.items():
        _check_name(name)
        dtype = np.asarray(array).dtype
        if dtype.hasobject:
            raise ArgumentError(f"array {name!r} must hold numbers, booleans or text, got Python objects; convert it")
        if dtype.kind not in KINDS or dtype.itemsize == 0:
            raise ArgumentError(f"array {name!r} must hold numbers, booleans or text, got dtype {dtype}; convert it")


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of an .npz; equal arrays give equal bytes, since no times are stamped."""
    size = sum(np.asarray(array).nbytes for array in arrays.values())
    if size > MAX_BYTES:
        raise ArgumentError(
            f"expected at most {MAX_BYTES:,} bytes of arrays in a result, got {size:,}; keep fewer numbers"
        )
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
            what = f"it unpacks to {size:,} bytes, and the most that is read is {MAX_BYTES:,}"
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
        what = f"the header of {member.filename} announces shape {shape} of {dtype}, but {there} bytes follow"
        raise DamagedResultError(damage(path, what, advice))
    raw.seek(0)
    return np.lib.format.read_array(raw, allow_pickle=False, max_header_size=MAX_HEADER)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME or "\\" in name:
        raise ArgumentError(
            f"the name of an array must be 1 to {MAX_NAME} printable characters without '\\', got {name!r}"
        )
