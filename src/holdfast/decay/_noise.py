"""The noise floor of a curve: where the signal ends and rounding or measurement noise begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

Values = Float64[np.ndarray, " time"]
SIGNAL_TO_NOISE = 8.0  # a value this many times above the noise is signal: of 1e5 normal draws none exceeds 5.5
PEAK_TO_NOISE = 30.0  # a stationary end of the curve is noise only if the peak stands this far above it


@dataclass(frozen=True)
class Noise:
    """Additive noise of size `level`; values up to index `end` stand clear of it; `seen` if it was found as a floor."""

    level: float
    end: int
    seen: bool


def find_noise(values: Values, known: Values | None) -> Noise:
    """The noise level from a stationary, unpredictable end of the curve, never below rounding or the `known` floor."""
    peak = float(values.max())
    level = float(np.finfo(np.float64).eps) * peak
    if known is not None:
        # the floor bounds rounding errors; their standard deviation is a quarter of it and less
        level = max(level, float(np.median(known[-max(len(known) // 4, 1) :])) / 4)
    seen = False
    for found in (_stationary_level(values), _quantum(values), None if known is None else _stuck(values, known)):
        if found is not None and found > level:
            level, seen = found, True
    clear = values > SIGNAL_TO_NOISE * level
    end = _last_clear(clear if known is None else clear & (values > 2 * known))
    return Noise(level, end, seen or end < len(values) - 1)


def _last_clear(clear: Bool[np.ndarray, " time"]) -> int:
    """The last clear value that is not an outlier far behind the others; -1 if there is none."""
    index = np.flatnonzero(clear)
    if len(index) < 4:
        return int(index[-1]) if len(index) else -1
    gaps = np.diff(index)
    usual = max(4.0, 4 * float(np.median(gaps)))
    last = len(index) - 1
    while last > 0 and gaps[last - 1] > usual and last > 0.98 * len(index) - 4:
        last -= 1
    return int(index[last])


def _stationary_level(values: Values) -> float | None:
    """Root mean square of the end of the curve, if that end is long, level, far below the peak, and white."""
    blocks = min(64, len(values) // 8)
    if blocks < 2:
        return None
    size = len(values) // blocks
    tail = values[len(values) - blocks * size :].reshape(blocks, size)
    rms = np.sqrt((tail**2).mean(1))
    last = float(np.median(rms[-max(2, blocks // 8) :]))
    if last == 0 or values.max() < PEAK_TO_NOISE * last:
        return None
    above = np.flatnonzero(rms > 2 * last)
    first = int(above[-1]) + 1 if len(above) else 0
    end = tail[first:].ravel()
    # the first block may still hold signal: the second half decides
    end = end[len(end) // 2 :] if len(end) >= 4 * size else end
    return float(np.sqrt((end**2).mean())) if len(end) >= 16 and _is_white(end) else None


def _is_white(x: Values) -> bool:
    """Sizes of white noise: scattered as widely as their mean, each as different from the next as from any other."""
    mean, spread = float(x.mean()), float(x.std())
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
    fits = [float(centred[lag:] @ centred[:-lag]) / power * n / (n - lag) for lag in lags]
    return max(fits, default=0.0) > 0.25 + 4 / math.sqrt(n)


def _quantum(values: Values) -> float | None:
    """Where the curve ends in small multiples of one number (rounding of a larger output), that number."""
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
    end = values[-max(len(values) // 8, 16) :]
    height = float(end.max())
    if height > 1.2 * float(end.min()) or values.max() < PEAK_TO_NOISE * height:
        return None
    above = [int(np.flatnonzero(values > times * height)[-1]) for times in (20.0, 1.5)]
    steps_per_fold = (above[1] - above[0]) / math.log(20 / 1.5)
    return height if height <= float(known[-1]) * steps_per_fold else None


def smooth_noise(values: Values) -> float:
    """Additive noise of a smooth positive curve: sixth differences of log v leave noise and next to no signal.

    They vanish for an exponential; for (1 + t)^-p they are 120 p / t^6. The sum of their squared coefficients is 924.
    """
    if len(values) < 14:
        return 0.0
    late = values[len(values) // 2 :] if len(values) >= 32 else values
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
