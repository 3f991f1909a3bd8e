"""PNG and SVG of a figure by matplotlib, from the same spec as the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.figures import Axis, Bars, Figure, Heatmap, Layer, Line, Panel, Points, Rule
from holdfast.report.palette import LIGHT, slots
from holdfast.report.prepare import ceiling, curve

STYLES = {"solid": "-", "dash": "--", "dot": ":"}
SETTINGS: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "lines.linewidth": 1.4,
    "axes.grid": True, "grid.color": "#e3e6ea", "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False,
    "svg.fonttype": "none", "svg.hashsalt": "holdfast",
}  # fmt: skip


def draw(figure: Figure, stem: Path) -> list[Path]:
    """Writes `stem`.png (200 dots an inch) and `stem`.svg, and gives back their paths."""
    with _quiet() as plt:
        columns = max(1, min(figure.columns, len(figure.panels)))
        rows = -(-len(figure.panels) // columns)
        small = all(isinstance(la, Heatmap) and la.image for p in figure.panels for la in p.layers)
        size = (1.6, 1.8) if small else (4.2, 3.2)
        drawing, axes = plt.subplots(
            rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False, layout="constrained"
        )
        for place, panel in zip(axes.flat, figure.panels, strict=False):
            _panel(place, panel)
        for place in axes.flat[len(figure.panels) :]:
            place.set_axis_off()
        paths = [stem.with_suffix(ending) for ending in (".png", ".svg")]
        for path in paths:
            # no date in the file: equal figures are equal bytes
            drawing.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(drawing)
    return paths


@contextmanager
def _quiet() -> Iterator[Any]:
    """matplotlib's pyplot without a window, its settings put back after."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib import pyplot

    with pyplot.rc_context(SETTINGS):
        yield pyplot


def _panel(place: Any, panel: Panel) -> None:
    place.set_title(panel.title, fontsize=9)
    for layer, slot in zip(panel.layers, slots([getattr(la, "colour", None) for la in panel.layers]), strict=True):
        _layer(place, layer, LIGHT[slot % len(LIGHT)], panel)
    if any(isinstance(la, Heatmap) and la.image for la in panel.layers):
        place.set_axis_off()
        return
    _axis(place, "x", panel.x)
    _axis(place, "y", panel.y)
    if panel.equal:
        place.set_aspect("equal")
    if place.get_legend_handles_labels()[1]:
        place.legend(fontsize=7)


def _axis(place: Any, name: str, axis: Axis) -> None:
    getattr(place, f"set_{name}label")(axis.label)
    if axis.log:
        getattr(place, f"set_{name}scale")("log")
    if axis.limits is not None:
        getattr(place, f"set_{name}lim")(*axis.limits)


def _layer(place: Any, layer: Layer, colour: str, panel: Panel) -> None:
    if isinstance(layer, (Line, Points)):
        _curve(place, layer, colour, panel)
    elif isinstance(layer, Bars):
        error = None if layer.low is None or layer.high is None else [layer.y - layer.low, layer.high - layer.y]
        place.bar(list(layer.names), layer.y, yerr=error, color=colour, label=layer.label if layer.legend else None)
    elif isinstance(layer, Heatmap):
        _heatmap(place, layer)
    elif isinstance(layer, Rule) and layer.finite:
        line = place.axvline if layer.x is not None else place.axhline
        line(
            layer.x if layer.x is not None else layer.y,
            color="#6b7280",
            linewidth=0.9,
            linestyle=":",
            label=layer.label,
        )


def _curve(place: Any, layer: Line | Points, colour: str, panel: Panel) -> None:
    drawn = curve(layer, panel)
    label = layer.label if layer.legend else None
    if isinstance(layer, Line):
        marker = "o" if layer.markers else None
        place.plot(drawn.x, drawn.y, STYLES[layer.dash], color=colour, label=label, marker=marker, markersize=3)
        if drawn.low is not None:
            place.fill_between(drawn.x, drawn.low, drawn.high, color=colour, alpha=0.18, linewidth=0)
    else:
        error = None if drawn.low is None or drawn.high is None else [drawn.y - drawn.low, drawn.high - drawn.y]
        place.errorbar(drawn.x, drawn.y, error, fmt="o", color=colour, label=label, markersize=4)
    if len(drawn.beyond):
        top = np.full(len(drawn.beyond), ceiling(panel))
        place.plot(drawn.beyond, top, "^", color=colour, markersize=4, clip_on=False)


def _heatmap(place: Any, layer: Heatmap) -> None:
    if layer.image:
        place.imshow(layer.z, cmap="gray", interpolation="nearest")
        return
    from matplotlib.colors import LogNorm

    z = np.where(np.isfinite(layer.z) & ((layer.z > 0) | (not layer.log)), layer.z, np.nan)
    mesh = place.pcolormesh(
        layer.x, layer.y, z, shading="nearest", cmap="viridis", norm=LogNorm() if layer.log else None
    )
    place.figure.colorbar(mesh, ax=place, label=layer.label)
