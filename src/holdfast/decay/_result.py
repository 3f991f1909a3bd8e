"""DecayFit: the law of a memory curve, with its constant, its interval and how sure it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Float64

from holdfast._arguments import checked
from holdfast._codec import plain
from holdfast._record import Record
from holdfast.errors import ArgumentError, HoldfastError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Rule
from holdfast.memory._confirming import is_gone

Law = Literal["exponential", "polynomial", "finite", "periodic", "non-decaying", "retrieval", "zero", "undecided"]
REMAINING_SHARE = 0.01  # the share that is left at the horizon


class UndecidedError(HoldfastError, ValueError):
    """A question that the measured part of a curve does not answer; the text says what to measure instead."""


@dataclass(frozen=True)
class AsymptoticLaw:
    """The decay law for t -> inf that the eigenvalues of a linear recurrence imply.

    Args:
        law: the law of its slowest mode.
        rate: the rate of that mode, per unit of time.
        slowest: its eigenvalue.
    """

    law: Law
    rate: float
    slowest: complex


@dataclass(frozen=True)
class Return:
    """One return of the effect of an input.

    Args:
        delay: time from the first peak of the effect to the peak of the return, in the units of the curve.
        size: of that peak, relative to the first one.
    """

    delay: float
    size: float


@dataclass(frozen=True, eq=False, repr=False)
class DecayFit(Record):
    """The law of a curve over `window`, by the criterion described at `fit_decay`.

    Args:
        law: "exponential", "polynomial", "finite", "periodic", "non-decaying", "retrieval" (the effect returns after a
            pause: no law of decay), "zero" or "undecided".
        status: "decided" or "undecided".
        explanation: the reason, in words.
        window: first and last time of the part that was judged, in the units of `time`.
        margin: how far inside its criterion the verdict lies: in standard errors (exponential, finite by shape), as the
            root of the chi^2 ratio to three exponentials (polynomial), as a multiple of the limit (the others).
        rate: of exponential decay, per unit of `time`; None for other laws, as the next three.
        exponent: of polynomial decay, without a unit.
        support: time at which a finite curve ends, in the units of `time`.
        period: of a periodic curve, in the units of `time`.
        interval: the 95% interval of that constant, in its unit.
        noise: level below which the curve is rounding noise, in the units of `envelope`.
        asymptotic: the law for t -> inf that known eigenvalues imply; None without them.
        time: the times of the curve, (times,), in steps times dt.
        envelope: sup of the curve over all later times, at each time, (times,).
        offset: of a polynomial law A (t + offset)^-exponent, in the units of `time`.
        returns: of a retrieval, each return of the effect in the order of time; empty for every other law.
    """

    _parts: ClassVar[tuple[type, ...]] = (AsymptoticLaw, Return)

    law: Law
    status: Literal["decided", "undecided"]
    explanation: str
    window: tuple[float, float]
    margin: float = 0.0
    rate: float | None = None
    exponent: float | None = None
    support: float | None = None
    period: float | None = None
    interval: tuple[float, float] | None = None
    noise: float = 0.0
    asymptotic: AsymptoticLaw | None = None
    time: Float64[np.ndarray, " time"] = field(default_factory=lambda: np.zeros(1))
    envelope: Float64[np.ndarray, " time"] = field(default_factory=lambda: np.zeros(1))
    offset: float = 0.0
    returns: tuple[Return, ...] = ()

    @property
    def largest_return(self) -> Return | None:
        """The return of the largest size; None where the effect does not come back."""
        return max(self.returns, key=lambda one: one.size, default=None)

    @checked
    def horizon(self, fraction: float = 0.01) -> float:
        """The time from which less than `fraction` of the curve's first envelope value is ever left.

        Read off the envelope where the measured part shows it, else extended by the law; inf where the memory does not
        decay. UndecidedError where neither can tell.

        Args:
            fraction: between 0 and 1.
        """
        if not 0 < fraction < 1:
            raise ArgumentError(f"fraction must lie between 0 and 1, got {fraction}")
        if self.law == "zero":
            return float(self.time[0])
        if not np.isfinite(self.envelope).all():
            raise UndecidedError(
                "expected a finite curve, got NaN or infinity: the model diverged; measure it on smaller inputs"
            )
        if self.envelope[0] <= self.noise:
            raise UndecidedError(f"no memory is left to take a fraction of: {self.explanation}")
        wanted = fraction * float(self.envelope[0])
        below = np.flatnonzero(self.envelope <= max(wanted, 0.0))
        last = self.window[1]
        if len(below) and (self.time[below[0]] <= last or wanted > 8 * self.noise):
            return float(self.time[below[0]])
        if self.law in ("non-decaying", "periodic"):
            return math.inf
        if self.law == "finite" and self.support is not None:
            return self.support
        at_last = float(self.envelope[np.searchsorted(self.time, last)])
        e_folds = math.log(max(at_last, 1e-300) / wanted)
        if self.law == "exponential" and self.rate is not None:
            return last + e_folds / self.rate
        if self.law == "polynomial" and self.exponent is not None:
            return (last + self.offset) * math.exp(e_folds / self.exponent) - self.offset
        raise UndecidedError(
            f"a share of {float(self.envelope[-1] / self.envelope[0]):.2g} of the memory is left at the last time "
            f"{self.time[-1]:g}, and {'the curve rises again' if self.returns else 'the law of decay is undecided'}; "
            "measure a longer horizon"
        )

    @property
    def constant(self) -> tuple[str, float] | None:
        """Name and value of the number that the law has: rate, exponent, support, period or delay; None without one."""
        if self.largest_return is not None:
            return "delay", self.largest_return.delay
        named = {"exponential": "rate", "polynomial": "exponent", "finite": "support", "periodic": "period"}
        value = getattr(self, named[self.law]) if self.law in named else None
        return None if value is None else (named[self.law], float(value))

    def summary(self) -> str:
        """A line: the law with its number and interval, or why it is undecided."""
        text = self.law if self.constant is None else f"{self.law}, {self.constant[0]} {self.constant[1]:.4g}"
        if self.constant is not None and self.interval is not None:
            text += f" in [{self.interval[0]:.4g}, {self.interval[1]:.4g}]"
        return f"{text}, window {self.window[0]:g} to {self.window[1]:g}: {self.explanation}"

    def figure(self) -> Figure:
        """The envelope over t, the law through the part that was judged, and the noise."""
        layers: list[Layer] = [Line("envelope of M(t)", self.time, self.envelope)]
        first, last = self.window
        inside = (self.time >= first) & (self.time <= last)
        if self.law in ("exponential", "polynomial") and self.constant is not None and inside.any():
            t, rate = self.time[inside], self.constant[1]
            e_folds = (
                rate * (t - t[0])
                if self.law == "exponential"
                else rate * np.log((t + self.offset) / (t[0] + self.offset))
            )
            label = f"{self.law}, {self.constant[0]} {rate:.3g}"
            layers.append(Line(label, t, self.envelope[inside][0] * np.exp(-e_folds), dash="dash"))
        if (back := self.largest_return) is not None:
            layers.append(Rule(f"returns after {back.delay:g} at {back.size:.2g}", x=first + back.delay))
        if self.noise > 0:
            layers.append(Rule("noise", y=self.noise))
        axes = Axis("t"), Axis("envelope", log=True)
        return Figure("decay", f"Decay of memory: {self.summary()}.", [Panel(f"Decay: {self.law}", *axes, layers)])

    def to_dict(self) -> dict[str, Any]:
        """Everything but the arrays, for JSON; an infinite number becomes None."""
        names = (
            "law",
            "status",
            "explanation",
            "window",
            "margin",
            "rate",
            "exponent",
            "support",
            "period",
            "interval",
        )
        shown = {name: getattr(self, name) for name in (*names, "noise", "returns")}
        if self.asymptotic is not None:
            shown["asymptotic"] = {"law": self.asymptotic.law, "rate": self.asymptotic.rate}
        return plain(shown, exact=False)


@dataclass(frozen=True)
class Reach:
    """How far a memory reaches: from `time` on less than 1% of it is left.

    Args:
        time: inf where it does not fade, None where it cannot be determined.
        measured: whether the curve was followed that far; otherwise its law was extended.
        words: what to say instead where there is no time.
    """

    time: float | None
    measured: bool
    words: str = ""


def reach_of(fit: DecayFit) -> Reach:
    """The 1% horizon of a fit, whatever its law, with how it is known.

    Args:
        fit: of a memory curve.
    """
    try:
        time = fit.horizon(REMAINING_SHARE)
    except UndecidedError as error:
        return Reach(None, False, str(error))
    return Reach(time, math.isfinite(time) and time <= float(fit.time[-1]))


def is_confirmed(fit: DecayFit) -> bool:
    """Whether the 1% horizon of a fit was seen, and does not lie at a zero of an oscillation at the end of the curve.

    Args:
        fit: of a memory curve.
    """
    reach = reach_of(fit)
    if not reach.measured or reach.time is None:
        return False
    return is_gone(reach.time, float(fit.time[-1]), decided=fit.status == "decided")
