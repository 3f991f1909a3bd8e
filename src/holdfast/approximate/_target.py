"""What is to be approximated: a decay law, a function of time, or samples, brought to one form and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.laws import AbstractLaw

# `rho` as a user gives it
KernelLike = AbstractLaw | Callable[..., Any] | np.ndarray | Tensor | Sequence[float]
Times = Float64[np.ndarray, " time"]

_SPACING_TOLERANCE = 1e-6  # relative: times that were written with 7 digits count as equally spaced


@dataclass(frozen=True, eq=False)
class Target:
    """A kernel rho(t) on [0, end]: `function` where it can be evaluated anywhere, `time` and `values` where sampled.

    `endless`: what comes after `end` counts too, by the exact tail of `law`.
    """

    name: str
    end: float
    law: AbstractLaw | None = None
    function: Callable[[np.ndarray], np.ndarray] | None = None
    time: Times | None = None
    values: Times | None = None
    endless: bool = False

    @property
    def sampled(self) -> bool:
        """Whether only samples are known."""
        return self.function is None

    @property
    def fastest(self) -> float:
        """A rate that resolves the beginning of the kernel: ten times its relative slope at 0, and ten over its half-time.

        The second counts for kernels that begin flat. For samples ten over their spacing (a tenth of the gaps are
        smaller), and not so fast that the mode is e^-30 at the first sample.
        """
        if self.time is not None and self.values is not None:
            spacing = float(np.quantile(np.diff(self.time), 0.1))
            return min(10 / spacing, 30 / max(float(self.time[0]), 1e-300))
        step = 1e-4 * min(1.0, self.end)
        first, second = self(np.array([0.0, step]))
        scale = max(abs(first), abs(second), 1e-300)
        slope = abs(first - second) / step / scale
        return max(10 * slope, 10 / self.time_of(0.5))

    def time_of(self, share: float) -> float:
        """The time up to which that share of the kernel's L1 norm on [0, end] lies, to a few percent."""
        assert self.function is not None
        t = _spread_times(self.end)
        steps = np.abs(self(t))
        mass = np.cumsum((steps[1:] + steps[:-1]) / 2 * np.diff(t))
        return float(t[1 + int(np.searchsorted(mass, share * mass[-1]))])

    def rest(self, t: float) -> float:
        """The integral of |rho| over [t, inf) where that counts, else 0."""
        return float(self.law.tail_norm(t)) if self.law is not None and self.endless else 0.0

    @property
    def kinks(self) -> np.ndarray:
        """Times around which the kernel jumps or bends: both sides of the end of a law that has one, where known."""
        support = getattr(self.law, "support", None)
        if support is None or support > self.end:
            return np.empty(0)
        return np.array([np.nextafter(support, 0.0), support])

    @property
    def frequency(self) -> float:
        """Highest angular frequency that is known of; 0 for a kernel that does not oscillate."""
        return float(getattr(self.law, "frequency", 0.0))

    @property
    def oscillates_until(self) -> float:
        """The time from which less than 1e-14 of an oscillating law is left; 0 for one that does not oscillate."""
        if self.law is None or self.frequency == 0 or not self.law.integrable:
            return 0.0
        t = 1.0
        while float(self.law.tail_norm(t)) > 1e-14 * self.law.norm:
            t *= 1.5
        return t

    def __call__(self, t: np.ndarray) -> np.ndarray:
        assert self.function is not None
        return self.function(t)

    @property
    def step(self) -> float:
        """The spacing of the samples; refuses samples that are not equally spaced."""
        assert self.time is not None
        steps = np.diff(self.time)
        mean = float(steps.mean()) if len(steps) else 1.0
        if len(steps) and float(np.abs(steps - mean).max()) > _SPACING_TOLERANCE * mean:
            raise ArgumentError(
                f"expected equally spaced samples, got steps from {steps.min():g} to {steps.max():g}; interpolate them, or "
                "use method='nonnegative', 'least_squares' or 'nonlinear', which take any times"
            )
        return mean


def _spread_times(end: float) -> np.ndarray:
    last = min(end, 1e12)  # a horizon beyond would leave no points where kernels live
    return np.concatenate([[0.0], np.geomspace(1e-12 * last, last, 1000)])


