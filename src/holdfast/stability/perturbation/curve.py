"""PerturbationCurve: errors on a grid of radii."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast._readers import describe
from holdfast._record import Record
from holdfast.errors import ArgumentError, ShapeError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule


@checked_fields
@dataclass(frozen=True, eq=False, repr=False)
class PerturbationCurve(Record):
    """E(beta) on a grid of radii ("Inverse Approximation Theory", Def. 3.4; "StableSSM", Def. 2.4).

    Args:
        radii: the beta, increasing and not negative.
        errors: E(beta), +inf where the perturbed model is not finite.
        centre: E(0), the error of the unperturbed model, where it is known.
        draws: errors of the random perturbations, (radii, draws).
        metric: norm of the error that was asked for.
        norm: norm of the perturbations.
        ball: where random perturbations lie, "ball" or "sphere".
        search: how the sup was searched.
        scope: paths of the weights that moved.
        method: how perturbed models were run.
        reason: why that method was taken.
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
                f"a curve needs one error for each radius; came {self.errors.shape=} and {self.radii.shape=}"
            )
        if (self.errors < 0).any():
            raise ArgumentError(f"errors are sizes and not negative, came {float(self.errors.min())}")

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

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and lists, for JSON; infinite errors become None."""
        plain: dict[str, Any] = {
            name: getattr(self, name) for name in ("metric", "norm", "ball", "search", "method", "reason")
        }
        plain |= {"scope": list(self.scope), "running_maximum": self.running_maximum}
        for name in ("centre", "target_norm", "held_by_horizon"):
            value = getattr(self, name)
            plain[name] = value if value is None or math.isfinite(value) else None
        plain["radii"] = self.radii.tolist()
        plain["errors"] = [e if math.isfinite(e) else None for e in self.errors.tolist()]
        plain["upper"] = None if self.upper is None else [e if math.isfinite(e) else None for e in self.upper.tolist()]
        return plain


def as_radii(radii: Sequence[float] | np.ndarray | Tensor) -> np.ndarray:
    """The radii as float64; raises unless there is one and they are finite, not negative and increase."""
    try:
        betas = _array(radii)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"radii must be real numbers, came {describe(radii)}") from error
    if betas.ndim != 1 or len(betas) == 0:
        raise ShapeError(f"radii must be a list of numbers, at least one; came shape {betas.shape}")
    if not np.isfinite(betas).all() or (betas < 0).any():
        raise ArgumentError(f"radii must be finite and not negative, came {betas.tolist()}")
    if (np.diff(betas) <= 0).any():
        raise ArgumentError(f"radii must increase; sort them first: came {betas.tolist()}")
    return betas


def _array(values: Sequence[float] | np.ndarray | Tensor) -> np.ndarray:
    return np.array(values.tolist() if isinstance(values, Tensor) else values, dtype=np.float64)
