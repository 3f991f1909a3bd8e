"""Decay laws rho(t), t >= 0: the one definition that data, fits and constructions share.

Each law is a frozen value with `law(t)`, its exact integrals and its L1 norm. Times may be numbers, numpy arrays or
tensors, and the answer is of the same kind; numbers and numpy arrays are computed in float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from holdfast._types import Numeric
from holdfast.errors import ArgumentError, RangeError, unknown_name


def _apply(function: Callable[[Tensor], Tensor], t: Numeric) -> Numeric:
    if isinstance(t, Tensor):
        x = t if t.is_floating_point() else t.to(torch.get_default_dtype())
    else:
        x = torch.as_tensor(np.asarray(t, dtype=np.float64))
    if bool((x < 0).any()):
        raise RangeError(f"a decay law is defined for times t >= 0; the smallest that came is {float(x.min())}")
    y = function(x)
    if isinstance(t, Tensor):
        return y
    return y.numpy() if isinstance(t, np.ndarray) else float(y)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ArgumentError(f"{name} must be a finite number above 0, came {value!r}")


@dataclass(frozen=True)
class AbstractLaw(ABC):
    """A decay law: values, signed and absolute integrals.

    `_tail(t)` is the signed integral of rho over [t, inf). Laws that change sign also give `_absolute_tail`.
    """

    key: ClassVar[str]

    @abstractmethod
    def _value(self, t: Tensor) -> Tensor: ...

    @abstractmethod
    def _tail(self, t: Tensor) -> Tensor: ...

    def _absolute_tail(self, t: Tensor) -> Tensor:
        return self._tail(t)

    def _between(self, start: Tensor, stop: Tensor) -> Tensor:
        return self._tail(start) - self._tail(stop)

    @property
    @abstractmethod
    def name(self) -> str:
        """The law as text, with its constants."""

    def __call__(self, t: Numeric) -> Numeric:
        """rho(t)."""
        return _apply(self._value, t)

    def tail(self, t: Numeric) -> Numeric:
        """The integral of rho over [t, inf); inf where it diverges."""
        return _apply(self._tail, t)

    def tail_norm(self, t: Numeric) -> Numeric:
        """The integral of |rho| over [t, inf); inf where it diverges."""
        return _apply(self._absolute_tail, t)

    def integral(self, start: Numeric, stop: Numeric) -> Numeric:
        """The integral of rho over [start, stop], finite also where the tail is not."""
        other = torch.as_tensor(stop) if isinstance(stop, Tensor) else torch.as_tensor(stop, dtype=torch.float64)
        return _apply(lambda t: self._between(t, other.to(t)), start)

    @property
    def norm(self) -> float:
        """The L1 norm, the integral of |rho| over [0, inf); inf where it diverges."""
        return float(self.tail_norm(0.0))

    @property
    def integrable(self) -> bool:
        """Whether the L1 norm is finite."""
        return math.isfinite(self.norm)


@dataclass(frozen=True)
class Exponential(AbstractLaw):
    """rho(t) = exp(-rate t)."""

    rate: float
    key: ClassVar[str] = "exponential"

    def __post_init__(self) -> None:
        _positive(rate=self.rate)

    @property
    def name(self) -> str:
        return f"exp(-{self.rate:g} t)"

    def _value(self, t: Tensor) -> Tensor:
        return torch.exp(-self.rate * t)

    def _tail(self, t: Tensor) -> Tensor:
        return torch.exp(-self.rate * t) / self.rate

    def _between(self, start: Tensor, stop: Tensor) -> Tensor:
        return -torch.expm1(-self.rate * (stop - start)) * self._tail(start)


@dataclass(frozen=True)
class PowerLaw(AbstractLaw):
    """rho(t) = (1 + t)^-exponent; integrable for exponent > 1."""

    exponent: float
    key: ClassVar[str] = "power"

    def __post_init__(self) -> None:
        _positive(exponent=self.exponent)

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


@dataclass(frozen=True)
class StretchedExponential(AbstractLaw):
    """rho(t) = exp(-(t / scale)^exponent), between exponential (1) and power law (towards 0)."""

    scale: float
    exponent: float
    key: ClassVar[str] = "stretched_exponential"

    def __post_init__(self) -> None:
        _positive(scale=self.scale, exponent=self.exponent)

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


@dataclass(frozen=True)
class Finite(AbstractLaw):
    """rho(t) = (1 - t / support)^order up to `support`, 0 after it; order 0 is a box."""

    support: float
    order: float = 0.0
    key: ClassVar[str] = "finite"

    def __post_init__(self) -> None:
        _positive(support=self.support)
        if not self.order >= 0:
            raise ArgumentError(f"order must be 0 (a box) or above, came {self.order!r}")

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


@dataclass(frozen=True)
class ExponentialMixture(AbstractLaw):
    """rho(t) = sum_i coefficients_i exp(-rates_i t), coefficients of any sign."""

    rates: tuple[float, ...]
    coefficients: tuple[float, ...]
    key: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(map(float, self.rates)))
        object.__setattr__(self, "coefficients", tuple(map(float, self.coefficients)))
        if len(self.rates) != len(self.coefficients) or not self.rates:
            raise ArgumentError(
                "a mixture needs one coefficient for each rate and at least one: "
                f"came {len(self.rates)} rates, {len(self.coefficients)} coefficients"
            )
        for rate in self.rates:
            _positive(rate=rate)
        if not all(map(math.isfinite, self.coefficients)):
            raise ArgumentError(f"coefficients must be finite, came {self.coefficients}")

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


@dataclass(frozen=True)
class ReciprocalSum(AbstractLaw):
    """rho(t) = sum_{k=1}^{terms} k^-2 exp(-t / k^power), the two sums of "Inverse Approximation Theory", App. C.

    With `terms=None` the sum runs to infinity; it then decays like 1/t (power 1) or t^-1/2 (power 2), so that its L1
    norm is infinite: the linear functional of App. C is bounded only on inputs that vanish fast enough.
    """

    power: int
    terms: int | None = None
    key: ClassVar[str] = "reciprocal_sum"
    _summed: ClassVar[int] = 256  # terms added one by one before the Euler-Maclaurin remainder takes over

    def __post_init__(self) -> None:
        if self.power not in (1, 2):
            raise ArgumentError(f"power must be 1 or 2 (the two sums of App. C), came {self.power!r}")
        if self.terms is not None and not (isinstance(self.terms, int) and self.terms >= 1):
            raise ArgumentError(f"terms must be a whole number above 0, or None for infinity, came {self.terms!r}")

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
        raise ArgumentError("the integral of the infinite sum has no closed form here; set terms to a finite number")


@dataclass(frozen=True)
class OscillatingExponential(AbstractLaw):
    """rho(t) = exp(-rate t) cos(frequency t + phase)."""

    rate: float
    frequency: float
    phase: float = 0.0
    key: ClassVar[str] = "oscillating"

    def __post_init__(self) -> None:
        _positive(rate=self.rate, frequency=self.frequency)
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


LAWS: dict[str, type[AbstractLaw]] = {
    law.key: law
    for law in (
        Exponential,
        PowerLaw,
        StretchedExponential,
        Finite,
        ExponentialMixture,
        ReciprocalSum,
        OscillatingExponential,
    )
}


def get(name: str, *constants: Any, **named: Any) -> AbstractLaw:
    """Builds the law called `name` from its constants: `get("power", 1.5)`."""
    if name not in LAWS:
        raise unknown_name("decay law", name, LAWS)
    return LAWS[name](*constants, **named)
