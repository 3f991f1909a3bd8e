"""Values of a result as JSON and arrays, and back: a file may build only the classes that its reader names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import ArgumentError

Arrays = dict[str, np.ndarray]


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


def decode(plain: Any, arrays: Mapping[str, np.ndarray], kinds: Mapping[str, type]) -> Any:
    """The value that `encode` was given.

    Args:
        plain: what it gave.
        arrays: the arrays that it filled.
        kinds: the dataclasses that may be built, by name.
    """
    if isinstance(plain, list):
        return [decode(item, arrays, kinds) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, inside),) = plain.items()
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
