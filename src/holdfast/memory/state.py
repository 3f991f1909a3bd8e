"""Models that return their state and take it up again: probes then start where one run over the past ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.memory.curve import ModelError
from holdfast.memory.subject import Subject


class _NoStateError(Exception):
    """What a model returned cannot be read as the state of its rows."""


def learn_state(
    subject: Subject, x: Float[Tensor, "rows steps inputs"], y: Float[Tensor, "rows steps outputs"]
) -> None:
    """Sets `subject.row_axes` if `model(rest, state)` goes on from `_, state = model(first)` to the outputs y of x.

    holdfast's layers and stacks do, and torch's RNN, GRU and LSTM. Tried with the state of one row given to two, as the
    probes will; whatever fails means that the model has no such state.
    """
    half = x.shape[1] // 2
    first, rest = x[:, :half].contiguous(), x[:1, half:].expand(2, -1, -1).contiguous()
    try:
        _, one = subject.advance(first[:1])
        _, several = subject.advance(first)
        axes = _map(_row_axis, one, several)
        found = subject(rest, spread(one, axes, 2))
    except (ModelError, _NoStateError):
        return
    if bool(((found - y[:1, half:]).abs() <= subject.tolerance(y)).all()):
        subject.row_axes = axes


def spread(state: Any, axes: Any, rows: int) -> Any:
    """The state of one row as that of `rows` equal ones."""
    return _map(lambda one, axis: torch.repeat_interleave(one, rows, dim=axis), state, axes)


def are_alike(state: Any, other: Any) -> bool:
    """Whether two states have the same tensors: shapes, dtypes and devices."""

    def compare(one: Tensor, two: Any) -> None:
        kinds = [(part.shape, part.dtype, part.device) for part in (one, two) if isinstance(part, Tensor)]
        if len(kinds) < 2 or kinds[0] != kinds[1] or one.layout != torch.strided:
            raise _NoStateError

    try:
        _map(compare, state, other)
    except (_NoStateError, TypeError):
        return False
    return True


def as_numbers(state: Any, axes: Any) -> Float[Tensor, "rows numbers"]:
    """The state of each row as a list of real numbers; a complex one counts as two."""
    parts: list[Tensor] = []
    _map(lambda part, axis: parts.append(_real(part.movedim(axis, 0)).flatten(1)), state, axes)
    return torch.cat(parts, 1)


def from_numbers(numbers: Float[Tensor, "rows numbers"], like: Any, axes: Any) -> Any:
    """The state whose rows `as_numbers` turned into these; `like` is a state of any number of rows."""
    left = numbers

    def take(part: Tensor, axis: int) -> Tensor:
        nonlocal left
        shape = _real(part.movedim(axis, 0)).shape[1:]
        own, left = left[:, : shape.numel()], left[:, shape.numel() :]
        own = own.reshape(-1, *shape).to(part.real.dtype)
        return (torch.view_as_complex(own.contiguous()) if part.is_complex() else own).movedim(0, axis).contiguous()

    return _map(take, like, axes)


def _real(part: Tensor) -> Tensor:
    return torch.view_as_real(part) if part.is_complex() else part


def _row_axis(one: Tensor, several: Tensor) -> int:
    apart = [axis for axis, (a, b) in enumerate(zip(one.shape, several.shape, strict=False)) if a != b]
    if one.ndim != several.ndim or len(apart) != 1 or one.shape[apart[0]] != 1:
        raise _NoStateError
    return apart[0]


def _map(function: Callable[[Any, Any], Any], state: Any, other: Any) -> Any:
    """`function` over the tensors of two nests of tuples and lists of one shape."""
    if isinstance(state, Tensor):
        return function(state, other)
    if isinstance(state, (tuple, list)) and len(state) == len(other) and state:
        return type(state)([_map(function, a, b) for a, b in zip(state, other, strict=True)])
    raise _NoStateError
