"""A sum of exponentials, what a diagonal linear layer can remember."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast.errors import ArgumentError
from holdfast.laws._base import AbstractLaw, check_positive


@checked_fields
@dataclass(frozen=True)
class ExponentialMixture(AbstractLaw):
    """rho(t) = sum_i coefficients_i exp(-rates_i t): what a diagonal linear layer can remember.

    Args:
        rates: one for each term, above 0.
        coefficients: one for each term, of any sign.
    """

    rates: tuple[float, ...]
    coefficients: tuple[float, ...]
    key: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(map(float, self.rates)))
        object.__setattr__(self, "coefficients", tuple(map(float, self.coefficients)))
        if len(self.rates) != len(self.coefficients) or not self.rates:
            raise ArgumentError(
                "expected as many coefficients as rates and at least one, got "
                f"{len(self.rates)} rates and {len(self.coefficients)} coefficients"
            )
        for rate in self.rates:
            check_positive(rates=rate)
        if not all(map(math.isfinite, self.coefficients)):
            raise ArgumentError(f"coefficients must be finite, got {self.coefficients}")

    @property
    def name(self) -> str:
        terms = [f"{c:+g} exp(-{r:g} t)" for r, c in zip(self.rates[:3], self.coefficients, strict=False)]
        more = "" if len(self.rates) <= 3 else f" ... ({len(self.rates)} terms)"
        return " ".join(terms).lstrip("+") + more

    def _weighted(self, t: Tensor, weights: Tensor) -> Tensor:
        rates = torch.tensor(self.rates, dtype=t.dtype, device=t.device)
        return (weights.to(t) * torch.exp(-rates * t.unsqueeze(-1))).sum(-1)

    def _value(self, t: Tensor) -> Tensor:
        return self._weighted(t, torch.tensor(self.coefficients, dtype=torch.float64))

    def _tail(self, t: Tensor) -> Tensor:
        pairs = zip(self.coefficients, self.rates, strict=True)
        return self._weighted(t, torch.tensor([c / r for c, r in pairs], dtype=torch.float64))

    def _absolute_tail(self, t: Tensor) -> Tensor:
        # between two zeros |rho| integrates to the difference of signed tails
        total = self._tail(t).abs()
        zeros = torch.tensor(self._zeros(), dtype=t.dtype, device=t.device)
        if len(zeros) == 0:
            return total
        at_zeros = self._tail(torch.maximum(t.unsqueeze(-1), zeros))
        steps = torch.cat([self._tail(t).unsqueeze(-1), at_zeros, torch.zeros_like(t).unsqueeze(-1)], dim=-1)
        return steps.diff(dim=-1).abs().sum(-1)

    def _zeros(self) -> list[float]:
        """Times where rho changes sign; sign changes closer than 1 part in 500 of their time are not resolved."""
        if min(self.coefficients) >= 0 or max(self.coefficients) <= 0:
            return []
        from scipy.optimize import brentq

        longest = 800 / min(self.rates)  # there exp underflows
        grid = np.concatenate([[0.0], np.geomspace(1e-6 / max(self.rates), longest, 20_000)])
        values = np.asarray(self(grid))
        crossings = np.flatnonzero(values[:-1] * values[1:] < 0)
        return [float(brentq(self, grid[i], grid[i + 1], xtol=1e-300, rtol=1e-14)) for i in crossings]
