"""The tests that decide the law of a curve; each returns its decision, or None if it does not apply."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.decay._shape import ShapeFit, find_repetition, fit_loosely, fit_shape, imitation_misfit
from holdfast.decay._signal import (
    RELATIVE_ACCURACY,
    SIGNAL_TO_NOISE,
    FitPoints,
    Noise,
    Values,
    find_noise,
    is_rough,
    rough_points,
    smooth_noise,
    smooth_points,
    wiggle,
)

Decision = dict[str, Any]

MIN_FOLDS = 3.0  # e-folds that an exponential must show: over fewer, power laws of exponent 10 and more look the same
MAX_RATE_CHANGE = 0.12  # change of log rate over the window that an exponential may show
MIN_LOG_SPAN = math.log(100.0)  # a power law must hold over two decades of time, counted from its own origin
MIN_LOG_SPAN_LATE = math.log(500.0)  # and longer if not from the start: sums of exponentials are t^-p in the middle
MIN_LOG_SPAN_ROUGH = math.log(8.0)  # of an oscillating curve 60 peaks at even distances are left, which span less
MAX_SCATTER = 2e-3  # relative scatter around a power law that is not one exactly, such as 1/(t(t+1))
MIN_POINTS = 5  # fewer points do not tell three constants and their error
STANDARD_ERRORS = 2.5  # standard errors added before a limit is compared


@dataclass(frozen=True)
class Setting:
    """A curve from its peak on, its noise, and whether it oscillates."""

    t: Values
    v: Values
    noise: Noise
    level: float
    rough: bool
    points: FitPoints | None

    @property
    def last(self) -> int:
        return self.noise.end

    @property
    def even(self) -> bool:
        """Whether the times are evenly spaced, so that a lag in values is a lag in time."""
        gaps = np.diff(self.t)
        return bool(len(gaps) and np.ptp(gaps) <= 1e-6 * gaps.mean())


def prepare(t: Values, values: Values, known: Values | None) -> Setting:
    """Cuts the curve where it first comes near its peak, finds its noise and its points."""
    noise = find_noise(values, known)
    # from the first value within 5% of the peak: an earlier start would fit the rise, a later one lose a flat top
    peak = int(np.argmax(values >= 0.95 * values.max()))
    t, v = t[peak:], values[peak:]
    noise = Noise(noise.level, noise.end - peak, noise.seen)
    signal = v[: noise.end + 1]
    # the last window begins at half of the time: what oscillates before that alone is a transient, which it leaves out
    late = t[: len(signal)] >= (t[0] + t[max(noise.end, 0)]) / 2
    rough = all(is_rough(part, noise.level, noise.seen) for part in (signal, signal[late]))
    level = noise.level
    points = None
    if rough:
        points = rough_points(t[: len(signal)], signal)
    elif len(signal) >= 2:
        positive = signal > 0
        level = max(level, smooth_noise(signal[positive])) if not noise.seen else level
        scatter = wiggle(signal[positive], level)
        # below 2% it may be curvature or noise that was underestimated
        scatter = scatter if scatter > 0.02 else 0.0
        points = smooth_points(t[: len(signal)][positive], signal[positive], level, scatter)
    return Setting(t, v, noise, level, rough, points)


def finite(s: Setting) -> Decision | None:
    """Clear signal that stops: the value after the last is far lower than the decay before it would make it."""
    # fewer values behind the stop do not show that nothing comes back
    rest = len(s.v) - 1 - s.last
    if rest < 4 or s.last < 0:
        return None
    # in logs, since the decay before is judged by its largest single step in logs too
    below = math.log(s.v[s.last] / (SIGNAL_TO_NOISE * s.noise.level))
    recent = s.v[max(s.last - 10, 0) : s.last + 1]
    steps = -np.diff(np.log(np.maximum(recent, s.noise.level)))
    # a curve of one value has no step to compare with: it must stop by more than 2 * 10 e-folds
    before = float(np.abs(steps).max()) if len(steps) else 10.0
    # before: the largest single step so far; the stop must be a step at least twice as large, and e^3
    need = max(2 * before, 3.0)
    if below > need:
        support = float(s.t[s.last + 1])
        text = f"the curve stops: {s.v[s.last]:.3g} at t = {s.t[s.last]:g}, nothing above the noise after it"
        return _decided("finite", text, s, margin=below / need, support=support, interval=(float(s.t[s.last]), support))
    return None


def finite_shape(s: Setting, fits: list[ShapeFit]) -> Decision | None:
    """A curve that falls ever faster, like (1 - t/S)^n, and is gone after S."""
    if len(s.v) - 1 - s.last < 4 or s.points is None or s.points.rough:
        return None
    for fit in fits:
        if fit.z + STANDARD_ERRORS * fit.z_error < -0.5 and fit.misfit < 2 and fit.points >= 8:
            # where (1 + kappa r s) reaches 0: the S of (1 - s/S)^n
            support = fit.start - 1 / (fit.kappa * fit.rate)
            # an end far behind the last clear value is an extrapolation: the curve was not seen to end
            if support <= s.t[s.last] + 0.25 * (s.t[s.last] - s.t[0]) + 1:
                error = (
                    STANDARD_ERRORS
                    * (support - fit.start)
                    * math.hypot(fit.rate_error / fit.rate, fit.kappa_error / fit.kappa)
                )
                low, high = float(s.t[s.last]), max(support + error, float(s.t[s.last]))
                text = f"falls like (1 - t/{support:.4g})^{-1 / fit.kappa:.2g} and is gone after that"
                return _decided("finite", text, s, margin=-fit.z / fit.z_error, support=support, interval=(low, high))
    return None


def level(s: Setting) -> Decision | None:
    """A smooth curve whose second half neither falls nor rises."""
    if s.rough or s.last < len(s.v) - 1 or s.points is None or len(s.v) < 8:
        return None
    # the second half: a curve that falls to a plateau is level there, and a slow exponential is not
    half = s.points.after(float(s.t[0] + s.t[-1]) / 2)
    if len(half.t) < 4:
        return None
    x = (half.t - half.t.mean()) / (half.t[-1] - half.t[0])
    error = np.maximum(half.error, 1e-15)
    weight = 1 / error**2
    # centred by the weights, so that slope and mean are independent and the slope has a variance of its own
    x = x - (weight * x).sum() / weight.sum()
    slope = float((weight * x * half.log_v).sum() / (weight * x * x).sum())
    slope_error = float(1 / np.sqrt((weight * x * x).sum()))
    scatter = half.log_v - (weight * half.log_v).sum() / weight.sum() - slope * x
    misfit = float((weight * scatter**2).sum() / max(len(x) - 2, 1))
    # scatter beyond the noise makes the slope less sure; scatter below it does not make it surer
    slope_error *= math.sqrt(max(misfit, 1.0))
    # no slope that can be seen, and none above 1% that could hide in the error
    if abs(slope) > max(3 * slope_error, 1e-7) or abs(slope) + 3 * slope_error > 0.01:
        return None
    text = f"level at {float(np.exp(half.log_v.mean())):.3g}: changes by {slope:.1e} over its second half"
    return _decided("non-decaying", text, s, margin=0.01 / max(abs(slope) + slope_error, 1e-12))


def repeating(s: Setting) -> Decision | None:
    """A curve that oscillates without shrinking."""
    if s.last < len(s.v) - len(s.v) // 8 - 1 or not s.even:
        return None
    # the second half too: a transient at the start spoils the repetition of the whole
    for part in (s.v, s.v[len(s.v) // 2 :]):
        # what oscillates by less than that is level, and what repeats is its noise
        if len(part) < 24 or part.std() < max(4 * s.noise.level, 1e-6 * part.mean()):
            continue
        repetition = find_repetition(part)
        if repetition is None or repetition.unexplained > 0.1:
            continue
        # shrinking by 1% a lag is much over fifty of them: judged over the whole window
        turns = len(part) / repetition.lag
        change, error = -math.log(max(repetition.gain, 1e-9)) * turns, repetition.gain_error * turns
        if abs(change) + 3 * error < 0.02:
            period = repetition.period * float(s.t[1] - s.t[0])
            text = f"repeats itself after {period:g}, changing by {change:.1e} over the whole window"
            return _decided("periodic", text, s, margin=0.02 / (abs(change) + 3 * error + 1e-12), period=period)
    return None


def irregular(s: Setting) -> Decision | None:
    """A curve that neither repeats itself nor shrinks, as of a chaotic model."""
    half = s.v[len(s.v) // 2 :]
    # ten blocks of ten values: fewer have no maximum that says how the peaks move
    if not s.rough or not s.even or s.last < len(s.v) - len(s.v) // 8 - 1 or len(half) < 100:
        return None
    repetition = find_repetition(half)
    if repetition is not None and repetition.unexplained < 0.3:
        return None
    width = len(half) // 10
    # maxima of blocks, since a fluctuating curve comes near 0 again and again
    tops = np.log(half[-10 * width :].reshape(10, width).max(1))
    x = np.linspace(-0.5, 0.5, 10)
    slope = float(x @ tops / (x @ x))
    scatter = tops - tops.mean() - slope * x
    # 10 blocks less the two constants of the line leave 8 degrees of freedom
    error = math.sqrt(float(scatter @ scatter) / 8 / float(x @ x))
    if abs(slope) + 3 * error > 0.3:
        return None
    text = f"fluctuates without repeating itself; its peaks change by {100 * slope:.1g}% over its second half"
    return _decided("non-decaying", text, s, margin=0.3 / (abs(slope) + 3 * error))


def growing(s: Setting, values: Values) -> Decision | None:
    """A curve that still rises at its end, by an e-fold over its second half."""
    rise = growth(values)
    if rise < 1:
        return None
    return _decided("non-decaying", f"grows by e^{rise:.2g} over its second half", s, margin=rise)


def growth(values: Values) -> float:
    """Log of the rise over the second half, by maxima and by medians; 0 if the largest value is not at the end."""
    half = values[len(values) // 2 :]
    quarter = len(half) // 4
    if quarter < 2 or int(np.argmax(values)) < len(values) - max(len(values) // 20, 1):
        return 0.0
    # maxima and medians must both rise: one spike lifts a maximum alone
    early, late = half[:quarter], half[-quarter:]
    return min(_log_ratio(late.max(), early.max()), _log_ratio(float(np.median(late)), float(np.median(early))))


def windows(points: FitPoints) -> list[FitPoints]:
    """The points of windows that all reach to the end and start ever later, at most at half of the time."""
    first, last = float(points.t[0]), float(points.t[-1])
    parts: list[FitPoints] = []
    # close together at the start, where transients end, and never past the half, which the law must hold on
    for share in (0.0, 1 / 1024, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2):
        part = points.after(first + share * (last - first))
        if len(part.t) >= MIN_POINTS and (not parts or len(part.t) < len(parts[-1].t)):
            parts.append(part)
    return parts


def shape_fits(points: FitPoints) -> list[ShapeFit]:
    """The fit of each window, by the noise of each point."""
    fits = (fit_shape(part.t, part.log_v, part.error, scaled=not part.rough) for part in windows(points))
    return [fit for fit in fits if fit is not None]


def loose_fits(points: FitPoints, fits: list[ShapeFit]) -> list[ShapeFit]:
    """The same fits, but where the misfit shows that the family does not hold exactly, with points that count alike."""
    loose = []
    by_start = {fit.start: fit for fit in fits}
    for part in windows(points):
        fit = by_start.get(float(part.t[0]))
        if not points.rough and (fit is None or fit.misfit > 2):
            fit = fit_loosely(part.t, part.log_v, part.error)
        if fit is not None:
            loose.append(fit)
    return loose


def exponential(s: Setting, fits: list[ShapeFit]) -> Decision | None:
    """A rate that stays within MAX_RATE_CHANGE over at least MIN_FOLDS e-folds and the second half of the window.

    With 2.5 standard errors it may reach 1/15 a fold, 0.2 to 0.33: then power laws of exponent 15 and less are excluded
    anyway, and e^{-sqrt t}, whose log rate falls by 0.35 whenever the time doubles.
    """
    if s.points is None:
        return None
    steady = [fit for fit in loose_fits(s.points, fits) if fit.folds >= MIN_FOLDS and _is_steady(fit)]
    if not steady:
        return None
    # the earliest steady window shows over how many e-folds the rate holds, the last is nearest to t -> inf
    first, last = steady[0], steady[-1]
    rate = (last.rate + last.end_rate) / 2
    # the change of the rate within the window does not shrink with the noise; a falling one may fall on as far again
    moved = abs(last.end_rate - last.rate) + abs(first.end_rate - last.end_rate)
    low = rate - 2 * last.rate_error - (2.5 if last.z > 0 else 1.0) * moved
    high = rate + 2 * last.rate_error + (1.0 if last.z > 0 else 2.5) * moved
    text = f"the rate changes by {100 * first.z:.2g}% while the curve falls by {first.folds:.3g} e-folds"
    margin = (MAX_RATE_CHANGE - abs(first.z)) / max(first.z_error, 1e-12)
    return _decided("exponential", text, s, margin=margin, rate=rate, interval=(max(low, 0.0), high))


def _is_steady(fit: ShapeFit) -> bool:
    # a power law of exponent p changes its log rate by N/p over N e-folds: N/15 excludes p <= 15
    limit = min(max(fit.folds / 15, 0.2), 0.33)
    return abs(fit.z) < MAX_RATE_CHANGE and abs(fit.z) + STANDARD_ERRORS * fit.z_error < limit


def polynomial(s: Setting, fits: list[ShapeFit]) -> Decision | None:
    """A power law that fits to within the noise over two decades of time, and that 3 exponentials do not imitate."""
    if s.points is None:
        return None
    for fit in fits:
        wanted = MIN_LOG_SPAN if fit.start == s.points.t[0] else MIN_LOG_SPAN_LATE
        # peaks at even distances cannot span two decades, so that an oscillating curve is asked for less
        wanted = MIN_LOG_SPAN_ROUGH if s.points.rough else wanted
        sure = fit.z - STANDARD_ERRORS * fit.z_error > wanted and fit.kappa_error < 0.1 * fit.kappa
        if not sure:
            continue
        part = s.points.after(fit.start)
        # the misfit of peaks has no unit (their errors are relative only): compared with the power law fit itself
        scale = max(fit.misfit, RELATIVE_ACCURACY**2 if s.points.rough else 1.0)
        if not s.points.rough and fit.misfit > 2 and fit.scatter > MAX_SCATTER:
            continue
        worse = imitation_misfit(part.t, part.log_v, part.error, 3) / scale
        # a power law that misses the noise itself needs three exponentials to be much worse before it is trusted
        if worse < (4 if fit.misfit <= 2 else 100):
            return None
        # (1 + kappa r s)^(-1/kappa) is a power of t + offset, whose origin need not be the start of the window
        exponent, offset = 1 / fit.kappa, 1 / (fit.kappa * fit.rate) - fit.start
        error = 2 * fit.kappa_error / fit.kappa * exponent
        text = f"holds while the time grows {math.exp(fit.z):.3g}-fold; 3 exponentials fit {worse:.2g} times worse"
        return _decided(
            "polynomial",
            text,
            s,
            margin=math.sqrt(worse),
            exponent=exponent,
            interval=(exponent - error, exponent + error),
            offset=offset,
            window=(fit.start, fit.stop),
        )
    return None


def power_like(fits: list[ShapeFit]) -> ShapeFit | None:
    """The first fit that is a good power law while the time grows 3-fold, be it too short to be named one."""
    good = (fit for fit in fits if fit.misfit <= 2 and fit.kappa_error < 0.1 * fit.kappa)
    return next((fit for fit in good if math.log(3) < fit.z - STANDARD_ERRORS * fit.z_error <= MIN_LOG_SPAN), None)


def _log_ratio(above: float, below: float) -> float:
    return math.log(max(above, 1e-300) / max(below, 1e-300))


def _decided(law: str, text: str, s: Setting, **more: Any) -> Decision:
    window = (float(s.t[0]), float(s.t[max(s.last, 0)]))
    return {"law": law, "status": "decided", "explanation": text, "window": window, **more}
