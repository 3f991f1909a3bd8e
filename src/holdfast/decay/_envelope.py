"""From a curve to the points that a law is fitted to: the envelope, and whether the curve oscillates below it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from holdfast._arguments import checked
from holdfast.memory import MemoryCurve

Values = Float64[np.ndarray, " time"]
RELATIVE_ACCURACY = (
    1e-9  # relative accuracy beyond which a law is not asked to hold: no measured curve keeps one that far
)
MAX_POINTS = 600  # points in a fit; more do not change the verdict and cost time


@checked
def envelope(curve: MemoryCurve) -> Float64[np.ndarray, " time"]:
    """sup over s >= t of M(s), within the measured times: what is left from t on, whatever oscillates below.

    Args:
        curve: the memory curve.
    """
    return np.maximum.accumulate(curve.values[::-1])[::-1]


@dataclass(frozen=True)
class Points:
    """Times and logs to fit, with the standard deviation of the logs (relative only, if `rough`)."""

    t: Float64[np.ndarray, " points"]
    log_v: Float64[np.ndarray, " points"]
    error: Float64[np.ndarray, " points"]
    rough: bool

    def after(self, start: float) -> Points:
        keep = self.t >= start
        return Points(self.t[keep], self.log_v[keep], self.error[keep], self.rough)


def is_rough(values: Values, noise: float, seen: bool) -> bool:
    """Whether the curve rises again by 15% from its lowest so far, where noise cannot be the reason.

    That is where it stands 60 times above the noise; or, if no noise floor was seen, above 3% of the peak.
    """
    limit = 60 * noise if seen else max(60 * noise, 0.03 * float(values.max()))
    ceiling = np.maximum.accumulate(values[::-1])[::-1]
    region = values[ceiling > limit]
    return bool(len(region) > 2 and (region > 1.15 * np.minimum.accumulate(region)).any())


def smooth_points(t: Values, values: Values, noise: float, scatter: float) -> Points:
    """The values themselves, thinned to evenly and to logarithmically spaced ones.

    `scatter` is a relative error on top of the additive noise. Where it is large the curve counts as rough.
    """
    n = len(t)
    index = np.arange(n)
    if n > MAX_POINTS:
        even = np.linspace(0, n - 1, MAX_POINTS // 2).astype(int)
        geometric = np.unique(np.geomspace(1, n, MAX_POINTS // 2).astype(int) - 1)
        index = np.union1d(even, geometric)
    v = values[index]
    return Points(t[index], np.log(v), np.hypot(noise / v, max(scatter, RELATIVE_ACCURACY)), rough=scatter > 0)


def rough_points(t: Values, values: Values) -> Points | None:
    """Maxima over blocks that hold several oscillations each; None if there are too few oscillations for 6 blocks."""
    peaks = np.flatnonzero((values[1:-1] >= values[:-2]) & (values[1:-1] > values[2:])) + 1
    if len(peaks) < 6:
        return None
    spacing = (peaks[-1] - peaks[0]) / (len(peaks) - 1)
    n = len(values)
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
    return Points(t[at][keep], np.log(top[keep]), np.ones(int(keep.sum())), rough=True)
