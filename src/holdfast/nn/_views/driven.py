"""A recurrence on inputs that change: what decides each of its steps, and the step itself, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Driven:
    """How a state moves along a sequence of inputs: float64 functions on the CPU.

    Args:
        drive: inputs of the module, (rows, time, features), to what decides each step, (rows, time, numbers), in the order in
            which steps are taken.
        step: states (rows, size) and drives (rows, numbers) to the next states.
        size: numbers in a state.
    """

    drive: Callable[[Tensor], Tensor]
    step: Callable[[Tensor, Tensor], Tensor]
    size: int

    @torch.no_grad()
    def trajectory(
        self, drives: Float64[Tensor, "rows time numbers"], start: Float64[Tensor, "rows size"] | None = None
    ) -> Float64[Tensor, "rows time size"]:
        """The states after each step.

        Args:
            drives: what `drive` gave.
            start: the first states; None is 0.
        """
        state = drives.new_zeros(len(drives), self.size) if start is None else start
        states = []
        for drive in drives.unbind(1):
            state = self.step(state, drive)
            states.append(state)
        return torch.stack(states, 1)


def layer_driven(layer: Any) -> Driven:
    """A holdfast layer by its own `step` in a float64 copy.

    Args:
        layer: an AbstractRecurrent whose state does not move linearly.
    """
    own = copy.deepcopy(layer).double().eval()
    shape = tuple(own.state_shape)
    size = torch.Size(shape).numel()

    def step(state: Tensor, x: Tensor) -> Tensor:
        return own.step(x, state.reshape(-1, *shape))[1].reshape(-1, size)

    return Driven(lambda x: x.double(), step, size)
