"""A law that ends: memory 0 after its support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast.errors import ArgumentError
from holdfast.laws._base import AbstractLaw, check_positive


@checked_fields
@dataclass(frozen=True)
class Finite(AbstractLaw):
    """rho(t) = (1 - t / support)^order up to `support`, 0 after it.

    Args:
        support: time from which the law is 0.
        order: how it ends; 0 is a box, which stays 1 up to its end.
    """

    support: float
    order: float = 0.0
    key: ClassVar[str] = "finite"

    def __post_init__(self) -> None:
        check_positive(support=self.support)
        if not self.order >= 0:
            raise ArgumentError(f"order must be >= 0 (0 is a box), got {self.order!r}")

    @property
    def name(self) -> str:
        shape = "1" if self.order == 0 else f"(1 - t/{self.support:g})^{self.order:g}"
        return f"{shape} for t < {self.support:g}, then 0"

    def _left(self, t: Tensor) -> Tensor:
        return (1 - t / self.support).clamp(min=0)

    def _value(self, t: Tensor) -> Tensor:
        return torch.where(t < self.support, self._left(t) ** self.order, torch.zeros_like(t))

    def _tail(self, t: Tensor) -> Tensor:
        return self.support / (self.order + 1) * self._left(t) ** (self.order + 1)
