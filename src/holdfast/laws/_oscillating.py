"""A decaying oscillation, the memory of a pair of complex modes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast.errors import ArgumentError
from holdfast.laws._base import AbstractLaw, check_positive


@checked_fields
@dataclass(frozen=True)
class OscillatingExponential(AbstractLaw):
    """rho(t) = exp(-rate t) cos(frequency t + phase).

    Args:
        rate: of the decay, above 0.
        frequency: angle per unit of time, above 0.
        phase: angle at t = 0.
    """

    rate: float
    frequency: float
    phase: float = 0.0
    key: ClassVar[str] = "oscillating"

    def __post_init__(self) -> None:
        check_positive(rate=self.rate, frequency=self.frequency)
        if not math.isfinite(self.phase):
            raise ArgumentError(f"phase must be finite, came {self.phase!r}")

    @property
    def name(self) -> str:
        shift = f" {self.phase:+g}" if self.phase else ""
        return f"exp(-{self.rate:g} t) cos({self.frequency:g} t{shift})"

    def _value(self, t: Tensor) -> Tensor:
        return torch.exp(-self.rate * t) * torch.cos(self.frequency * t + self.phase)

    def _tail(self, t: Tensor) -> Tensor:
        r, omega = self.rate, self.frequency
        theta = omega * t + self.phase
        return torch.exp(-r * t) * (r * torch.cos(theta) - omega * torch.sin(theta)) / (r**2 + omega**2)

    def _absolute_tail(self, t: Tensor) -> Tensor:
        # up to the next zero, then half-periods that shrink by q: a geometric series
        r, omega = self.rate, self.frequency
        cycle = torch.ceil((omega * t + self.phase) / math.pi - 0.5)
        zero = ((cycle + 0.5) * math.pi - self.phase) / omega
        q = math.exp(-r * math.pi / omega)
        at_zero = torch.exp(-r * zero) * omega / (r**2 + omega**2)
        # sin(theta) = +-1 at a zero: the sign of the cycle, so that the two tails subtract as signed numbers
        signed = at_zero * -torch.cos(cycle * math.pi)
        return (self._tail(t) - signed).abs() + at_zero * (1 + q) / -math.expm1(-r * math.pi / omega)