def as_target(rho: KernelLike, *, horizon: float, time: Any = None, dt: float | None = None) -> Target:
    """`rho` as a Target; samples must be finite and in order, and an infinite horizon takes an integrable law.

    A law that is not integrable, and a function, end with the horizon.
    """
    if isinstance(rho, AbstractLaw):
        _no_times("a decay law", time)
        if not rho.integrable and not math.isfinite(horizon):
            raise ArgumentError(
                f"expected a law with a finite L1 norm, got {rho.name}, which no sum of decaying exponentials "
                "approximates over all times; set a finite horizon"
            )
        whole = rho.integrable
        return Target(name=rho.name, end=horizon, law=rho, function=lambda t: np.asarray(rho(t)), endless=whole)
    if callable(rho):
        _no_times("a function", time)
        if not math.isfinite(horizon):
            raise ArgumentError("rho given as a function needs a finite horizon, got none; set horizon")
        target = Target(name=getattr(rho, "__name__", "rho"), end=horizon, function=_vectorised(rho))
        if not np.any(target(_spread_times(target.end))):
            raise ArgumentError(f"{target.name} is 0 up to t = {target.end:g}; give a kernel that is not 0 everywhere")
        return target
    return _from_samples(rho, time, dt)


def _no_times(what: str, time: Any) -> None:
    if time is not None:
        raise ArgumentError(f"time is used only when rho is samples, got {what}; leave time out")


def _vectorised(rho: Callable[..., Any]) -> Callable[[np.ndarray], np.ndarray]:
    def evaluate(t: np.ndarray) -> np.ndarray:
        try:
            values = np.asarray(rho(t), dtype=np.float64)
        except TypeError as error:
            raise ArgumentError(f"rho must map a numpy array of times to as many values: {error}") from error
        if values.shape != t.shape:
            raise ShapeError(
                f"rho must map an array of times to as many values, got shape {values.shape} for times of shape {t.shape}"
            )
        if not np.isfinite(values).all():
            first = t.ravel()[int(np.flatnonzero(~np.isfinite(values.ravel()))[0])]
            raise ArgumentError(
                f"rho must be finite for every t from 0 to the horizon, got NaN or infinity at t = {first:g}"
            )
        return values

    return evaluate


def _from_samples(rho: Any, time: Any, dt: float | None) -> Target:
    values = _array(rho, "rho")
    if time is not None and dt is not None:
        raise ArgumentError("samples take time or dt, got both; leave one out")
    if dt is not None and not (math.isfinite(dt) and dt > 0):
        raise ArgumentError(f"dt must be a finite number above 0, got {dt!r}")
    times = np.arange(len(values)) * (dt or 1.0) if time is None else _array(time, "time")
    if times.shape != values.shape:
        raise ShapeError(
            f"expected one time for each sample, got times of shape {times.shape} for samples of shape {values.shape}"
        )
    if len(values) < 2:
        raise ArgumentError(f"rho must have at least 2 samples, got {len(values)}")
    if times[0] < 0 or not (np.diff(times) > 0).all():
        raise ArgumentError(
            f"time must start at 0 or later and increase, got {times[:5]}...; sort the samples and drop repeated times"
        )
    if times[0] > 10 * (times[-1] - times[0]):
        raise ArgumentError(
            f"time must begin near 0, got samples from t = {times[0]:g} that span {times[-1] - times[0]:g}; count time "
            "from the first sample"
        )
    if not np.any(values):
        raise ArgumentError("every sample of rho is 0; give a kernel that is not 0 everywhere")
    return Target(name=f"{len(values)} samples", end=float(times[-1]), time=times, values=values)


def _array(given: Any, name: str) -> np.ndarray:
    array = np.asarray(given.tolist() if isinstance(given, Tensor) else given)  # numpy knows no bfloat16
    if array.dtype.kind not in "fiu":
        raise DtypeError(f"{name} must be real numbers (or a law or a function), got {array.dtype}")
    if array.ndim != 1:
        raise ShapeError(f"{name} must have one dimension, got shape {array.shape}")
    values = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ArgumentError(
            f"{name} must be finite, got {len(bad)} values that are NaN or infinite, the first at index {bad[0]}; fill or "
            "remove them"
        )
    return values
