"""States of our layers as the pair (h, c) of torch.nn.LSTM: for code that makes, stores, masks or reads states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.errors import ArgumentError, ShapeError
from holdfast.kernels._common import checks
from holdfast.nn._base import AbstractRecurrent


def room_for(layers: Iterable[Any]) -> int:
    """Numbers that the largest state among the layers has, of one sequence."""
    return max(math.prod(layer.state_shape) for layer in layers)


def fitting_state_size(
    kind: type[AbstractRecurrent], inputs: int, outputs: int, room: int, options: Mapping[str, Any]
) -> int:
    """The largest state_size of a layer whose state has at most so many numbers; ArgumentError where none has.

    Args:
        kind: class of the layer.
        inputs: its input features.
        outputs: its output features.
        room: numbers that there is room for.
        options: its other keyword arguments.
    """

    def numbers(state_size: int) -> int:
        made = kind(inputs, state_size, out_features=outputs, **{**options, "device": torch.device("meta")})
        return math.prod(made.state_shape)

    # a state has a + b state_size numbers; even sizes, since complex modes come in pairs
    two, four = numbers(2), numbers(4)
    slope = (four - two) // 2
    most = (room - two) // slope + 2
    for state_size in (most, most - 1):
        if state_size > 0 and _builds(numbers, state_size):
            return state_size
    raise ArgumentError(
        f"state_form='lstm': expected a state of at most hidden_size = {room} numbers, which (h, c) can hold, got at least "
        f"{two} for a {kind.__name__} with {inputs} inputs; choose layer='lru', a larger hidden_size with proj_size, or a "
        "state_size, which makes c wider"
    )


def _builds(numbers: Any, state_size: int) -> bool:
    try:
        numbers(state_size)
    except ArgumentError:  # such as an odd number of complex modes
        return False
    return True


def pack(states: Sequence[Tensor], width: int) -> Tensor:
    """States (batch, *shape) as one tensor (states, batch, width), zeros behind each."""
    flat = [state.flatten(1) for state in states]
    return torch.stack([functional.pad(state, (0, width - state.shape[1])) for state in flat])


def unpack(c: Tensor, layers: Sequence[Any] | Any, width: int) -> tuple[Tensor, ...]:
    """The states (batch, *shape) of the layers from c (states, batch, width)."""
    if not isinstance(c, Tensor) or c.ndim != 3 or (c.shape[0], c.shape[2]) != (len(layers), width):
        raise ShapeError(
            f"RecurrentStack: expected c of shape ({len(layers)}, batch, {width}), as an earlier call returned it or "
            f"initial_state(batch) makes it, got {checks.describe(c)}"
        )
    parts = zip(c.unbind(0), layers, strict=True)
    return tuple(part[:, : math.prod(layer.state_shape)].unflatten(1, layer.state_shape) for part, layer in parts)


def last_outputs(y: Tensor, lengths: Tensor | None) -> Tensor:
    """The outputs (batch, outputs) at the last step of each sequence."""
    if y.shape[1] == 0:
        raise ShapeError("state_form='lstm': expected at least one step, got none; h is the output of the last step")
    if lengths is None:
        return y[:, -1]
    place = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, y.shape[2])
    return y.gather(1, place).squeeze(1)
