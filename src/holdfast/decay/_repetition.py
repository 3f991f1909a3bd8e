"""Whether a curve repeats itself: the best lag, and by how much the curve shrinks over it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

Values = Float64[np.ndarray, " time"]
MAX_VALUES = 8192  # values that are compared


@dataclass(frozen=True)
class Repetition:
    """v(t + lag) ~ gain v(t), leaving the share `unexplained` of the variance; `gain_error` is one standard deviation.

    `lag` is where the curve repeats itself best, `period` the first lag at which it nearly does.
    """

    lag: int
    period: int
    gain: float
    gain_error: float
    unexplained: float


def find_repetition(values: Values) -> Repetition | None:
    """The lag after a first decorrelation at which the curve best repeats itself, up to half its length."""
    x = values[-MAX_VALUES:]
    n = len(x)
    lags = np.arange(1, n // 2 + 1)
    if n < 12 or float(x.std()) == 0:
        return None
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(x, size)
    products = np.fft.irfft(spectrum * spectrum.conj(), size)[lags]
    squares = np.concatenate([[0.0], np.cumsum(x**2)])
    early, late = squares[n - lags], squares[n] - squares[lags]
    gain = products / np.maximum(early, np.finfo(float).tiny)
    residual = np.maximum(late - gain * products, 0.0)
    unexplained = residual / ((n - lags) * float(x.var()))
    apart = np.flatnonzero(unexplained > 0.3)
    if len(apart) == 0:
        return None
    after = int(apart[0])
    best = after + int(np.argmin(unexplained[after:]))
    near = unexplained[after:] <= max(1.5 * float(unexplained[best]), 0.05)
    lag, period = int(lags[best]), int(lags[after + int(np.argmax(near))])
    # directly, since the sums of squares above cancel where the oscillation is small against the mean; the root of the
    # two powers, since a regression slope would be drawn below 1 by every mismatch of the lag
    early_part, late_part = x[:-lag], x[lag:]
    power = float(early_part @ early_part)
    slope = float(np.sqrt(late_part @ late_part / power))
    left = float(((late_part - slope * early_part) ** 2).sum())
    error = float(np.sqrt(left / max(n - lag - 1, 1) / power))
    return Repetition(lag, period, slope, error, left / ((n - lag) * float(x.var())))
