"""What both ways of drawing need done to numbers first: infinite values to the upper edge, gaps where there is nothing."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from holdfast.figures import Axis, Bars, Line, Panel, Points

MAX_POINTS = 800  # points of a line drawn from left to right
MAX_TURNING_POINTS = 6000  # points of one that turns back
HEADROOM = 1.6  # factor (logarithmic) or share of the span (linear, 0.06 of it) above the largest finite value


@dataclass(frozen=True)
class Curve:
    """A line or set of points that can be drawn: NaN where there is a gap; `beyond` are the x of infinite values."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    beyond: np.ndarray


def curve(layer: Line | Points, panel: Panel) -> Curve:
    """The layer's numbers on the panel's axes, no more of them than can be seen."""
    x, y = _on_axis(layer.x, panel.x), _on_axis(layer.y, panel.y)
    low = None if layer.low is None else _low(layer.low, panel)
    high = None if layer.high is None else np.minimum(_gaps(layer.high), ceiling(panel))
    beyond = x[np.isposinf(layer.y.astype(np.float64)) & np.isfinite(x)]
    kept = _seen(x, y) if isinstance(layer, Line) else np.arange(len(x))
    return Curve(x[kept], y[kept], None if low is None else low[kept], None if high is None else high[kept], beyond)


def _seen(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the points to draw. A screen has some thousand columns: a longer line shows the extremes of each bin.

    A line that turns back, like a trajectory, keeps points at equal distances along each of its pieces, and their ends:
    every k-th would be most of them where it hardly moves, and corners where it is fast.
    """
    if len(x) <= MAX_POINTS:
        return np.arange(len(x))
    if np.isfinite(x).all() and (np.diff(x) >= 0).all():
        edges = np.linspace(0, len(x), MAX_POINTS // 2 + 1).astype(int)
        filled = np.where(np.isnan(y), np.inf, y), np.where(np.isnan(y), -np.inf, y)
        pairs = [(a + filled[0][a:b].argmin(), a + filled[1][a:b].argmax()) for a, b in itertools.pairwise(edges)]
        gaps = np.flatnonzero(np.diff(np.isnan(y).astype(int)) != 0)
        return np.unique(np.concatenate([np.ravel(pairs), gaps, gaps + 1, [0, len(x) - 1]]))
    breaks = np.isnan(x) | np.isnan(y)
    along = np.cumsum(np.nan_to_num(np.hypot(_share(x), _share(y))))
    cell = np.floor(along / (along[-1] or 1.0) * MAX_TURNING_POINTS)
    starts, ends = np.append(True, breaks[:-1]), np.append(breaks[1:], True)
    return np.flatnonzero(breaks | starts | ends | (np.diff(cell, prepend=-1.0) > 0))


def _share(values: np.ndarray) -> np.ndarray:
    """Each step of a line as a share of all that it spans; 0 at the first point."""
    return np.diff(values, prepend=values[0]) / (float(np.nanmax(values) - np.nanmin(values)) or 1.0)


def ceiling(panel: Panel) -> float:
    """The height at which infinite values are marked."""
    if panel.y.limits is not None:
        return panel.y.limits[1]
    finite = np.concatenate([_on_axis(a, panel.y).ravel() for a in _heights(panel)] or [np.ones(1)])
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return 1.0
    top, bottom = float(finite.max()), float(finite.min())
    return top * HEADROOM if panel.y.log else top + 0.06 * (top - bottom or 1.0)


def empty(panel: Panel) -> bool:
    """Whether the panel is for lines, points or bars and none of them has a number that can be drawn."""
    heights = _heights(panel)
    return bool(heights) and not any(np.isfinite(_on_axis(y, panel.y)).any() or np.isposinf(y).any() for y in heights)


def _heights(panel: Panel) -> list[np.ndarray]:
    return [layer.y for layer in panel.layers if isinstance(layer, (Line, Points, Bars))]


def _low(values: np.ndarray, panel: Panel) -> np.ndarray:
    values = _gaps(values)
    if not panel.y.log:
        return values
    # a band that reaches 0 is drawn down to the panel's floor
    drawn = [_on_axis(a, panel.y) for a in _heights(panel)]
    smallest = min((float(np.nanmin(a)) for a in drawn if np.isfinite(a).any()), default=1e-12)
    return np.where(values > 0, values, panel.y.limits[0] if panel.y.limits else smallest)


def _on_axis(values: np.ndarray, axis: Axis) -> np.ndarray:
    values = _gaps(np.where(np.isposinf(values.astype(np.float64)), np.nan, values))
    return np.where(values > 0, values, np.nan) if axis.log else values


def _gaps(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)
    return np.where(np.isneginf(values), np.nan, values)
