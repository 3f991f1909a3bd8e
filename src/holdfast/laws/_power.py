"""The power law, whose memory outlasts every exponential."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast.laws._base import AbstractLaw, check_positive


@checked_fields
@dataclass(frozen=True)
class PowerLaw(AbstractLaw):
    """rho(t) = (1 + t)^-exponent; integrable for exponent > 1.

    Args:
        exponent: above 0.
    """

    exponent: float
    key: ClassVar[str] = "power"

    def __post_init__(self) -> None:
        check_positive(exponent=self.exponent)

    @property
    def name(self) -> str:
        return f"(1 + t)^-{self.exponent:g}"

    def _value(self, t: Tensor) -> Tensor:
        return torch.exp(-self.exponent * torch.log1p(t))

    def _tail(self, t: Tensor) -> Tensor:
        q = self.exponent - 1
        return torch.full_like(t, math.inf) if q <= 0 else torch.exp(-q * torch.log1p(t)) / q

    def _between(self, start: Tensor, stop: Tensor) -> Tensor:
        q = self.exponent - 1
        log_ratio = torch.log1p(stop) - torch.log1p(start)
        if q == 0:
            return log_ratio
        return torch.exp(-q * torch.log1p(start)) * (-torch.expm1(-q * log_ratio) / q)
