"""How one kind of argument is recognized or converted, and what it is called in an error."""

from __future__ import annotations

import collections.abc
import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MAX_WHOLE = 2**40  # whole numbers are sizes, counts and horizons: beyond this nothing fits into a machine


class Refused(Exception):
    """A value is not of this kind; the text may say why."""


class WrongShape(Refused):
    """A tensor of the right kind has not as many dimensions as the annotation names."""


@dataclass(frozen=True)
class Reader:
    """`read(value, exactly)` gives the value as this kind or raises Refused; converted only where not `exactly`."""

    words: str
    read: Callable[[Any, bool], Any]
    choices: tuple[str, ...] = ()


def describe(value: object) -> str:
    """What was given: dtype, shape and device of a tensor or array, else type and value."""
    if isinstance(value, Tensor) and value.is_nested:
        return f"a nested {_name(value.dtype)} tensor on {value.device}"
    if isinstance(value, Tensor):
        return f"a {_name(value.dtype)} tensor of shape {tuple(value.shape)} on {value.device}"
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    return f"{type(value).__name__} {value!r:.80}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _none(value: Any, exactly: bool) -> None:
    if value is not None:
        raise Refused


def _bool(value: Any, exactly: bool) -> bool:
    if isinstance(value, (bool, np.bool_)) or (not exactly and isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise Refused


def _whole(value: Any, exactly: bool) -> int:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        if abs(int(value)) >= MAX_WHOLE:
            raise Refused("whole numbers here are sizes and counts below 2**40")
        return int(value)
    raise Refused


def _seed(value: Any, exactly: bool) -> int:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**64:
        return int(value)
    raise Refused


def _number(value: Any, exactly: bool) -> Any:
    if isinstance(value, Tensor) and value.ndim == 0 and not exactly and not value.is_complex() and not value.is_meta:
        value = value.item()
    if not isinstance(value, numbers.Real) or isinstance(value, (bool, np.bool_)):
        raise Refused
    try:
        if math.isnan(value):
            raise Refused("NaN is not accepted")
    except OverflowError:
        raise Refused("it is too large for a float") from None
    return value if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**53) else float(value)


def _number_or_nan(value: Any, exactly: bool) -> Any:
    return value if isinstance(value, float) and math.isnan(value) else _number(value, exactly)


def _complex(value: Any, exactly: bool) -> Any:
    if isinstance(value, numbers.Number) and not isinstance(value, bool):
        return value
    raise Refused


def _text(value: Any, exactly: bool) -> str:
    if isinstance(value, str):
        return value
    raise Refused


def _dtype(value: Any, exactly: bool) -> torch.dtype:
    dtype = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
    if isinstance(dtype, torch.dtype):
        return dtype
    raise Refused


