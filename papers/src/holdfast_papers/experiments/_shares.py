"""Shares of runs and slopes over sizes with their 95% intervals: what decides claims that do not order two arms.

A share that misses its bound is not met, whatever its interval: the bound was asked of these runs. One that keeps to it is
met if the whole interval of Clopper and Pearson does, and undecided otherwise. A slope lies above a bound where Student's
interval does, below it likewise, and is undecided between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.stability.perturbation._curve import slope_of
from holdfast_papers.experiments._paired import CONFIDENCE

FEWEST_POINTS = 3  # of a slope with an interval


@dataclass(frozen=True)
class Share:
    """A share of runs with its interval.

    Args:
        part: of the runs.
        low: lower end of the interval.
        high: upper end.
        count: number of runs.
    """

    part: float
    low: float
    high: float
    count: int

    def at_least(self, bound: float) -> bool | None:
        """Whether the share is at least `bound`: None where it is but its interval reaches below, or there is no run."""
        return None if not self.count else False if self.part < bound else True if self.low >= bound else None

    def at_most(self, bound: float) -> bool | None:
        """Whether the share is at most `bound`: None where it is but its interval reaches above, or there is no run."""
        return None if not self.count else False if self.part > bound else True if self.high <= bound else None

    def numbers(self, of: str = "runs") -> dict[str, float]:
        """What a claim keeps of it, for so many `of` it."""
        return {"share": self.part, "lower end": self.low, "upper end": self.high, of: float(self.count)}


def share(true: Sequence[bool] | np.ndarray) -> Share:
    """The share of those that are true, with the interval of Clopper and Pearson.

    Args:
        true: one answer per run.
    """
    from scipy.stats import beta

    count, wins = len(true), int(np.sum(true))
    outside = (1 - CONFIDENCE) / 2
    low = float(beta.ppf(outside, wins, count - wins + 1)) if wins else 0.0
    high = float(beta.ppf(1 - outside, wins + 1, count - wins)) if wins < count else 1.0
    return Share(wins / count if count else 0.0, low, high, count)


@dataclass(frozen=True)
class Slope:
    """An exponent: the slope of log y in log x, with its interval.

    Args:
        value: of the slope.
        low: lower end of the interval.
        high: upper end.
    """

    value: float
    low: float
    high: float

    def above(self, bound: float) -> bool | None:
        """Whether the exponent lies above `bound`: None where the interval holds it."""
        return True if self.low > bound else False if self.high < bound else None

    def below(self, bound: float) -> bool | None:
        """Whether the exponent lies below `bound`: None where the interval holds it."""
        return True if self.high < bound else False if self.low > bound else None

    def numbers(self, name: str = "slope") -> dict[str, float]:
        """What a claim keeps of it."""
        return {name: self.value, f"{name}, lower end": self.low, f"{name}, upper end": self.high}


def exponent(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> Slope:
    """The slope of log y in log x; of two points its interval is infinite.

    Args:
        x: sizes, above 0.
        y: values, above 0.
    """
    sizes, values = np.asarray(x, float), np.asarray(y, float)
    if len(sizes) < FEWEST_POINTS:
        value = float(np.log(values[-1] / values[0]) / np.log(sizes[-1] / sizes[0]))
        return Slope(value, -np.inf, np.inf)
    value, (low, high) = slope_of(sizes, values, CONFIDENCE)
    return Slope(value, low, high)
