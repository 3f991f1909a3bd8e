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


def stability_radius(curve: PerturbationCurve, level: float) -> tuple[float, Censored]:
    """The largest beta up to which the error stays at or below `level`, interpolated in log beta, and if it is censored."""
    above = np.flatnonzero(curve.errors > level)
    if len(above) == 0:
        return float(curve.radii[-1]), "at least"
    first = int(above[0])
    if first == 0:
        return float(curve.radii[0]), "at most"
    low, high = float(curve.radii[first - 1]), float(curve.radii[first])
    before, after = float(curve.errors[first - 1]), float(curve.errors[first])
    if not math.isfinite(after):
        # nothing is known between a finite error and a diverged model but that the smaller beta is safe
        return (low, "") if low > 0 else (high, "at most")
    if low <= 0:
        return high, "at most"
    share = (level - before) / (after - before)
    return float(low * (high / low) ** share), ""


def slope_of(widths: np.ndarray, radii: np.ndarray, confidence: float) -> tuple[float, tuple[float, float]]:
    """Least squares in log-log with Student's interval."""
    from scipy.stats import t

    x, y = np.log(widths), np.log(radii)
    x = x - x.mean()
    slope = float(x @ (y - y.mean()) / (x @ x))
    rest, free = y - y.mean() - slope * x, len(x) - 2
    width = float(t.ppf(0.5 + confidence / 2, free) * math.sqrt(rest @ rest / free / (x @ x)))
    return slope, (slope - width, slope + width)


def crossings_of(widths: np.ndarray, curves: list[PerturbationCurve]) -> list[Crossing]:
    """Where the curves of neighbouring widths meet, on the radii that both have; infinite errors cross nothing."""
    found = []
    for (m, a), (n, b) in itertools.pairwise(zip(widths.tolist(), curves, strict=True)):
        shared, i, j = np.intersect1d(a.radii, b.radii, return_indices=True)
        with np.errstate(invalid="ignore"):
            gap = b.errors[j] - a.errors[i]
        for k in range(len(shared) - 1):
            if not (math.isfinite(gap[k]) and gap[k] < 0 < gap[k + 1]) and not gap[k] > 0 > gap[k + 1]:
                continue
            share = gap[k] / (gap[k] - gap[k + 1]) if np.isfinite(gap[k : k + 2]).all() else 0.0
            low = shared[k] if shared[k] > 0 else shared[k + 1]
            found.append(Crossing(m, n, float(low * (shared[k + 1] / low) ** share)))
    return found
