"""The stretched exponential, between exponential and power law."""

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
class StretchedExponential(AbstractLaw):
    """rho(t) = exp(-(t / scale)^exponent), between exponential (1) and power law (towards 0).

    Args:
        scale: time at which the law has fallen to 1/e, above 0.
        exponent: above 0; 1 is the exponential law.
    """

    scale: float
    exponent: float
    key: ClassVar[str] = "stretched_exponential"

    def __post_init__(self) -> None:
        check_positive(scale=self.scale, exponent=self.exponent)

    @property
    def name(self) -> str:
        return f"exp(-(t/{self.scale:g})^{self.exponent:g})"

    def _value(self, t: Tensor) -> Tensor:
        return torch.exp(-((t / self.scale) ** self.exponent))

    def _tail(self, t: Tensor) -> Tensor:
        # substitute s = (t/scale)^exponent: an upper incomplete gamma function
        shape = 1 / self.exponent
        s = (t / self.scale) ** self.exponent
        regularised = torch.special.gammaincc(torch.full_like(s, shape), s)
        return self.scale * shape * math.gamma(shape) * regularised
