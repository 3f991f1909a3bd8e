"""What a decay law is: values, signed and absolute integrals, for numbers, numpy arrays and tensors alike."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from holdfast._types import Numeric
from holdfast.errors import ArgumentError, RangeError


def _apply(function: Callable[[Tensor], Tensor], t: Numeric) -> Numeric:
    if isinstance(t, Tensor):
        x = t if t.is_floating_point() else t.to(torch.get_default_dtype())
    else:
        x = torch.as_tensor(np.asarray(t, dtype=np.float64))
    if bool((x < 0).any()):
        raise RangeError(f"times must be >= 0 for a decay law, got a smallest of {float(x.min())}")
    y = function(x)
    if isinstance(t, Tensor):
        return y
    return y.numpy() if isinstance(t, np.ndarray) else float(y)


def check_positive(**values: float) -> None:
    """Refuses a constant that is not a finite number above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ArgumentError(f"{name} must be a finite number above 0, got {value!r}")


@dataclass(frozen=True)
class AbstractLaw(ABC):
    """A decay law rho(t), t >= 0: values, signed and absolute integrals.

    Times may be numbers, numpy arrays or tensors, and the answer is of the same kind. A final class gives `_tail(t)`,
    the signed integral of rho over [t, inf); laws that change sign also give `_absolute_tail`.
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
        """The integral of rho over [start, stop], finite also where the tail is not.

        Args:
            start: lower end, a time or several.
            stop: upper end.
        """
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
