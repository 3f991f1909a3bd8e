"""assess_stability: from the perturbation errors of a family of models to stable, unstable or inconclusive."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float64

from holdfast._arguments import checked
from holdfast.errors import ArgumentError
from holdfast.stability.perturbation import PerturbationCurve

Verdict = Literal["stable", "unstable", "inconclusive"]
Censored = Literal["", "at least", "at most"]
Width = TypeVar("Width", int, float)


@dataclass(frozen=True)
class Crossing:
    """The radius at which the curves of two widths meet: above it the wider model is the worse one, or the better."""

    narrow: float
    wide: float
    radius: float


@dataclass(frozen=True, eq=False)
class StabilityVerdict:
    """What a family of perturbation curves says about stable approximation (iat, Def. 3.5).

    Args:
        verdict: "stable", "unstable" or "inconclusive".
        widths: the widths m, increasing.
        radii: for each width the largest beta up to which its error stays at or below its level.
        censored: "at least" ("at most") where that radius lies beyond the largest (below the smallest) that was tested,
            which then stands in its place; "" where it is known.
        levels: the level of each width.
        slope: of log radius against log m.
        interval: confidence interval of the slope.
        confidence: of that interval.
        crossings: where the curves of neighbouring widths meet.
        factor: the factor on E_m(0) that was allowed.
        offset: the level that every width is allowed at least.
        explanation: the reason for the verdict, in words.
    """

    verdict: Verdict
    widths: Float64[np.ndarray, " widths"]
    radii: Float64[np.ndarray, " widths"]
    censored: tuple[Censored, ...]
    levels: Float64[np.ndarray, " widths"]
    slope: float
    interval: tuple[float, float]
    confidence: float
    crossings: tuple[Crossing, ...]
    factor: float
    offset: float
    explanation: str

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, for JSON; what is not finite becomes None."""
        plain = {name: getattr(self, name) for name in ("verdict", "confidence", "factor", "explanation")}
        for name in ("widths", "radii", "levels"):
            plain[name] = [_finite(v) for v in getattr(self, name).tolist()]
        plain["censored"] = list(self.censored)
        plain["offset"], plain["slope"] = _finite(self.offset), _finite(self.slope)
        plain["interval"] = [_finite(v) for v in self.interval]
        plain["crossings"] = [asdict(c) for c in self.crossings]
        return plain


@checked
def assess_stability(
    curves: Mapping[Width, PerturbationCurve],
    *,
    factor: float = 2.0,
    offset: float | None = None,
    tolerance: float = 0.2,
    confidence: float = 0.95,
) -> StabilityVerdict:
    """Whether a family of models, by width m, approximates its target stably (iat, Def. 3.5; StableSSM, Def. 2.5).

    The radius of width m is the largest beta up to which E_m(beta) <= max(factor E_m(0), offset), interpolated in log
    beta. The verdict comes from the least-squares slope of log radius against log m and its t interval: "unstable" if
    the whole interval lies below -tolerance, "stable" if it lies above, or if from no width to the next the radius
    falls faster than m^-tolerance; else "inconclusive".

    Args:
        curves: the perturbation curve of each width, at least two of them; four or more decide.
        factor: how many times E_m(0) an error may be, at least 1.
        offset: an error up to which every width counts as unharmed. By default `factor` times the largest E_m(0), one
            level for the whole family: the definition asks limsup_m E_m(beta) to be continuous at 0, and E_m(0) itself
            falls with m, so that a level relative to E_m(0) alone would call every family unstable whose approximation
            improves.
        tolerance: how negative a slope may be. A slope of -0.2 takes 13% off the radius when m doubles.
        confidence: of the interval of the slope.
    """
    if len(curves) < 2:
        raise ArgumentError(f"a verdict needs curves of at least two widths, came {len(curves)}; four or more decide")
    if not factor >= 1 or not tolerance >= 0 or not 0 < confidence < 1:
        raise ArgumentError(
            f"needs factor >= 1, tolerance >= 0, 0 < confidence < 1; {factor=} {tolerance=} {confidence=}"
        )
    widths = np.array(sorted(curves), dtype=np.float64)
    if not (widths > 0).all():
        raise ArgumentError(f"widths must be above 0, came {widths.tolist()}")
    ordered = [curves[m] for m in sorted(curves)]
    centres = np.array([curve.at_zero for curve in ordered])
    common = factor * float(centres.max()) if offset is None else float(offset)
    levels = np.maximum(factor * centres, common)
    found = [stability_radius(curve, level) for curve, level in zip(ordered, levels, strict=True)]
    radii = np.array([radius for radius, _ in found])
    censored = tuple(kind for _, kind in found)
    slope, interval = _slope(widths, radii, confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.diff(np.log(radii)) / np.diff(np.log(widths))
    verdict, why = _judge(centres, steps, censored, slope, interval, tolerance)
    return StabilityVerdict(
        verdict=verdict,
        widths=widths,
        radii=radii,
        censored=censored,
        levels=levels,
        slope=slope,
        interval=interval,
        confidence=confidence,
        crossings=tuple(_crossings(widths, ordered)),
        factor=factor,
        offset=common,
        explanation=why,
    )


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


def _slope(widths: np.ndarray, radii: np.ndarray, confidence: float) -> tuple[float, tuple[float, float]]:
    """Least squares in log-log with Student's interval; infinite for two points, which leave nothing to judge by."""
    if not (radii > 0).all():
        return -math.inf, (-math.inf, math.inf)
    x, y = np.log(widths), np.log(radii)
    x = x - x.mean()
    slope = float(x @ (y - y.mean()) / (x @ x))
    free = len(x) - 2
    if free < 1:
        return slope, (-math.inf, math.inf)
    from scipy.stats import t

    rest = y - y.mean() - slope * x
    width = float(t.ppf(0.5 + confidence / 2, free) * math.sqrt(rest @ rest / free / (x @ x)))
    return slope, (slope - width, slope + width)


def _judge(
    centres: np.ndarray,
    steps: np.ndarray,
    censored: tuple[Censored, ...],
    slope: float,
    interval: tuple[float, float],
    tolerance: float,
) -> tuple[Verdict, str]:
    low, high = interval
    numbers = f"radius ~ m^{slope:.2f}, interval [{low:.2f}, {high:.2f}]"
    beyond = sum(kind == "at least" for kind in censored)
    below = sum(kind == "at most" for kind in censored)
    if beyond:
        numbers += f"; {beyond} of {len(censored)} radii lie beyond the largest that was tested"
    if below:
        numbers += f"; {below} of {len(censored)} radii lie below the smallest that was tested"
    if not np.isfinite(centres).all():
        return "inconclusive", "an unperturbed model is not finite, so that there is nothing to be stable about"
    if below == len(censored):
        return "inconclusive", f"every error is too large at the smallest radius; test smaller ones ({numbers})"
    if (steps > -tolerance).all() and not below:
        return "stable", f"from no width to the next do the radii shrink ({numbers})"
    if high < -tolerance:
        return "unstable", f"the radii shrink as models widen ({numbers})"
    if low > -tolerance and not below:
        return "stable", f"the radii do not shrink as models widen ({numbers})"
    return "inconclusive", f"the slope is not known well enough; add widths or radii ({numbers})"


def _crossings(widths: np.ndarray, curves: list[PerturbationCurve]) -> list[Crossing]:
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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
