"""Arguments checked by their annotations: `@checked` on a public function names the argument that is wrong.

Numbers, lists and numpy arrays are taken where tensors are meant, names of dtypes where dtypes are; a misspelt choice
meets the known ones. It costs a few microseconds per call: not for the steps of a stream.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch

from holdfast import _readers
from holdfast._readers import Reader, Refused, WrongShape
from holdfast.errors import ArgumentError, DtypeError, ShapeError, unknown_name

P = ParamSpec("P")
R = TypeVar("R")
_SEQUENCES = (collections.abc.Sequence, collections.abc.Iterable, list, tuple)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """`function` with its arguments read by their annotations first; errors name function and argument."""
    signature = inspect.signature(function)
    label = function.__qualname__.removesuffix(".__init__").removesuffix(".__post_init__")

    @functools.cache
    def readers() -> dict[str, tuple[Reader, ...]]:
        annotations = {name: _annotation(p, function) for name, p in signature.parameters.items() if name != "self"}
        made = {name: _readers_of(annotation) for name, annotation in annotations.items()}
        return {
            name: tuple(_special(r, signature.parameters[name]) for r in some) for name, some in made.items() if some
        }

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{label}: {error}") from None
        for name, value in bound.arguments.items():
            if name not in readers():
                continue
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                taken: Any = tuple(_read(label, name, item, readers()[name]) for item in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                taken = {key: _read(label, key, item, readers()[name]) for key, item in value.items()}
            else:
                taken = _read(label, name, value, readers()[name])
            bound.arguments[name] = taken
        return function(*bound.args, **bound.kwargs)

    return call


def checked_fields(kind: type[R]) -> type[R]:
    """A dataclass whose fields are read by their annotations when one is made."""
    kind.__init__ = checked(kind.__init__)  # type: ignore[method-assign]
    return kind


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """What each argument of a function or class is annotated with; Any where that cannot be determined."""
    made = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    return {name: _annotation(p, made) for name, p in inspect.signature(function).parameters.items()}


def takes_sequence(annotation: Any) -> bool:
    """Whether a list can be a value of an argument with this annotation."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    parts = typing.get_args(annotation) if union else (annotation,)
    return any((typing.get_origin(part) or part) in _SEQUENCES for part in parts)


def as_generator(seed: int | torch.Generator) -> torch.Generator:
    """The generator itself, or a new one with that seed."""
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator().manual_seed(seed)


def positive(**sizes: int | None) -> None:
    """Refuses sizes below 1; None is passed over."""
    for name, size in sizes.items():
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ArgumentError(f"{name} must be a whole number >= 1, got {size!r}")


def probability(**values: float) -> None:
    """Refuses numbers outside [0, 1]."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ArgumentError(f"{name} must be a probability from 0 to 1, got {value!r}")


def _read(label: str, name: str, value: Any, readers: tuple[Reader, ...]) -> Any:
    reasons: list[Refused] = []
    for exactly in (True, False):
        for reader in readers:
            try:
                return reader.read(value, exactly)
            except Refused as refused:
                reasons.append(refused)
    choices = [choice for reader in readers for choice in reader.choices]
    if choices and isinstance(value, str):
        raise unknown_name(name, value, choices)
    wanted = " or ".join(dict.fromkeys(reader.words for reader in readers))
    reason = next((f" ({reason})" for reason in reasons if str(reason)), "")
    kind = DtypeError if isinstance(value, (torch.Tensor, np.ndarray)) else ArgumentError
    if any(isinstance(reason, WrongShape) for reason in reasons):
        kind = ShapeError
    raise kind(f"{label}: {name} must be {wanted}, got {_readers.describe(value)}{reason}")


def _special(reader: Reader, parameter: inspect.Parameter) -> Reader:
    """Seeds have 64 bits; a number that is NaN by default may be NaN."""
    if reader is _readers.PLAIN[int] and parameter.name == "seed":
        return _readers.SEED
    if reader is _readers.PLAIN[float] and isinstance(parameter.default, float) and math.isnan(parameter.default):
        return _readers.NUMBER_OR_NAN
    return reader


def _annotation(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    try:
        # our own annotations, or those of a factory whose file was run already
        return eval(annotation, getattr(inspect.unwrap(function), "__globals__", {}))
    except Exception:  # imported for type checkers only, or no expression at all
        return Any


def _readers_of(annotation: Any) -> tuple[Reader, ...]:
    """One reader for each alternative; none where anything is taken."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        alternatives = typing.get_args(annotation)
        # the name of a device is read as a device, not as any text
        kept = [part for part in alternatives if part is not str or torch.device not in alternatives]
        parts = [_readers_of(part) for part in kept]
        return tuple(r for part in parts for r in part) if all(parts) else ()
    reader = _reader(annotation, origin)
    return () if reader is None else (reader,)


def _reader(annotation: Any, origin: Any) -> Reader | None:
    if annotation in _readers.PLAIN:
        return _readers.PLAIN[annotation]
    if origin is Literal:
        return _readers.literal(typing.get_args(annotation))
    if hasattr(annotation, "array_type"):  # a shape and dtype of jaxtyping
        return _readers.array(annotation.array_type, annotation.dtypes, annotation.dim_str)
    if origin is collections.abc.Callable:
        return _readers.callable_reader()
    if origin in _SEQUENCES:
        inner = [part for part in typing.get_args(annotation) if part is not ...]
        if origin is tuple and ... not in typing.get_args(annotation):
            return _readers.instance(tuple)
        elements = _readers_of(inner[0]) if inner else ()
        return _readers.several(elements, lambda value: _read_element(value, elements))
    kind = origin or annotation
    return _readers.instance(kind) if isinstance(kind, type) and kind is not object else None


def _read_element(value: Any, readers: tuple[Reader, ...]) -> Any:
    if not readers:
        return value
    for exactly in (True, False):
        for reader in readers:
            try:
                return reader.read(value, exactly)
            except Refused:
                continue
    raise Refused(f"one element is {_readers.describe(value)}")
