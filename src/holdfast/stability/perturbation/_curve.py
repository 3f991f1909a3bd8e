"""PerturbationCurve: errors on a grid of radii; the radius of one curve, and what those of several widths share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast._codec import plain
from holdfast._readers import describe
from holdfast._record import Record
from holdfast.errors import ArgumentError, ShapeError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule

Censored = Literal["", "at least", "at most"]


@checked_fields
@dataclass(frozen=True, eq=False, repr=False)
class PerturbationCurve(Record):
    """E(beta) on a grid of radii ("Inverse Approximation Theory", Def. 3.4; "StableSSM", Def. 2.4).

    Args:
        radii: the sizes beta of the weight changes, (radii,), increasing, >= 0, in units of the weights.
        errors: E(beta), (radii,), in units of the outputs, +inf where the perturbed model is not finite.
        centre: E(0), the error of the unperturbed model, where it is known.
        draws: errors of the random perturbations, (radii, draws).
        metric: norm of the error that was asked for.
        norm: norm that measures the perturbations.
        ball: where random perturbations lie, "ball" or "sphere".
        search: how the sup was searched: "random", "adversarial" or "modes".
        scope: paths of the weights that moved.
        method: how perturbed models were run.
        reason: why that method was chosen.
        running_maximum: whether each error is the largest of those at smaller radii too.
        target_norm: norm of the target in the same metric, the error of a model that gives 0; None where it is not known.
        held_by_horizon: the horizon of the fit that was perturbed, where its slowest rate is as slow as that allows;
            None where the target holds it, or nothing is known.
        upper: what no perturbation exceeds, at every radius, where that is known; E(beta) then lies between `errors` and it.
    """

    radii: Float64[np.ndarray, " radii"]
    errors: Float64[np.ndarray, " radii"]
    centre: float | None = None
    draws: Float64[np.ndarray, "radii draws"] | None = None
    metric: str = "given"
    norm: str = "given"
    ball: str = "given"
    search: str = "given"
    scope: tuple[str, ...] = ()
    method: str = "given"
    reason: str = ""
    running_maximum: bool = False
    target_norm: float | None = None
    held_by_horizon: float | None = None
    upper: Float64[np.ndarray, " radii"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "radii", as_radii(self.radii))
        for name in ("errors", "draws", "upper"):
            value = getattr(self, name)
            if value is not None:
                array = _array(value)
                # a NaN is a model that broke: dropping it would make the curve look better than it is
                object.__setattr__(self, name, np.where(np.isfinite(array), array, np.inf))
        if self.errors.shape != self.radii.shape:
            raise ShapeError(
                f"expected one error for each radius, got errors of shape {self.errors.shape} and radii of shape "
                f"{self.radii.shape}"
            )
        if (self.errors < 0).any():
            raise ArgumentError(f"errors must be >= 0, got {float(self.errors.min())}")

    @property
    def at_zero(self) -> float:
        """E(0): the centre's error where it is known, else that of the smallest radius."""
        return float(self.errors[0]) if self.centre is None else self.centre

    @property
    def exact(self) -> np.ndarray:
        """Where the error is known: the upper bound is met, to 1e-6 of it, or the error is infinite."""
        if self.upper is None:
            return np.isinf(self.errors)
        return np.isinf(self.errors) | (self.errors >= self.upper * (1 - 1e-6))

    def summary(self) -> str:
        """A line: errors at 0 and at both ends of the radii, and how they were found."""
        known = "" if self.centre is None else f"error {self.centre:.3g} unperturbed, "
        return (
            f"{known}{self.errors[0]:.3g} at radius {self.radii[0]:.3g} to {self.errors[-1]:.3g} at {self.radii[-1]:.3g}, "
            f"{len(self.radii)} radii, metric {self.metric}, search {self.search}{self._bounded()}"
        )

    def _bounded(self) -> str:
        if self.upper is None:
            return "" if self.search == "given" else ", lower bounds"
        if self.exact.all():
            return ", exact"
        return f", lower bounds ({int(self.exact.sum())} exact), at most {self.upper[-1]:.3g} at the largest"

    def figure(self) -> Figure:
        """E(beta) over beta, between the smallest and the largest of the draws, beside E(0) and the target's norm."""
        low = None if self.draws is None else self.draws.min(axis=1)
        high = None if self.draws is None else self.draws.max(axis=1)
        layers: list[Layer] = [Line("E(beta)", self.radii, self.errors, low, high, markers=True)]
        for label, value in (("unperturbed", self.centre), ("norm of the target", self.target_norm)):
            if value is not None and value > 0:
                layers.append(Rule(label, y=value))
        axes = Axis("beta, size of the change", log=bool(self.radii[0] > 0)), Axis("error", log=True)
        caption = f"Error against the size of the change of the weights: {self.summary()}."
        return Figure("perturbation", caption, [Panel("Perturbed weights", *axes, layers)])

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, for JSON; infinite errors become None."""
        names = ("metric", "norm", "ball", "search", "method", "reason", "scope", "running_maximum", "centre")
        numbers = ("target_norm", "held_by_horizon", "radii", "errors", "upper")
        return plain({name: getattr(self, name) for name in (*names, *numbers)}, exact=False)


def as_radii(radii: Sequence[float] | np.ndarray | Tensor) -> np.ndarray:
    """The radii as float64; raises unless there is one and they are finite, not negative and increase."""
    try:
        betas = _array(radii)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"radii must be real numbers, got {describe(radii)}") from error
    if betas.ndim != 1 or len(betas) == 0:
        raise ShapeError(f"radii must be a list of numbers, at least one; got shape {betas.shape}")
    if not np.isfinite(betas).all() or (betas < 0).any():
        raise ArgumentError(f"radii must be finite and not negative, got {betas.tolist()}")
    if (np.diff(betas) <= 0).any():
        raise ArgumentError(f"radii must increase; sort them first: got {betas.tolist()}")
    return betas


def _array(values: Sequence[float] | np.ndarray | Tensor) -> np.ndarray:
    return np.array(values.tolist() if isinstance(values, Tensor) else values, dtype=np.float64)


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
    # the first crossing, even where a lower bound falls below the level again: the sup cannot
    above = np.flatnonzero(curve.errors > level)
    if len(above) == 0:
        return Radius(float(curve.radii[-1]), math.inf, "at least")
    first = int(above[0])
    high, after = float(curve.radii[first]), float(curve.errors[first])
    low = float(curve.radii[first - 1]) if first else 0.0
    # log beta has no place for 0: nothing is known between 0 and the first radius
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
    # the slope is leverage @ y: what each radius can move it by
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
        # a change of sign of the gap between two tested radii; equal errors at one of them are no crossing
        for k in range(len(shared) - 1):
            if not (math.isfinite(gap[k]) and gap[k] < 0 < gap[k + 1]) and not gap[k] > 0 > gap[k + 1]:
                continue
            share = gap[k] / (gap[k] - gap[k + 1]) if np.isfinite(gap[k : k + 2]).all() else 0.0
            low = shared[k] if shared[k] > 0 else shared[k + 1]
            crossings.append(Crossing(m, n, float(low * (shared[k + 1] / low) ** share)))
    return crossings
