"""What both ways of drawing need done to numbers first: infinite values to the upper edge, gaps where there is nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.figures import Axis, Bars, Layer, Line, Panel, Points

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
    """The layer's numbers on the panel's axes."""
    x = _on_axis(layer.x, panel.x)
    return Curve(
        x=x,
        y=_on_axis(layer.y, panel.y),
        low=None if layer.low is None else _low(layer.low, panel),
        high=None if layer.high is None else np.minimum(_gaps(layer.high), ceiling(panel)),
        beyond=x[np.isposinf(layer.y.astype(np.float64)) & np.isfinite(x)],
    )


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


def kind(layer: Layer) -> str:
    """The layer's kind in small letters."""
    return type(layer).__name__.lower()
