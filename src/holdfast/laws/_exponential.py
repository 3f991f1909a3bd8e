"""The exponential law, the memory of one stable linear mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast.laws._base import AbstractLaw, check_positive


@checked_fields
@dataclass(frozen=True)
class Exponential(AbstractLaw):
    """rho(t) = exp(-rate t).

    Args:
        rate: of the decay, above 0.
    """

    rate: float
    key: ClassVar[str] = "exponential"

    def __post_init__(self) -> None:
        check_positive(rate=self.rate)

    @property
    def name(self) -> str:
        return f"exp(-{self.rate:g} t)"

    def _value(self, t: Tensor) -> Tensor:
        return torch.exp(-self.rate * t)

    def _tail(self, t: Tensor) -> Tensor:
        return torch.exp(-self.rate * t) / self.rate

    def _between(self, start: Tensor, stop: Tensor) -> Tensor:
        return -torch.expm1(-self.rate * (stop - start)) * self._tail(start)
