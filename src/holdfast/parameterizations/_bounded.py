"""A free weight held inside an interval: itself where it lies there, else the nearest end."""

from __future__ import annotations

from torch import Tensor

from holdfast._types import Time
from holdfast.errors import ArgumentError, RangeError
from holdfast.parameterizations._base import Named


class Bounded(Named):
    """f(w) = min(max(w, low), high), for logarithms of step sizes and frequencies of other libraries' layers.

    Args:
        low: the lower end.
        high: the upper end.
    """

    key = "bounded"
    time: Time = "continuous"

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = float(low), float(high)
        if not self.low < self.high:
            raise ArgumentError(f"expected low < high, got low={low!r}, high={high!r}")

    def forward(self, w: Tensor) -> Tensor:
        """The value inside the interval."""
        return w.clamp(self.low, self.high)

    def right_inverse(self, value: Tensor) -> Tensor:
        """The value itself; refuses one outside."""
        if not bool(((value >= self.low) & (value <= self.high)).all()):
            raise RangeError(
                f"expected values in [{self.low:.6g}, {self.high:.6g}], got {value.flatten()[:8].tolist()}"
            )
        return value
