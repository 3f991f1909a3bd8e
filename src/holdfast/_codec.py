"""Values as JSON.

`plain` and `restored` keep numbers, text, lists and dicts. `encode` and `decode` also keep arrays and dataclasses: a
file may build only the classes that its reader names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from holdfast.errors import ArgumentError

Arrays = dict[str, np.ndarray]


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
        f"expected numbers, text, lists and dicts of them, got {type(value).__name__} {str(value)[:80]!r}"
    )


def restored(value: Any) -> Any:
    """What `plain` was given, of what JSON gives back: mappings, lists and numbers, infinity and NaN among them.

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
    raise ArgumentError(f"{name}: cannot be saved, it is {type(value).__name__}")


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
