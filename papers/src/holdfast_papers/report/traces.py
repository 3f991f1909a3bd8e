"""A panel as plotly's traces and layout, without colours: the page's script adds those of its theme."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast._drawing.colours import Colours
from holdfast._drawing.prepare import ceiling, curve
from holdfast.figures import Axis, Bars, Figure, Heatmap, Layer, Line, Panel, Points, Rule
from holdfast_papers.report.mathematics import in_unicode

DIGITS = 6  # kept of each number on the page; the raw data have all


def figure_data(figure: Figure) -> dict[str, Any]:
    """Everything that the page's script needs to draw the figure: equal labels have equal colours in all panels."""
    colours = Colours([layer for panel in figure.panels for layer in panel.layers])
    return {
        "name": figure.name,
        "caption": figure.caption,
        "columns": min(figure.columns, len(figure.panels)),
        "panels": [panel_data(panel, colours) for panel in figure.panels],
    }


def panel_data(panel: Panel, colours: Colours | None = None) -> dict[str, Any]:
    """Axes, and traces with a colour each; a picture is pixels instead."""
    pictures = [layer for layer in panel.layers if isinstance(layer, Heatmap) and layer.image]
    if pictures:
        titles = {"title": panel.title, "plain": in_unicode(panel.title)}
        return {**titles, "label": pictures[0].label, "picture": _pixels(pictures[0].z)}
    colours = colours or Colours(panel.layers)
    traces = [t for layer in panel.layers for t in _traces(layer, _look(layer, colours), panel)]
    monotone = all(bool((np.diff(la.x) >= 0).all()) for la in panel.layers if isinstance(la, Line))
    return {
        "title": panel.title,
        "plain": in_unicode(panel.title),
        "x": _axis(panel.x),
        "y": _axis(panel.y),
        "equal": panel.equal,
        "hover": "x unified" if monotone and any(isinstance(la, Line) for la in panel.layers) else "closest",
        "rules": [_rule(layer) for layer in panel.layers if isinstance(layer, Rule) and layer.finite],
        "traces": traces,
    }


def _look(layer: Layer, colours: Colours) -> dict[str, Any]:
    """What a trace of the layer says of its colour, and whether the legend names it."""
    slot, place = colours.place(layer)
    shown = {"slot": slot, "showlegend": getattr(layer, "legend", True) or colours.by_value}
    return shown if place is None else {**shown, "scale": round(place, 4)}


def _traces(layer: Layer, colour: dict[str, Any], panel: Panel) -> list[dict[str, Any]]:
    if isinstance(layer, (Line, Points)):
        return _curve(layer, colour, panel)
    if isinstance(layer, Bars):
        y = layer.y.astype(np.float64)
        bars = {
            "type": "bar",
            "name": in_unicode(layer.label),
            "x": [in_unicode(name) for name in layer.names],
            "y": numbers(y),
            **colour,
        }
        if layer.low is not None and layer.high is not None:
            bars["error_y"] = _errors(y, layer.low, layer.high)
        return [bars]
    if isinstance(layer, Heatmap):
        z = layer.z.astype(np.float64)
        shown = np.log10(np.where(z > 0, z, np.nan)) if layer.log else z
        rows = [numbers(row) for row in shown]
        name = in_unicode(f"log10 {layer.label}" if layer.log else layer.label)
        return [{"type": "heatmap", "name": name, "x": numbers(layer.x), "y": numbers(layer.y), "z": rows}]
    return []


def _curve(layer: Line | Points, colour: dict[str, Any], panel: Panel) -> list[dict[str, Any]]:
    drawn = curve(layer, panel)
    name = in_unicode(layer.label)
    common = {"type": "scatter", **colour, "legendgroup": name}
    traces = []
    x = numbers(drawn.x)
    if isinstance(layer, Line) and drawn.low is not None and drawn.high is not None:
        there = np.isfinite(drawn.low) & np.isfinite(drawn.high) & np.isfinite(drawn.x)
        around = np.concatenate([drawn.x[there], drawn.x[there][::-1]])
        edge = np.concatenate([drawn.high[there], drawn.low[there][::-1]])
        traces.append({**common, "role": "band", "name": name, "x": numbers(around), "y": numbers(edge)})
    main = {**common, "name": name, "x": x, "y": numbers(drawn.y)}
    if isinstance(layer, Line):
        main |= {"mode": "lines+markers" if layer.markers else "lines", "dash": layer.dash}
    else:
        main |= {"mode": "markers"}
        if drawn.low is not None and drawn.high is not None:
            main["error_y"] = _errors(drawn.y, drawn.low, drawn.high)
    traces.append(main)
    if len(drawn.beyond):
        top = [_round(ceiling(panel))] * len(drawn.beyond)
        traces.append({**common, "role": "beyond", "name": name, "x": numbers(drawn.beyond), "y": top})
    return traces


def _errors(y: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    return {"type": "data", "symmetric": False, "array": numbers(high - y), "arrayminus": numbers(y - low)}


def _axis(axis: Axis) -> dict[str, Any]:
    limits = axis.limits
    if limits is not None and axis.log:
        limits = (float(np.log10(limits[0])), float(np.log10(limits[1])))
    return {"label": in_unicode(axis.label), "log": axis.log, "range": None if limits is None else [*limits]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {"label": in_unicode(rule.label), "x": rule.x, "y": rule.y}


def _pixels(z: np.ndarray) -> dict[str, Any]:
    """Grey levels 0 to 255, row by row."""
    z = z.astype(np.float64)
    low, high = (float(np.nanmin(z)), float(np.nanmax(z))) if np.isfinite(z).any() else (0.0, 1.0)
    level = np.nan_to_num(np.clip((z - low) / ((high - low) or 1.0), 0, 1))
    return {"rows": z.shape[0], "columns": z.shape[1], "grey": np.rint(255 * level).astype(int).ravel().tolist()}


def numbers(values: np.ndarray) -> list[float | None]:
    """Rounded to what a screen can show; None where there is nothing to draw."""
    return [_round(v) if np.isfinite(v) else None for v in np.asarray(values, dtype=np.float64).tolist()]


def _round(value: float) -> float:
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