def _device(value: Any, exactly: bool) -> torch.device:
    try:
        return torch.device(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise Refused(str(error).split("\n")[0]) from None


def _generator(value: Any, exactly: bool) -> torch.Generator:
    if isinstance(value, torch.Generator):
        return value
    raise Refused


def array(kind: type, dtypes: Any, dims: str = "...") -> Reader:
    """A tensor, or an array for `kind` np.ndarray, whose dtype is one of `dtypes` (names; any where not a list).

    `dims` names its dimensions, as jaxtyping does; with a star or dots any number of them.
    """
    known = tuple(dtypes) if isinstance(dtypes, (list, tuple)) else ()
    what = "array" if kind is np.ndarray else "tensor"

    def read(value: Any, exactly: bool) -> Any:
        if isinstance(value, Tensor) and value.is_nested:
            raise Refused("it is nested; convert it with torch.nested.to_padded_tensor")
        if not exactly:
            value = _converted(value, known)
        if exactly and kind is np.ndarray:
            if (
                not isinstance(value, np.ndarray)
                or (known and value.dtype.name not in known)
                or value.dtype.kind not in "biufc"
            ):
                raise Refused
            return _shaped(value, dims)
        if not isinstance(value, Tensor) or (known and _name(value.dtype) not in known):
            raise Refused
        if not holds_numbers(value):
            raise Refused(
                "its values cannot be read: it is on the meta device, fake, or a wrapper around other tensors; pass a "
                "plain tensor"
            )
        if value.layout is not torch.strided:
            raise Refused(f"its layout is {value.layout}; convert it with .to_dense()")
        if kind is np.ndarray:
            value = (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
        return _shaped(value, dims)

    words = f"{_of(known)}{what}"
    return Reader(f"{'an' if words == 'array' else 'a'} {words}", read)


def _shaped(value: Any, dims: str) -> Any:
    names = dims.split()
    if not any("*" in name or "..." in name for name in names) and value.ndim != len(names):
        raise WrongShape(f"expected {len(names)} dimension{'' if len(names) == 1 else 's'}: {', '.join(names)}")
    return value


def _of(known: Sequence[str]) -> str:
    if not known:
        return ""
    kinds = {"complex": "complex ", "float": "real ", "int": "whole-number "}
    matching = [word for prefix, word in kinds.items() if any(name.startswith(prefix) for name in known)]
    return matching[0] if len(matching) == 1 else ""


def _converted(value: Any, known: Sequence[str]) -> Any:
    if not isinstance(value, Tensor):
        if isinstance(value, (str, bytes)) or value is None or callable(value):
            raise Refused
        try:
            value = torch.from_numpy(np.array(value))
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise Refused from None
    if value.dtype == torch.bool or not known or _name(value.dtype) in known or value.is_meta:
        return value
    for wider in (torch.float64, torch.complex128):
        if _name(wider) in known and torch.can_cast(value.dtype, wider):
            return value.to(wider)
    return value


def literal(choices: Sequence[Any]) -> Reader:
    """One of some names."""

    def read(value: Any, exactly: bool) -> Any:
        if isinstance(value, (str, int, type(None))) and value in choices:
            return value
        raise Refused

    return Reader(f"one of {', '.join(map(repr, choices))}", read, tuple(c for c in choices if isinstance(c, str)))


def callable_reader() -> Reader:
    """Anything that can be called."""

    def read(value: Any, exactly: bool) -> Any:
        if callable(value):
            return value
        raise Refused

    return Reader("an nn.Module or a function", read)


def several(elements: Sequence[Reader], element: Callable[[Any], Any]) -> Reader:
    """A list, tuple, array or other sequence of elements; text is not taken apart."""

    def read(value: Any, exactly: bool) -> Any:
        if isinstance(value, (Tensor, np.ndarray)):
            value = _listed(value, exactly)
        if isinstance(value, (str, bytes, dict)) or not isinstance(value, collections.abc.Iterable):
            raise Refused
        if not elements:
            return value
        return type(value)(map(element, value)) if isinstance(value, (list, tuple)) else list(map(element, value))

    each = f", each element {' or '.join(reader.words for reader in elements)}" if elements else ""
    return Reader(f"a list or tuple{each}", read)


def _listed(value: Tensor | np.ndarray, exactly: bool) -> list[Any]:
    if exactly:
        raise Refused
    if (isinstance(value, Tensor) and (value.is_nested or value.is_meta)) or value.ndim != 1:
        raise Refused("expected 1 dimension")
    return value.tolist()


def instance(kind: type) -> Reader:
    """An instance of a class."""

    def read(value: Any, exactly: bool) -> Any:
        try:
            if isinstance(value, kind):
                return value
        except TypeError:  # a protocol that cannot be asked
            return value
        raise Refused

    name = "an nn.Module" if kind is torch.nn.Module else f"a {kind.__name__}"
    if getattr(kind, "_is_protocol", False):
        members = (*getattr(kind, "__annotations__", ()), *vars(kind))
        name = f"an object with {' and '.join(member for member in members if not member.startswith('_'))}"
    return Reader(name + getattr(kind, "how_to_make", ""), read)


NUMBER_OR_NAN = Reader("a number", _number_or_nan)
SEED = Reader("a whole number that fits into 64 bits", _seed)
PLAIN: dict[Any, Reader] = {
    None: Reader("None", _none),
    type(None): Reader("None", _none),
    bool: Reader("True or False", _bool),
    int: Reader("a whole number", _whole),
    float: Reader("a number", _number),
    complex: Reader("a number", _complex),
    str: Reader("text", _text),
    torch.dtype: Reader("a dtype such as torch.float32", _dtype),
    torch.device: Reader("a device", _device),
    torch.Generator: Reader("a torch.Generator", _generator),
    Tensor: array(Tensor, None),
    np.ndarray: array(np.ndarray, None),
}


def holds_numbers(x: Tensor) -> bool:
    """Whether values of x can be read: not on the meta device, not fake, not a wrapper around other tensors."""
    return not (x.is_meta or is_fake(x) or is_traceable_wrapper_subclass(x))
