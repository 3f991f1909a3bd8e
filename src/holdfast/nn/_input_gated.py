"""What layers share whose gates read the input alone: every step is linear in the state, so that all of them are one scan."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast._types import Time
from holdfast.kernels import scan
from holdfast.kernels.selective import _watch as watch
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._initial_weights import mixed, read_out


class AbstractInputGated(AbstractRecurrent):
    """h+ = a o h + v, y = E h, with a and v functions of the input of the step. A final class gives `_motion` and `_steps`.

    Time is continuous: a = exp(dt s lam) with the eigenvalues lam of zero input and the pace s of the input, 1 on zeros
    unless the layer says otherwise. `dt` of forward and step multiplies s.
    """

    selective = True
    time: Time = "continuous"
    E: nn.Parameter | None

    def __init__(self, features: int, state_size: int, *, bidirectional: bool, **choices: Any) -> None:
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        self.E = read_out(state_size, self.out_features)

    @abstractmethod
    def _motion(self, x: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        """Factors a and inputs v, (..., state_size) each; `dt` is a number or of a shape that multiplies them."""

    @abstractmethod
    def _steps(self, x: Tensor) -> Tensor:
        """The pace s of each state on inputs (..., features)."""

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.state_size,)

    def step_size(self) -> Tensor | float:
        return 1.0

    @property
    def remarks(self) -> tuple[str, ...]:
        return ("a gate that reads the input sets the pace of each step; every factor is below 1, whatever it reads",)

    def _masks_resets(self) -> bool:
        return True

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        a, v = self._motion(x, dt.unsqueeze(-1) if isinstance(dt, Tensor) else dt)
        if watch.watched():
            with torch.no_grad():
                watch.tell(self._steps(x), self.eigenvalues(), None, False)
        h, last = scan(a, v, state, reverse=reverse, lengths=lengths, resets=resets)
        return mixed(h, self.E), last

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        a, v = self._motion(x, dt.unsqueeze(-1) if isinstance(dt, Tensor) else dt)
        h = torch.addcmul(v, a, state)
        return mixed(h, self.E), h


def factor_and_share(rate: Float[Tensor, "*any"], dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
    """e^(dt rate) and 1 - e^(dt rate): what a step keeps and what it replaces; neither is made from the other."""
    exponent = rate if dt is None else dt * rate
    return torch.exp(exponent), -torch.expm1(exponent)


def default_rates(state_size: int) -> Float[Tensor, " state"]:
    """Eigenvalues from -0.001 to -0.5 per step, geometric: memories of 2 to 1,000 steps."""
    if state_size == 1:
        return torch.tensor([-0.05], dtype=torch.float64)
    return -torch.logspace(-3, -0.30103, state_size, dtype=torch.float64)
