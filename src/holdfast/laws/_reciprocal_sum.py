"""The two sums of "Inverse Approximation Theory", App. C."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast.errors import ArgumentError
from holdfast.laws._base import AbstractLaw


@checked_fields
@dataclass(frozen=True)
class ReciprocalSum(AbstractLaw):
    """rho(t) = sum_{k=1}^{terms} k^-2 exp(-t / k^power), the two sums of "Inverse Approximation Theory", App. C.

    Args:
        power: 1 or 2.
        terms: number of terms. None runs to infinity; the sum then decays like 1/t (power 1) or t^-1/2 (power 2), so
            that its L1 norm is infinite: the linear functional of App. C is bounded only on inputs that vanish fast
            enough.
    """

    power: int
    terms: int | None = None
    key: ClassVar[str] = "reciprocal_sum"
    _summed: ClassVar[int] = 256  # terms added one by one before the Euler-Maclaurin remainder takes over

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise ArgumentError(f"power must be 1 or 2 (the two sums of App. C), got {self.power!r}")
        if self.terms is not None and not (isinstance(self.terms, int) and self.terms >= 1):
            raise ArgumentError(f"terms must be a whole number above 0, or None for infinity, got {self.terms!r}")

    @property
    def name(self) -> str:
        last = "inf" if self.terms is None else str(self.terms)
        return f"sum_(k=1..{last}) k^-2 exp(-t/k{'^2' if self.power == 2 else ''})"

    def _terms(self, t: Tensor, last: int) -> tuple[Tensor, Tensor]:
        k = torch.arange(1, last + 1, dtype=t.dtype, device=t.device)
        return k, torch.exp(-t.unsqueeze(-1) / k**self.power)

    def _value(self, t: Tensor) -> Tensor:
        k, decays = self._terms(t, self.terms or self._summed)
        total = (decays / k**2).sum(-1)
        return total if self.terms is not None else total + self._remainder(t)

    def _remainder(self, t: Tensor) -> Tensor:
        """Sum over k > K of f(k) = k^-2 exp(-t/k^p): integral - f/2 - f'/12 + f'''/720, below 1e-15 for all t."""
        K = float(self._summed)
        p = self.power
        s = t / K**p
        if p == 1:
            integral = -torch.expm1(-s) / torch.where(t > 0, t, torch.ones_like(t))
        else:
            root = torch.sqrt(torch.where(t > 0, t, torch.ones_like(t)))
            integral = math.sqrt(math.pi) / 2 * torch.erf(root / K) / root
        integral = torch.where(t > 0, integral, torch.full_like(t, 1 / K))
        f = torch.exp(-s) / K**2
        # derivatives of x^-2 exp(-t x^-p) at K, as f times polynomials in s
        first = f / K * (p * s - 2)
        third = f / K**3 * (p**3 * s**3 - 3 * p**2 * (p + 3) * s**2 + p * (p**2 + 9 * p + 26) * s - 24)
        return integral - f / 2 - first / 12 + third / 720

    def _tail(self, t: Tensor) -> Tensor:
        if self.terms is None:
            return torch.full_like(t, math.inf)
        k, decays = self._terms(t, self.terms)
        return (decays * k ** (self.power - 2)).sum(-1)

    def _between(self, start: Tensor, stop: Tensor) -> Tensor:
        if self.terms is not None:
            return super()._between(start, stop)
        raise ArgumentError("terms must be finite for an integral between two times, got None; set terms")
