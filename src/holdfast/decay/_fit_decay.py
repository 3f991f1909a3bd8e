"""fit_decay: which law a memory curve follows, with what constant, and how sure that is.

A curve that falls to next to nothing, stays there and comes back later is no decay but retrieval (`retrieval`). Attention
and delta rules do that: an input is hardly seen for a while and then read in full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Complex, Float
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.decay import _choice as choice
from holdfast.decay._choice import Setting
from holdfast.decay._result import DecayFit, Law, Return
from holdfast.decay._shape import ShapeFit
from holdfast.decay._signal import SIGNAL_TO_NOISE, Noise, Values, envelope, find_noise
from holdfast.decay._spectrum import asymptotic_law
from holdfast.memory import MemoryCurve

CURVE_TESTS = (choice.finite, choice.repeating, choice.irregular, choice.level)
SHAPE_TESTS = (choice.finite_shape, choice.exponential, choice.polynomial)
# What tells retrieval from an oscillation is the stretch between: |cos| is below an eighth of its peaks for 8% of the time,
# a stretch that is quiet for half of the delay is something else. A filter that rings with a quiet pause (an echo with
# feedback, harmonics in phase) comes back at even distances by one factor: an exponential law, which is left to the fits.
QUIET_RATIO = 8.0  # times that the first effect and the return stand above everything between them
MIN_QUIET_STEPS = 6  # values of a pause: white noise of size 1 stays below 1/8 of its peak for that long once in 1e5
MIN_QUIET_SHARE = 0.5  # share of the delay that the pause lasts
MIN_RETURN = 0.05  # smallest return, as a share of the first effect: below that the slow mode of a sum looks alike
MIN_FIRST = 0.01  # smallest first effect, as a share of the largest value: less is a delay, whose law begins later
MAX_RETURNS = 8  # returns of a curve that is not a fluctuation
SPACING_TOLERANCE = 0.05  # relative difference of the distances of a filter that rings
RATIO_TOLERANCE = 0.2  # difference of its log factors


@checked
def fit_decay(
    curve: MemoryCurve,
    *,
    eigenvalues: Float[Tensor, " modes"] | Complex[Tensor, " modes"] | None = None,
    time: Time = "discrete",
) -> DecayFit:
    """The decay law of a memory curve: exponential, polynomial, finite, periodic, non-decaying, zero, or undecided.

    Where the effect of an input comes back after a pause there is no law: the answer is "retrieval", with the delay and
    the size of each return.

    The curve is cut where it sinks into noise: the rounding floor that the curve carries, or a stationary white end, or
    multiples of one rounding unit, or an end that stands still where rounding can hold it. A curve that oscillates in
    its second half too is replaced by its peaks over blocks of several oscillations.
    Then A (1 + kappa r s)^(-1/kappa) is fitted to windows [t1, end], s = t - t1, t1 from the peak to half of the time:
    kappa = 0 is an exponential, 1/p a power law, -1/n a curve that ends. With N the e-folds over the window, z = kappa
    N is the change of the log rate. The criterion, with standard errors scaled by the misfit:

    - exponential: N >= 3 and |z| < 0.12, and with 2.5 standard errors below N/15 (0.2 to 0.33), for some t1;
    - polynomial: z > log 100 by 2.5 standard errors (two decades of time from the law's own origin; 500-fold growth
      where it does not hold from the peak on, 8-fold for the peaks of an oscillating curve), kappa known to 10%,
      residuals as small as the noise, and the best sum of 3 exponentials at least 4 times worse in chi^2;
    - finite: clear signal that stops in one step twice as large as any before, or z < -0.5 with a good fit and nothing
      after its end;
    - non-decaying: level to 1% over the second half, or growing by an e-fold, or fluctuating without a trend;
    - periodic: repeats itself after a lag, shrinking by less than 2% over the whole window;
    - retrieval: between the first peak and a later one of 5% or more the curve stays 8 times below both for half of the
      delay, unless such returns follow each other at even distances by one factor (an echo with feedback, which rings);
    - zero: exactly 0 for more steps than a linear recurrence with known eigenvalues has modes (Cayley-Hamilton).

    Anything else is undecided: so are a curve that its rounding floor hides and one that is 0 so far (a delay may end
    behind the horizon), and so is a sum of exponentials whose slowest rate the window does not resolve. The verdict is
    about the window: a slower mode below the noise or beyond the horizon cannot be seen, and a sum of so many
    exponentials that it equals a power law to within the noise is called polynomial.

    Args:
        curve: what `memory_function` measured, or a MemoryCurve made by hand.
        eigenvalues: those of a linear recurrence (modes,). They settle what happens for t -> inf; see `asymptotic` of
            the result. A curve of a holdfast layer brings them along.
        time: what the eigenvalues belong to: "discrete" for one step, "continuous" for e^{W t}.

    Returns:
        a DecayFit: the law with its constant and 95% interval, or "undecided" with the reason.

    Raises:
        ArgumentError: eigenvalues that are not finite.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.DiagonalSSM(1, 1, eigenvalues=torch.tensor([-0.1]))
        >>> curve = holdfast.memory_function(layer, horizon=100, double=True)
        >>> fit = holdfast.fit_decay(curve)
        >>> fit.law, round(fit.rate, 3)
        ('exponential', 0.1)
    """
    rest = envelope(curve)
    t = curve.time
    peak = float(np.where(np.isfinite(curve.values), curve.values, 0.0).max())
    common: dict[str, Any] = {"time": t, "envelope": rest}
    if eigenvalues is not None:
        common["asymptotic"] = asymptotic_law(eigenvalues, time, dt=curve.dt)
    elif curve.eigenvalues is not None:
        common["asymptotic"] = asymptotic_law(torch.from_numpy(curve.eigenvalues), "discrete", dt=curve.dt)
    whole = (float(t[0]), float(t[-1]))
    if not np.isfinite(curve.values).all():
        return DecayFit(*_not_finite(curve), whole, **common)
    if peak == 0 or (curve.floor is not None and bool((curve.values <= curve.floor).all())):
        modes = eigenvalues if eigenvalues is not None else curve.eigenvalues
        fit = DecayFit(*_nothing(curve, peak, modes), whole, noise=_highest(curve.floor), **common)
    else:
        decision, noise = _decide(t, curve.values / peak, None if curve.floor is None else curve.floor / peak)
        fit = DecayFit(**decision, noise=noise * peak, **common)
    return _with_spectrum(fit) if fit.asymptotic is not None else fit


def _highest(floor: np.ndarray | None) -> float:
    return 0.0 if floor is None else float(floor.max())


def _nothing(curve: MemoryCurve, peak: float, modes: Any) -> tuple[Law, Literal["decided", "undecided"], str]:
    """What a curve without a value above its floor says."""
    last = f"t = {curve.time[-1]:g}"
    if peak > 0:
        text = (
            f"rounding hides it: the largest value is {peak:.2g} and rounding errors reach {_highest(curve.floor):.2g}; "
            "measure in float64 (double=True), or without the constant that makes the output large"
        )
        return "undecided", "undecided", text
    if modes is not None and len(curve.values) > len(modes):
        return "zero", "decided", f"exactly 0 until {last}, longer than {len(modes)} modes can hide anything"
    return (
        "undecided",
        "undecided",
        f"0 until {last}: no response at all, or one behind the horizon; measure a longer one",
    )


def _decide(t: np.ndarray, values: np.ndarray, floor: np.ndarray | None) -> tuple[dict[str, Any], float]:
    s = choice.prepare(t, values, floor)
    decision = choice.growing(s, values) or retrieval(t, values, find_noise(values, floor))
    for test in CURVE_TESTS:
        decision = decision or test(s)
    # tests that need no fit come first: each names what a smooth family cannot describe
    fits: list[ShapeFit] = []
    if decision is None and s.points is not None and len(s.points.t) >= choice.MIN_POINTS:
        fits = choice.shape_fits(s.points)
        for law in SHAPE_TESTS:
            decision = decision or law(s, fits)
    return decision or _undecided(s, fits), s.level


def _undecided(s: Setting, fits: list[ShapeFit]) -> dict[str, Any]:
    window = (float(s.t[0]), float(s.t[max(s.last, 0)]))
    if s.points is None:
        text = "it oscillates too few times before it ends or sinks into the noise"
    elif not fits:
        text = f"only {len(s.points.t)} points stand clear of the noise, or they do not fall"
    else:
        last = choice.loose_fits(s.points, fits)[-1]
        if fits[0].folds < choice.MIN_FOLDS:
            folds = math.floor(100 * fits[0].folds) / 100  # 2.97 is not 3, and must not be written so
            text = f"it falls by {folds:g} e-folds only; an exponential needs {choice.MIN_FOLDS:g} to be reported"
        elif (power := choice.power_like(fits)) is not None:
            text = (
                f"a power law of exponent {1 / power.kappa:.3g} fits while the time grows {math.exp(power.z):.3g}-fold; "
                f"sums of exponentials do that too, it takes {math.exp(choice.MIN_LOG_SPAN):.0f}-fold growth to be named"
            )
        elif abs(last.z) < choice.MAX_RATE_CHANGE:
            text = f"the rate may be steady, but scatters too much to tell (change {last.z:.2g} +- {last.z_error:.2g})"
        else:
            text = (
                f"the rate still {_change(last.z)} over the second half: a sum of exponentials that is not resolved "
                "yet, or no law known here"
            )
    return {"law": "undecided", "status": "undecided", "explanation": text, "window": window}


def _change(z: float) -> str:
    """In words, what a rate does that ends e^-z times as large as it began."""
    if abs(z) > 2.3:
        return f"{'falls' if z > 0 else 'grows'} more than tenfold"
    return f"{'falls' if z > 0 else 'grows'} by {100 * abs(math.expm1(-z)):.0f}%"


def _not_finite(curve: MemoryCurve) -> tuple[Law, Literal["decided", "undecided"], str]:
    first = int(np.argmax(~np.isfinite(curve.values)))
    text = f"the curve is infinite from t = {curve.time[first]:g} on"
    before = curve.values[:first]
    if first >= 16 and before.max() > 0 and choice.growth(before) >= 1:
        return "non-decaying", "decided", f"{text}, after growing by e^{choice.growth(before):.2g}"
    return "undecided", "undecided", f"{text}: the model diverged or returned NaN"


def _with_spectrum(fit: DecayFit) -> DecayFit:
    """Adds to the explanation what the eigenvalues say, where the window did not show it."""
    known = fit.asymptotic
    assert known is not None
    if fit.law in (known.law, "zero"):
        return fit
    text = f"{fit.explanation}; by its eigenvalues it is {known.law} for t -> inf"
    if known.law == "exponential":
        text += f" with rate {known.rate:.3g}, seen from a horizon of {choice.MIN_FOLDS / known.rate:.3g} on"
    return replace(fit, explanation=text)


@dataclass(frozen=True)
class _Burst:
    """A peak between two pauses: its index, and its size."""

    at: int
    size: float


def retrieval(t: Values, values: Values, noise: Noise) -> dict[str, Any] | None:
    """The decision for a curve that comes back after a pause; None for any other.

    Args:
        t: times.
        values: the whole curve, its largest value 1.
        noise: of the curve.
    """
    floor = SIGNAL_TO_NOISE * noise.level
    pauses = _pauses(values, floor)
    bursts = _bursts(values, pauses)
    if not pauses or not _is_pause_long(t, pauses[0], bursts) or _rings(t, bursts, floor):
        return None
    first, later = bursts[0], bursts[1:]
    found = tuple(Return(float(t[b.at] - t[first.at]), b.size / first.size) for b in later)
    told = [one for one in found if one.size >= MIN_RETURN]
    between = float(values[slice(*pauses[0])].max())
    margin = min(first.size, later[0].size) / max(QUIET_RATIO * between, 1e-300)
    # many pauses are heavy-tailed fluctuations, as of a chaotic model
    if not told or first.size < MIN_FIRST or margin < 1 or len(later) > MAX_RETURNS:
        return None
    largest = max(told, key=lambda one: one.size)
    text = (
        f"the effect falls to {between / first.size:.2g} of its first peak and returns after {largest.delay:g} at "
        f"{largest.size:.2g} of it"
    )
    last = max(noise.end, bursts[-1].at)
    return {
        "law": "retrieval",
        "status": "decided",
        "explanation": text,
        "window": (float(t[first.at]), float(t[last])),
        "margin": min(margin, 1e12),
        "returns": tuple(told),
    }


def _pauses(values: Values, floor: float) -> list[tuple[int, int]]:
    """Stretches [first, last) that lie an eighth below what was before them and what comes after, long ones only."""
    before = np.maximum.accumulate(values)
    after = np.maximum.accumulate(values[::-1])[::-1]
    # the lower of both sides is what a pause is held against; a side in the noise holds nothing
    level = np.minimum(before, after)
    quiet = (values * QUIET_RATIO <= level) & (level > floor)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], quiet, [False]]).astype(int)))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    long = [pair for pair in pairs if pair[1] - pair[0] >= MIN_QUIET_STEPS]
    # a pause inside a burst is shorter than the pauses around the burst
    longest = max((b - a for a, b in long), default=0)
    return [(a, b) for a, b in long if b - a >= longest / 4]


def _bursts(values: Values, pauses: list[tuple[int, int]]) -> list[_Burst]:
    edges = [0, *(edge for pause in pauses for edge in pause), len(values)]
    starts, ends = edges[::2], edges[1::2]
    found = []
    for start, end in zip(starts, ends, strict=True):
        if end > start:
            at = start + int(np.argmax(values[start:end]))
            found.append(_Burst(at, float(values[at])))
    return found


def _is_pause_long(t: Values, pause: tuple[int, int], bursts: list[_Burst]) -> bool:
    """Whether the curve is quiet for most of the way from its first peak to the return."""
    if len(bursts) < 2 or bursts[0].at >= pause[0]:
        return False
    delay = float(t[bursts[1].at] - t[bursts[0].at])
    return float(t[pause[1] - 1] - t[pause[0]]) >= MIN_QUIET_SHARE * delay


def _rings(t: Values, bursts: list[_Burst], floor: float) -> bool:
    """Whether the bursts come at even distances by one factor, and none is missing that could be seen."""
    if len(bursts) < 3:
        return False
    times = np.array([t[b.at] for b in bursts])
    logs = np.log([b.size for b in bursts])
    gaps, ratios = np.diff(times), np.diff(logs)
    step = float(t[1] - t[0])
    even = np.ptp(gaps) <= max(SPACING_TOLERANCE * gaps.mean(), 2 * step)
    # a factor near 1 is compared as it is, a small one relative to its log
    steady = np.ptp(ratios) <= RATIO_TOLERANCE * max(1.0, float(np.abs(ratios.mean())))
    if not even or not steady:
        return False
    following = times[-1] + gaps.mean()
    seen = following + step <= t[-1] and math.exp(float(logs[-1] + ratios.mean())) > 2 * floor
    return not seen
