"""Panels by matplotlib: into axes of the caller, into new ones, as the bytes of a picture, or as files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast._drawing.colours import Colours
from holdfast._drawing.prepare import ceiling, curve, empty
from holdfast._readers import describe
from holdfast.errors import ArgumentError, BackendError
from holdfast.figures import Axis, Bars, Figure, Heatmap, Layer, Line, Panel, Points, Rule

DENSE_POINTS = 2000  # points of a line that fills its panel: it is drawn thin
MAX_LARGE_LEGEND = 5  # lines of a legend that have room for letters as large as those of the axes
STYLES = {"solid": "-", "dash": "--", "dot": ":"}
RULE_COLOUR = "#6b7280"
RULES = (":", "-.", "--")  # of the rules of a panel, which have one colour
PLAIN_TICKS = (1e-3, 1e5)  # numbers that are written out at the ticks of a logarithmic axis
SETTINGS: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "lines.linewidth": 1.4,
    "axes.grid": True, "grid.color": "#e3e6ea", "grid.linewidth": 0.6, "axes.axisbelow": True,
    "legend.framealpha": 0.85, "legend.edgecolor": "none", "svg.fonttype": "none", "svg.hashsalt": "holdfast",
}  # fmt: skip


def plot(figure: Figure, ax: Any = None) -> Any:
    """Draws the panels into matplotlib axes and gives these back: one, or an array where there are several panels.

    Args:
        figure: what is drawn.
        ax: axes to draw into, as many as there are panels; None makes new ones by pyplot, in the caller's own style.
    """
    if ax is None:
        with _needed():
            from matplotlib import pyplot
        ax = pyplot.subplots(*_grid(figure), squeeze=False, layout="constrained", figsize=_size(figure))[1]
    places = np.asarray(ax, dtype=object).ravel()
    if len(places) < len(figure.panels) or not all(hasattr(place, "set_title") for place in places):
        names = ", ".join(panel.y.label for panel in figure.panels)
        raise ArgumentError(
            f"ax must be {len(figure.panels)} matplotlib axes ({names}), got {describe(ax)}; leave it out to draw on a new "
            "figure"
        )
    _fill(places, figure.panels)
    return places[0] if len(figure.panels) == 1 else places[: len(figure.panels)]


@contextmanager
def drawn(figure: Figure) -> Iterator[Any]:
    """The figure as one of matplotlib's, without pyplot, in the style of the page's static files."""
    with _needed():
        import matplotlib
        from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(SETTINGS):
        canvas = Canvas(figsize=_size(figure), layout="constrained")
        _fill(canvas.subplots(*_grid(figure), squeeze=False).ravel(), figure.panels)
        yield canvas


def picture(figure: Figure) -> bytes:
    """The figure as a PNG."""
    buffer = io.BytesIO()
    with drawn(figure) as canvas:
        canvas.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


@contextmanager
def _needed() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise BackendError("drawing needs matplotlib: pip install matplotlib") from error


def _fill(places: np.ndarray, panels: Sequence[Panel]) -> None:
    """Draws each panel into its place; places beyond the last are left empty, without axes."""
    drawn_before = max((_curves_in(place) for place in places[: len(panels)]), default=0)
    colours = Colours([layer for panel in panels for layer in panel.layers], start=drawn_before)
    named: set[str] = set()
    for place, panel in zip(places, panels, strict=False):
        labels = {str(getattr(layer, "label", "")) for layer in panel.layers}
        _panel(place, panel, colours, every=colours.by_value and not labels <= named)
        named |= labels if colours.by_value else set()
    for place in places[len(panels) :]:
        place.set_axis_off()


def _curves_in(place: Any) -> int:
    """How many curves have been drawn into these axes already; rules, which have one colour, are none."""
    return sum(line.get_color() != RULE_COLOUR and not line.get_label().startswith("_") for line in place.get_lines())


def _grid(figure: Figure) -> tuple[int, int]:
    columns = max(1, min(figure.columns, len(figure.panels)))
    return -(-len(figure.panels) // columns), columns


def _size(figure: Figure) -> tuple[float, float]:
    small = all(isinstance(la, Heatmap) and la.image for p in figure.panels for la in p.layers)
    width, height = (1.6, 1.8) if small else (4.2, 3.2)
    rows, columns = _grid(figure)
    return width * columns, height * rows


def _panel(place: Any, panel: Panel, colours: Colours, *, every: bool) -> None:
    """Draws a panel; with `every` its legend names all layers, those too that leave it to another panel."""
    place.set_title(panel.title, fontsize=9, parse_math=False)  # a name may hold a dollar sign
    rules = iter(RULES * len(panel.layers))
    named = place.get_legend_handles_labels()[1]  # by an earlier result in the same axes
    for layer in panel.layers:
        if isinstance(layer, Rule):
            if layer.label not in named:
                _rule(place, layer, next(rules))
            continue
        shown = replace(layer, legend=True) if every and isinstance(layer, (Line, Points, Bars)) else layer
        if isinstance(shown, (Line, Points)) and shown.label in named:
            shown = replace(shown, label=_numbered(shown.label, named))
        _layer(place, shown, colours.light(layer), panel)
    if any(isinstance(la, Heatmap) and la.image for la in panel.layers):
        place.set_axis_off()
        return
    if empty(panel):
        _say_empty(place, panel)
        return
    _axis(place, "x", panel.x)
    _axis(place, "y", panel.y)
    if panel.equal:
        place.set_aspect("equal")
    if labels := place.get_legend_handles_labels()[1]:
        _legend(place, panel, size=8.5 if len(labels) <= MAX_LARGE_LEGEND else 7)


def _numbered(label: str, named: Sequence[str]) -> str:
    """The label with a number, so that two results in the same axes can be distinguished."""
    return next(name for k in range(2, len(named) + 3) if (name := f"{label} ({k})") not in named)


def _say_empty(place: Any, panel: Panel) -> None:
    place.text(0.5, 0.5, "nothing to draw", transform=place.transAxes, ha="center", va="center")
    place.set(xticks=[], yticks=[])
    place.set_xlabel(panel.x.label, parse_math=False)
    place.set_ylabel(panel.y.label, parse_math=False)


def _legend(place: Any, panel: Panel, size: float) -> None:
    """Where it hides least; over points in a plane, such as eigenvalues, in room that is made for it above them."""
    if panel.equal:
        low, high = place.get_ylim()
        place.set_ylim(low, high + 0.15 * (high - low))
        made = place.legend(fontsize=size, loc="upper center", ncols=2)
    else:
        made = place.legend(fontsize=size)
    for text in made.get_texts():
        text.set_parse_math(False)


def _axis(place: Any, name: str, axis: Axis) -> None:
    getattr(place, f"set_{name}label")(axis.label, parse_math=False)
    if axis.log:
        getattr(place, f"set_{name}scale")("log")
    if axis.limits is not None:
        getattr(place, f"set_{name}lim")(*axis.limits)
    low, high = getattr(place, f"get_{name}lim")()
    if axis.log and PLAIN_TICKS[0] <= low < high <= PLAIN_TICKS[1] and high < 100 * low:
        _plain_numbers(getattr(place, f"{name}axis"), every=high < 4 * low)


def _plain_numbers(axis: Any, every: bool) -> None:
    """0.2 and 50 at the ticks of a short logarithmic axis, where 2 x 10^-1 and 5 x 10^1 run into each other."""

    def text(value: float, _: int) -> str:
        return f"{value:.3g}" if every or f"{value:e}"[0] in "125" else ""

    axis.set_major_formatter(text)
    axis.set_minor_formatter(text)


def _layer(place: Any, layer: Layer, colour: str, panel: Panel) -> None:
    if isinstance(layer, (Line, Points)):
        _curve(place, layer, colour, panel)
    elif isinstance(layer, Bars):
        error = None if layer.low is None or layer.high is None else [layer.y - layer.low, layer.high - layer.y]
        # matplotlib's ticks take no parse_math: a dollar sign is escaped
        names = [name.replace("$", r"\$") for name in layer.names]
        place.bar(names, layer.y, yerr=error, color=colour, label=layer.label if layer.legend else None)
    elif isinstance(layer, Heatmap):
        _heatmap(place, layer)


def _rule(place: Any, layer: Rule, style: str) -> None:
    if layer.finite:
        line, at = (place.axhline, layer.y) if layer.x is None else (place.axvline, layer.x)
        line(at, color=RULE_COLOUR, linewidth=0.9, linestyle=style, label=layer.label)


def _curve(place: Any, layer: Line | Points, colour: str, panel: Panel) -> None:
    drawn = curve(layer, panel)
    label = layer.label if layer.legend else None
    if isinstance(layer, Line):
        marker = "o" if layer.markers else None
        (line,) = place.plot(
            drawn.x, drawn.y, STYLES[layer.dash], color=colour, label=label, marker=marker, markersize=3
        )
        if len(drawn.x) > DENSE_POINTS:
            line.set_linewidth(0.5)
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
    place.figure.colorbar(mesh, ax=place).set_label(layer.label, parse_math=False)


def draw(figure: Figure, stem: Path) -> list[Path]:
    """Writes `stem`.png (200 dots per inch) and `stem`.svg, and returns their paths."""
    paths = [stem.with_suffix(ending) for ending in (".png", ".svg")]
    with drawn(figure) as canvas:
        for path in paths:
            # no date in the file: equal figures are equal bytes
            canvas.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths
