"""assess_stability: from the perturbation errors of a family of models to stable, unstable, or neither."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

import numpy as np
from jaxtyping import Float64

from holdfast._arguments import checked
from holdfast._record import Record
from holdfast.errors import ArgumentError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Points
from holdfast.stability.perturbation import PerturbationCurve
from holdfast.stability.perturbation._curve import Censored, Crossing, crossings_of, slope_of, stability_radius

Verdict = Literal["stable", "unstable", "inconclusive", "no approximation"]
Width = TypeVar("Width", int, float)

HARMLESS_SHARE = 0.25  # of the target's norm: an error this large is a model that no longer does its work
MIN_WIDTHS = 4  # widths for a slope whose interval has two degrees of freedom


@dataclass(frozen=True, eq=False, repr=False)
class StabilityVerdict(Record):
    """The verdict on a family of perturbation curves: whether it approximates stably (iat, Def. 3.5).

    Args:
        verdict: "stable", "unstable", "inconclusive", or "no approximation" where fewer than four widths approximate.
        widths: the widths m, (widths,), increasing.
        radii: for each width the largest beta up to which its error stays at or below its level, (widths,), in units of the
            weights.
        upper: the upper end of what is known of each radius: the radius itself, the next tested one where errors jump to
            infinity, inf where it is "at least".
        censored: "at least" ("at most") where that radius lies beyond the largest (below the smallest) that was tested,
            which then stands in its place; "" where it is known.
        centres: E_m(0) of each width, (widths,), in units of the outputs.
        levels: the level of each width: the share `level` of its target's norm.
        approximates: whether E_m(0) is at most half the level; only such widths enter the slope.
        held: whether a horizon that several widths share, and not the target, holds the slowest rate of a width.
        slope: of log radius against log m; NaN where there is no approximation.
        interval: confidence interval of the slope, with what brackets of radii leave open.
        confidence: coverage of that interval, such as 0.95.
        crossings: where the curves of neighbouring widths meet.
        level: the share of the target's norm that an error may be.
        explanation: the reason for the verdict, in words.
    """

    _parts: ClassVar[tuple[type, ...]] = (Crossing,)

    verdict: Verdict
    widths: Float64[np.ndarray, " widths"]
    radii: Float64[np.ndarray, " widths"]
    upper: Float64[np.ndarray, " widths"]
    censored: tuple[Censored, ...]
    centres: Float64[np.ndarray, " widths"]
    levels: Float64[np.ndarray, " widths"]
    approximates: tuple[bool, ...]
    held: tuple[bool, ...]
    slope: float
    interval: tuple[float, float]
    confidence: float
    crossings: tuple[Crossing, ...]
    level: float
    explanation: str

    @property
    def failed(self) -> list[float]:
        """The widths that do not approximate the target."""
        return self.widths[~np.array(self.approximates)].tolist()

    def summary(self) -> str:
        """A line: the verdict and its reason."""
        return f"{self.verdict}: {self.explanation}"

    def figure(self) -> Figure:
        """Radius over width, those of widths that do not approximate apart, with the line of the slope."""
        close = np.array(self.approximates)
        layers: list[Layer] = []
        for label, chosen in (("stability radius", close), ("does not approximate", ~close)):
            if chosen.any():
                layers.append(Points(label, self.widths[chosen], self.radii[chosen]))
        if math.isfinite(self.slope):
            m, radii = self.widths[close], np.log(self.radii[close])
            line = np.exp(radii.mean() + self.slope * (np.log(m) - np.log(m).mean()))
            layers.append(Line(f"slope {self.slope:.2f}", m, line, dash="dash"))
        axes = Axis("width m", log=True), Axis("radius", log=True)
        return Figure(
            "verdict", f"Radius by width, {self.summary()}.", [Panel(f"Verdict: {self.verdict}", *axes, layers)]
        )


@checked
def assess_stability(
    curves: Mapping[Width, PerturbationCurve],
    target_norm: float | None = None,
    level: float = HARMLESS_SHARE,
    *,
    tolerance: float = 0.2,
    confidence: float = 0.95,
) -> StabilityVerdict:
    """Whether a family of models, by width m, approximates its target stably (iat, Def. 3.5; StableSSM, Def. 2.5).

    An error is harmless up to `level` times the norm of the target. A width approximates if E_m(0) is at most half of
    that; with fewer than four such widths the verdict is "no approximation". The radius of a width is the largest beta
    up to which E_m(beta) is harmless, interpolated in log beta; where errors jump to infinity it is known to a bracket.
    With the least-squares slope of log radius against log m and its t interval, widened by these brackets, the verdict
    is "unstable" if the whole interval lies below -tolerance, "stable" if it lies above, else "inconclusive".
    Inconclusive is also a slope that radii outside of the tested ones could turn over, and a "stable" that the fixed
    horizon of the fits brings about.

    Args:
        curves: the perturbation curve of each width.
        target_norm: norm of the target in the metric of the curves, which is the error of a model that gives 0. None
            takes what the curves carry; curves built by hand carry none.
        level: the share of the target's norm up to which an error is harmless, between 0 and 1.
        tolerance: how negative a slope may be. A slope of -0.2 takes 13% off the radius when m doubles.
        confidence: of the interval of the slope.

    Returns:
        a StabilityVerdict: `verdict`, the radius of each width, the slope and its interval, and why.

    Raises:
        ArgumentError: curves without a target norm, or with different metrics.

    Example:
        >>> import holdfast
        >>> rho, radii = holdfast.laws.PowerLaw(1.5), [1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0]
        >>> sums = {m: holdfast.fit_exponential_sum(rho, order=m, horizon=m**2) for m in (8, 12, 16, 24)}
        >>> curves = {m: holdfast.kernel_perturbation_error(s, rho, radii, parameterization="exp") for m, s in sums.items()}
        >>> holdfast.assess_stability(curves).verdict
        'stable'
    """
    _check_shares(level, tolerance, confidence)
    widths, ordered = _ordered(curves)
    levels = level * np.array([_norm(curve, target_norm) for curve in ordered])
    centres = np.array([curve.at_zero for curve in ordered])
    known = [stability_radius(curve, highest) for curve, highest in zip(ordered, levels.tolist(), strict=True)]
    radii, upper = np.array([radius.value for radius in known]), np.array([radius.upper for radius in known])
    censored: tuple[Censored, ...] = tuple(radius.censored for radius in known)
    # half of the level: above it the radius would measure the fit and not its stability
    close = centres <= levels / 2
    held = _held([curve.held_by_horizon for curve in ordered])
    slope, interval = math.nan, (math.nan, math.nan)
    if close.sum() < MIN_WIDTHS:
        verdict, why = _too_few(close, level)
    else:
        slope, interval = slope_of(widths[close], radii[close], confidence, upper[close])
        sides = _open_sides(widths[close], [kind for kind, kept in zip(censored, close, strict=True) if kept])
        verdict, why = _judge(slope, interval, sides, tolerance, held=widths[close & held])
    # said whatever the verdict is: a reader should see which widths it rests on
    remarks: list[str] = _remarks(widths, level * centres / levels, close, censored)
    return StabilityVerdict(
        verdict=verdict,
        widths=widths,
        radii=radii,
        upper=upper,
        censored=censored,
        centres=centres,
        levels=levels,
        approximates=tuple(close.tolist()),
        held=tuple(held.tolist()),
        slope=slope,
        interval=interval,
        confidence=confidence,
        crossings=tuple(crossings_of(widths, ordered)),
        level=level,
        explanation="; ".join([why, *remarks]),
    )


def _check_shares(level: float, tolerance: float, confidence: float) -> None:
    if not 0 < level < 1 or not tolerance >= 0 or not 0 < confidence < 1:
        raise ArgumentError(
            f"expected 0 < level < 1, tolerance >= 0 and 0 < confidence < 1, got {level=}, {tolerance=}, {confidence=}"
        )


def _too_few(close: np.ndarray, level: float) -> tuple[Verdict, str]:
    return "no approximation", (
        f"{close.sum()} of {len(close)} widths approximate the target, with an error of at most {level / 2:.3g} of its norm, "
        f"and {MIN_WIDTHS} are needed"
    )


def _ordered(curves: Mapping[Width, PerturbationCurve]) -> tuple[np.ndarray, list[PerturbationCurve]]:
    if not curves:
        raise ArgumentError(f"a verdict needs the curves of at least {MIN_WIDTHS} widths, got none")
    widths = np.array(sorted(curves), dtype=np.float64)
    if not (widths > 0).all():
        raise ArgumentError(f"widths must be above 0, got {widths.tolist()}")
    ordered = [curves[m] for m in sorted(curves)]
    if not all(curve.radii[-1] > 0 for curve in ordered):
        raise ArgumentError("every curve must have a radius above 0, got one measured at 0 only")
    return widths, ordered


def _norm(curve: PerturbationCurve, given: float | None) -> float:
    norm = curve.target_norm if given is None else given
    if norm is None:
        raise ArgumentError(
            "target_norm is needed for curves that do not store it, since level is a share of the target's norm; pass "
            "target_norm=, the error of a model whose output is 0"
        )
    if not (math.isfinite(norm) and norm > 0):
        raise ArgumentError(f"target_norm, the norm of the target, must be finite and above 0; got {norm!r}")
    return float(norm)


def _held(horizons: list[float | None]) -> np.ndarray:
    """The widths whose slowest rate is held by a horizon that holds another's too; one that grows with m holds nothing."""
    return np.array([h is not None and horizons.count(h) > 1 for h in horizons])


