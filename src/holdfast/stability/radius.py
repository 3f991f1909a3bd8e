"""The radius of one curve, and what the radii of several widths have in common: their slope, and where curves meet."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from holdfast.stability.perturbation import PerturbationCurve

Censored = Literal["", "at least", "at most"]


@dataclass(frozen=True)
class Crossing:
    """The radius at which the curves of two widths meet: above it the wider model is the worse one, or the better."""

    narrow: float
    wide: float
    radius: float


@dataclass(frozen=True)
class Radius:
    """The largest beta up to which an error stays at or below a level.

    Args:
        value: the radius; where only a bracket is known, its lower end, which is safe.
        upper: the upper end of the bracket: the smallest beta at which the error is known to be above the level. The value
            itself where it was interpolated between two finite errors.
        censored: "at least" or "at most" where the radius lies outside of the tested ones, and `value` is their end.
    """

    value: float
    upper: float
    censored: Censored = ""


def stability_radius(curve: PerturbationCurve, level: float) -> Radius:
    """The radius of one curve, interpolated in log beta between finite errors."""
    above = np.flatnonzero(curve.errors > level)
    if len(above) == 0:
        return Radius(float(curve.radii[-1]), math.inf, "at least")
    first = int(above[0])
    high, after = float(curve.radii[first]), float(curve.errors[first])
    low = float(curve.radii[first - 1]) if first else 0.0
    if low <= 0:
        return Radius(high, high, "at most")
    if not math.isfinite(after):
        # a finite error and a diverged model: the radius may lie anywhere between
        return Radius(low, high)
    before = float(curve.errors[first - 1])
    value = float(low * (high / low) ** ((level - before) / (after - before)))
    return Radius(value, value)


def slope_of(
    widths: np.ndarray, radii: np.ndarray, confidence: float, upper: np.ndarray | None = None
) -> tuple[float, tuple[float, float]]:
    """Least squares in log-log with Student's interval, widened by what radii up to `upper` would change.

    Radii that are known to a bracket snap to the tested grid: on a grid of doublings they lie on a line to 1e-15, and the
    scatter says nothing. The slope is linear in log radius, so that its range over all brackets is exact.
    """
    from scipy.stats import t

    x, y = np.log(widths), np.log(radii)
    x = x - x.mean()
    leverage = x / (x @ x)
    slope = float(leverage @ (y - y.mean()))
    rest, free = y - y.mean() - slope * x, len(x) - 2
    width = float(t.ppf(0.5 + confidence / 2, free) * math.sqrt(rest @ rest / free / (x @ x)))
    # a censored radius has no bracket: `_open_sides` of the verdict judges it
    room = np.zeros_like(y) if upper is None else np.where(np.isfinite(upper), np.log(upper) - y, 0.0)
    down, up = float(np.minimum(leverage * room, 0).sum()), float(np.maximum(leverage * room, 0).sum())
    return slope, (slope + down - width, slope + up + width)


def crossings_of(widths: np.ndarray, curves: list[PerturbationCurve]) -> list[Crossing]:
    """Where the curves of neighbouring widths meet, on the radii that both have; infinite errors cross nothing."""
    crossings = []
    for (m, a), (n, b) in itertools.pairwise(zip(widths.tolist(), curves, strict=True)):
        shared, i, j = np.intersect1d(a.radii, b.radii, return_indices=True)
        with np.errstate(invalid="ignore"):
            gap = b.errors[j] - a.errors[i]
        for k in range(len(shared) - 1):
            if not (math.isfinite(gap[k]) and gap[k] < 0 < gap[k + 1]) and not gap[k] > 0 > gap[k + 1]:
                continue
            share = gap[k] / (gap[k] - gap[k + 1]) if np.isfinite(gap[k : k + 2]).all() else 0.0
            low = shared[k] if shared[k] > 0 else shared[k + 1]
            crossings.append(Crossing(m, n, float(low * (shared[k + 1] / low) ** share)))
    return crossings
