"""Retrieval: a curve that falls to next to nothing, stays there and comes back later is no decay.

Attention and delta rules do that: an input is hardly seen for a while and then read in full. What tells it from an
oscillation is the stretch between: |cos| is below an eighth of its peaks for 8% of the time, a stretch that is quiet for
half of the delay is something else. A filter that rings with a quiet pause (an echo with feedback, harmonics in phase)
comes back at even distances by one factor, which is an exponential law; that is left to the fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.decay._result import Return
from holdfast.decay._signal import SIGNAL_TO_NOISE, Noise, Values

QUIET_RATIO = 8.0  # times that the first effect and the return stand above everything between them
MIN_QUIET_STEPS = 6  # values of a pause: white noise of size 1 stays below 1/8 of its peak for that long once in 1e5
MIN_QUIET_SHARE = 0.5  # share of the delay that the pause lasts
MIN_RETURN = 0.05  # smallest return, as a share of the first effect: below that the slow mode of a sum looks alike
MIN_FIRST = 0.01  # smallest first effect, as a share of the largest value: less is a delay, whose law begins later
MAX_RETURNS = 8  # returns of a curve that is no fluctuation
SPACING_TOLERANCE = 0.05  # relative difference of the distances of a filter that rings
RATIO_TOLERANCE = 0.2  # difference of its log factors


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
