"""What of a curve is signal: the noise floor, where signal ends, and the points above it that a law is fitted to."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from holdfast._arguments import checked
from holdfast.memory import MemoryCurve

Values = Float64[np.ndarray, " time"]
SIGNAL_TO_NOISE = 8.0  # a value this many times above the noise is signal: of 1e5 normal draws none exceeds 5.5
PEAK_TO_NOISE = 30.0  # a stationary end of the curve is noise only if the peak stands this far above it
RELATIVE_ACCURACY = (
    1e-9  # relative accuracy beyond which a law is not asked to hold: no measured curve keeps one that far
)
MAX_POINTS = 600  # points in a fit; more do not change the verdict and cost time


@dataclass(frozen=True)
class Noise:
    """Additive noise of size `level`; values up to index `end` stand clear of it; `seen` if it was found as a floor."""

    level: float
    end: int
    seen: bool


def find_noise(values: Values, known: Values | None) -> Noise:
    """The noise level from a stationary, unpredictable end of the curve, never below rounding or the `known` floor."""
    peak = float(values.max())
    # no float64 curve is better than one rounding of its largest value
    level = float(np.finfo(np.float64).eps) * peak
    if known is not None:
        # the floor bounds rounding errors; their standard deviation is a quarter of it and less
        level = max(level, float(np.median(known[-max(len(known) // 4, 1) :])) / 4)
    seen = False
    for candidate in (_stationary_level(values), _quantum(values), None if known is None else _stuck(values, known)):
        # each is a lower bound of the noise, so that the largest counts
        if candidate is not None and candidate > level:
            level, seen = candidate, True
    clear = values > SIGNAL_TO_NOISE * level
    # a known floor bounds rounding at its own time too: twice above it, whatever the level elsewhere
    end = _last_clear(clear if known is None else clear & (values > 2 * known))
    return Noise(level, end, seen or end < len(values) - 1)


def _last_clear(clear: Bool[np.ndarray, " time"]) -> int:
    """The last clear value that is not an outlier far behind the others; -1 if there is none."""
    index = np.flatnonzero(clear)
    if len(index) < 4:
        return int(index[-1]) if len(index) else -1
    gaps = np.diff(index)
    # oscillations leave gaps of their own; only a gap four times as long sets a value apart
    usual = max(4.0, 4 * float(np.median(gaps)))
    last = len(index) - 1
    # at most 2% of the clear values, and four, may be outliers: more are signal that returns
    while last > 0 and gaps[last - 1] > usual and last > 0.98 * len(index) - 4:
        last -= 1
    return int(index[last])


def _stationary_level(values: Values) -> float | None:
    """Root mean square of the end of the curve, if that end is long, level, far below the peak, and white."""
    # 64 blocks resolve where the level begins; 8 values at least give a root mean square
    blocks = min(64, len(values) // 8)
    if blocks < 2:
        return None
    size = len(values) // blocks
    tail = values[len(values) - blocks * size :].reshape(blocks, size)
    rms = np.sqrt((tail**2).mean(1))
    # the median of the last eighth: one block that still holds signal does not move it
    last = float(np.median(rms[-max(2, blocks // 8) :]))
    if last == 0 or values.max() < PEAK_TO_NOISE * last:
        return None
    # the root mean square of 8 normal values scatters by a quarter: a factor of 2 is four deviations
    above = np.flatnonzero(rms > 2 * last)
    first = int(above[-1]) + 1 if len(above) else 0
    end = tail[first:].ravel()
    # the first block may still hold signal: the second half decides
    end = end[len(end) // 2 :] if len(end) >= 4 * size else end
    return float(np.sqrt((end**2).mean())) if len(end) >= 16 and _is_white(end) else None


def _is_white(x: Values) -> bool:
    """Sizes of white noise: scattered as widely as their mean, each as different from the next as from any other."""
    mean, spread = float(x.mean()), float(x.std())
    # sizes |noise| of normal numbers have spread 0.76 of their mean; a level curve has next to none
    if spread < 0.4 * mean:
        return False
    neighbours = float((np.diff(x) ** 2).mean()) / spread**2
    # 2 for white noise, with standard deviation about 2 / sqrt(n)
    return neighbours > 2 - 7 / math.sqrt(len(x)) and not _repeats(x)


def _repeats(x: Values) -> bool:
    centred = x[-512:] - x[-512:].mean()
    power = float((centred**2).sum())
    n = len(centred)
    lags = range(1, n // 2)
    # an oscillation with a long period also looks white to neighbours: its correlation comes back at a later lag
    fits = [float(centred[lag:] @ centred[:-lag]) / power * n / (n - lag) for lag in lags]
    return max(fits, default=0.0) > 0.25 + 4 / math.sqrt(n)


def _quantum(values: Values) -> float | None:
    """Where the curve ends in small multiples of one number (rounding of a larger output), that number."""
    # zeros are multiples of every unit and tell nothing
    small = values[values > 0][-12:]
    unit = float(small.min())
    multiples = small / unit
    # a level end is rounding only if it is as small as that of float32; multiples of a unit may be larger
    if (
        unit > (1e-6 if multiples.max() > 1.5 else 1e-7) * values.max()
        or multiples.max() > 64
        or np.abs(multiples - multiples.round()).max() > 1e-3
    ):
        return None
    return unit


def _stuck(values: Values, known: Values) -> float | None:
    """The height of an end that does not move, if rounding can hold it there.

    A state that decays by a rate r moves by r times its distance from rest in a step. In floating point it stops once a
    rounding is larger than that: 1/r roundings away.
    """
    # a stuck state does not move at all: 20% leaves room for the last decaying mode
    end = values[-max(len(values) // 8, 16) :]
    height = float(end.max())
    if height > 1.2 * float(end.min()) or values.max() < PEAK_TO_NOISE * height:
        return None
    # the decay just above the plateau gives the rate r that its height is compared by
    above = [int(np.flatnonzero(values > times * height)[-1]) for times in (20.0, 1.5)]
    steps_per_fold = (above[1] - above[0]) / math.log(20 / 1.5)
    return height if height <= float(known[-1]) * steps_per_fold else None


def smooth_noise(values: Values) -> float:
    """Additive noise of a smooth positive curve: sixth differences of log v leave noise and next to no signal.

    They vanish for an exponential; for (1 + t)^-p they are 120 p / t^6. The sum of their squared coefficients is 924.
    """
    if len(values) < 14:
        return 0.0
    # the second half, where a law is smoothest and noise the largest share
    late = values[len(values) // 2 :] if len(values) >= 32 else values
    # times the value: noise is additive, and log turns it into noise / value; 1.4826 makes a median a deviation
    sixth = np.diff(np.log(late), 6) * late[3:-3]
    return float(1.4826 * np.median(np.abs(sixth)) / np.sqrt(924.0))


def wiggle(values: Values, noise: float) -> float:
    """Relative scatter of neighbouring values that the noise does not explain, where they stand 100 times above it.

    Third differences of log v, whose squared coefficients sum to 20: they see the kinks where another output or another
    x takes over the sup, and next to nothing of a smooth law.
    """
    clear = values[values > 100 * noise]
    if len(clear) < 8:
        return 0.0
    return float(1.4826 * np.median(np.abs(np.diff(np.log(clear), 3))) / np.sqrt(20.0))


@checked
def envelope(curve: MemoryCurve) -> Float64[np.ndarray, " time"]:
    """sup over s >= t of M(s), within the measured times: what is left from t on, whatever oscillates below.

    Args:
        curve: the memory curve.

    Returns:
        the envelope at the times of the curve, (times,), in its units; it never rises.

    Raises:
        DtypeError: what is not a MemoryCurve.

    Example:
        >>> import numpy as np
        >>> from holdfast.decay import envelope
        >>> from holdfast.memory import MemoryCurve
        >>> envelope(MemoryCurve(time=np.arange(4.0), values=np.array([1.0, 0.0, 0.5, 0.1]))).tolist()
        [1.0, 0.5, 0.5, 0.1]
    """
    return np.maximum.accumulate(curve.values[::-1])[::-1]


@dataclass(frozen=True)
class FitPoints:
    """Times and logs to fit, with the standard deviation of the logs (relative only, if `rough`)."""

    t: Float64[np.ndarray, " points"]
    log_v: Float64[np.ndarray, " points"]
    error: Float64[np.ndarray, " points"]
    rough: bool

    def after(self, start: float) -> FitPoints:
        keep = self.t >= start
        return FitPoints(self.t[keep], self.log_v[keep], self.error[keep], self.rough)


def is_rough(values: Values, noise: float, seen: bool) -> bool:
    """Whether the curve rises again by 15% from its lowest so far, where noise cannot be the reason.

    That is where it stands 60 times above the noise; or, if no noise floor was seen, above 3% of the peak.
    """
    # 15% of a value that stands 60 times above the noise are nine deviations of it
    limit = 60 * noise if seen else max(60 * noise, 0.03 * float(values.max()))
    ceiling = np.maximum.accumulate(values[::-1])[::-1]
    region = values[ceiling > limit]
    return bool(len(region) > 2 and (region > 1.15 * np.minimum.accumulate(region)).any())


def smooth_points(t: Values, values: Values, noise: float, scatter: float) -> FitPoints:
    """The values themselves, thinned to evenly and to logarithmically spaced ones.

    `scatter` is a relative error on top of the additive noise. Where it is large the curve counts as rough.
    """
    n = len(t)
    index = np.arange(n)
    if n > MAX_POINTS:
        # even points weigh the end, where laws differ, geometric ones the start, where they begin
        even = np.linspace(0, n - 1, MAX_POINTS // 2).astype(int)
        geometric = np.unique(np.geomspace(1, n, MAX_POINTS // 2).astype(int) - 1)
        index = np.union1d(even, geometric)
    v = values[index]
    return FitPoints(t[index], np.log(v), np.hypot(noise / v, max(scatter, RELATIVE_ACCURACY)), rough=scatter > 0)


def rough_points(t: Values, values: Values) -> FitPoints | None:
    """Maxima over blocks that hold several oscillations each; None if there are too few oscillations for 6 blocks."""
    peaks = np.flatnonzero((values[1:-1] >= values[:-2]) & (values[1:-1] > values[2:])) + 1
    if len(peaks) < 6:
        return None
    spacing = (peaks[-1] - peaks[0]) / (len(peaks) - 1)
    n = len(values)
    # several oscillations per block make its maximum steady, and twelve blocks are enough for a fit: first come
    for count in (4, 3, 2, 1):
        width = int(np.ceil(max(count * spacing, n / 60)))
        blocks = n // width
        if blocks >= 12 or (count == 1 and blocks >= 6):
            break
    else:
        return None
    # from the end, so that the last block is whole
    body = values[n - blocks * width :].reshape(blocks, width)
    at = body.argmax(1) + np.arange(blocks) * width + (n - blocks * width)
    top = values[at]
    keep = top > 0
    return FitPoints(t[at][keep], np.log(top[keep]), np.ones(int(keep.sum())), rough=True)