def _open_sides(widths: np.ndarray, censored: list[Censored]) -> dict[Verdict, str]:
    """What to test, for each verdict that the censored radii could turn over if they were known."""
    # radii of widths above the mean pull the slope up as they grow, those below pull it down
    wide = np.log(widths) > np.log(widths).mean()
    larger, smaller = (np.array([kind == name for kind in censored]) for name in ("at least", "at most"))
    sides: dict[Verdict, str] = {}
    for verdict, loses, gains in (("stable", ~wide, wide), ("unstable", wide, ~wide)):
        wanted = [name for name, open_ in (("larger", larger & loses), ("smaller", smaller & gains)) if open_.any()]
        if wanted:
            sides[verdict] = " and ".join(wanted)  # type: ignore[index]
    return sides


def _judge(
    slope: float,
    interval: tuple[float, float],
    sides: Mapping[Verdict, str],
    tolerance: float,
    held: np.ndarray,
) -> tuple[Verdict, str]:
    low, high = interval
    numbers = f"radius ~ m^{slope:.2f}, interval [{low:.2f}, {high:.2f}]"
    verdict: Verdict = "unstable" if high < -tolerance else "stable" if low > -tolerance else "inconclusive"
    if verdict == "inconclusive":
        return verdict, f"the slope is not known well enough; add widths or radii ({numbers})"
    if verdict in sides:
        return (
            "inconclusive",
            f"radii outside of the tested ones could turn the slope; test {sides[verdict]} ones ({numbers})",
        )
    # a fixed horizon holds the slowest rate, and with it the radius, whatever f is
    if verdict == "stable" and len(held):
        return "inconclusive", (
            f"the horizon of the fit holds the slowest rate of m = {_listed(held)}, and a fixed horizon makes every "
            f"family look stable; let it grow with m ({numbers})"
        )
    how = "shrink" if verdict == "unstable" else "do not shrink"
    return verdict, f"the radii {how} as models widen ({numbers})"


def _remarks(widths: np.ndarray, shares: np.ndarray, close: np.ndarray, censored: tuple[Censored, ...]) -> list[str]:
    """Which widths miss the target, by which share of its norm, and how many radii of the others are only bounds."""
    remarks = []
    if not close.all():
        missed = ", ".join(f"m = {m:g} by {share:.2g}" for m, share in zip(widths[~close], shares[~close], strict=True))
        remarks.append(f"these miss too large a share of the target's norm without any perturbation: {missed}")
    used = [kind for kind, kept in zip(censored, close, strict=True) if kept]
    for kind, where in (("at least", "beyond the largest"), ("at most", "below the smallest")):
        if kind in used:
            remarks.append(f"{used.count(kind)} of {len(used)} radii lie {where} that was tested")
    return remarks


def _listed(widths: np.ndarray) -> str:
    return ", ".join(f"{m:g}" for m in widths)
