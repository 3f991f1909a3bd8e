"""Figures and tables as data: what is drawn, not how. One spec serves the page (plotly) and the static files (matplotlib).

A Figure holds panels, a panel holds layers (Line, Points, Bars, Heatmap, Rule), a layer holds its numbers. Saved, the
numbers go into the result's arrays and the spec keeps their names, so that every point of a figure can be found in a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from holdfast.errors import ArgumentError, ShapeError

Dash = Literal["solid", "dash", "dot"]
Cell = float | int | str | bool | None
Numbers = Any  # a list or array of real numbers; a layer holds it as an array
ARRAYS = "figure."  # what the names of a figure's arrays begin with


@dataclass(frozen=True)
class Axis:
    """An axis: its label with the unit or letter, a logarithmic scale or not, and limits where the data's do not suit."""

    label: str
    log: bool = False
    limits: tuple[float, float] | None = None


class Layer:
    """Base of everything that is drawn in a panel."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The layer's numbers by field."""
        return {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), np.ndarray)}  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class _Curve(Layer):
    label: str
    x: Numbers
    y: Numbers
    low: Numbers = None
    high: Numbers = None
    colour: int | None = None
    legend: bool = True

    def __post_init__(self) -> None:
        for name in ("x", "y", "low", "high"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _numbers(getattr(self, name)))
        shapes = {name: a.shape for name, a in self.arrays().items()}
        if self.x.ndim != 1 or len(set(shapes.values())) != 1:
            raise ShapeError(f"{self.label!r}: x, y, low and high must be lists of one length, came {shapes}")
        if (self.low is None) != (self.high is None):
            raise ArgumentError(f"{self.label!r}: a band needs both low and high")


@dataclass(frozen=True, eq=False)
class Line(_Curve):
    """A line through (x, y), with a band between `low` and `high` where given; NaN breaks it, +inf is marked at the top.

    `colour` is a slot of the palette (equal slots, equal colours, over all panels of a figure); None takes the next one.
    """

    markers: bool = False
    dash: Dash = "solid"


@dataclass(frozen=True, eq=False)
class Points(_Curve):
    """Points at (x, y), with error bars from `low` to `high` where given."""


@dataclass(frozen=True, eq=False)
class Bars(Layer):
    """One bar a name, with error bars from `low` to `high` where given."""

    label: str
    names: Sequence[str]
    y: Numbers
    low: Numbers = None
    high: Numbers = None
    colour: int | None = None
    legend: bool = True

    def __post_init__(self) -> None:
        for name in ("y", "low", "high"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _numbers(getattr(self, name)))
        if any(a.shape != (len(self.names),) for a in self.arrays().values()):
            raise ShapeError(f"{self.label!r}: one number a name is needed, {len(self.names)} names came")


@dataclass(frozen=True, eq=False)
class Heatmap(Layer):
    """Numbers z over a grid, z[i, j] at (x[j], y[i]); `image` draws grey pixels with the first row on top."""

    label: str
    x: Numbers
    y: Numbers
    z: Numbers
    log: bool = False
    image: bool = False

    def __post_init__(self) -> None:
        for name in ("x", "y", "z"):
            object.__setattr__(self, name, _numbers(getattr(self, name)))
        if self.z.shape != (*self.y.shape, *self.x.shape):
            raise ShapeError(
                f"{self.label!r}: z must be (y, x), came {self.z.shape=}, {self.y.shape=}, {self.x.shape=}"
            )

    @classmethod
    def picture(cls, label: str, pixels: Numbers) -> Heatmap:
        """An image, (rows, columns)."""
        rows, columns = np.shape(pixels)
        return cls(label, np.arange(columns), np.arange(rows), pixels, image=True)


@dataclass(frozen=True)
class Rule(Layer):
    """A straight line across the panel to compare with, at x or at y; one at infinity is kept and not drawn."""

    label: str
    x: float | None = None
    y: float | None = None

    def __post_init__(self) -> None:
        if (self.x is None) == (self.y is None):
            raise ArgumentError(f"{self.label!r}: a rule lies at x or at y, one of them")

    @property
    def finite(self) -> bool:
        """Whether it can be drawn."""
        return math.isfinite(self.y if self.x is None else self.x)  # type: ignore[arg-type]


KINDS: dict[str, type[Layer]] = {c.__name__.lower(): c for c in (Line, Points, Bars, Heatmap, Rule)}


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis
    layers: Sequence[Layer]
    equal: bool = False  # one unit of x as long as one of y


@dataclass(frozen=True)
class Figure:
    """Panels with a caption. `name` is short and unique within its experiment: file names are made from it.

    The caption says what is seen to somebody who cannot see it: it is the figure's text alternative too.
    """

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 2

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9-]+", self.name):
            raise ArgumentError(f"a figure's name has small letters, digits and '-', came {self.name!r}")


@dataclass(frozen=True)
class Table:
    """Rows of numbers and text under column heads."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ShapeError(f"table {self.name!r} has {len(self.columns)} columns; a row has {len(row)}: {row}")


@dataclass(frozen=True)
class Page:
    """What the report shows of a result: where it belongs, what was computed, figures, tables, notes."""

    paper: str
    where: str
    title: str
    summary: str
    preset: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def pack(page: Page) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The page as plain values with names in place of arrays, and the arrays; equal arrays are kept once."""
    arrays: dict[str, np.ndarray] = {}
    seen: dict[tuple[Any, ...], str] = {}

    def keep(name: str, array: np.ndarray) -> dict[str, str]:
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in seen:
            seen[key] = name
            arrays[name] = array
        return {"array": seen[key]}

    plain = {f.name: getattr(page, f.name) for f in fields(page) if f.name not in ("figures", "tables", "notes")}
    plain["figures"] = [_pack_figure(figure, keep) for figure in page.figures]
    plain["tables"] = [
        {"name": t.name, "caption": t.caption, "columns": list(t.columns), "rows": [list(r) for r in t.rows]}
        for t in page.tables
    ]
    plain["notes"] = list(page.notes)
    return plain, arrays


def unpack(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Page:
    """The page back from what `pack` gave."""
    values = dict(plain)
    values["figures"] = [_unpack_figure(figure, arrays) for figure in plain["figures"]]
    values["tables"] = [Table(**table) for table in plain["tables"]]
    return Page(**values)


def _pack_figure(figure: Figure, keep: Any) -> dict[str, Any]:
    panels = []
    for p, panel in enumerate(figure.panels):
        layers = []
        for k, layer in enumerate(panel.layers):
            label = re.sub(r"[^A-Za-z0-9_=+-]+", "-", str(getattr(layer, "label", ""))).strip("-")
            stem = f"{ARRAYS}{figure.name}.{p}.{k}-{label}"
            packed: dict[str, Any] = {"kind": type(layer).__name__.lower()}
            for f in fields(layer):  # type: ignore[arg-type]
                value = getattr(layer, f.name)
                packed[f.name] = keep(f"{stem}.{f.name}", value) if isinstance(value, np.ndarray) else value
            layers.append(packed)
        axes = {n: {f.name: getattr(a, f.name) for f in fields(a)} for n, a in (("x", panel.x), ("y", panel.y))}
        panels.append({"title": panel.title, **axes, "layers": layers, "equal": panel.equal})
    return {"name": figure.name, "caption": figure.caption, "panels": panels, "columns": figure.columns}


def _unpack_figure(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Figure:
    panels = []
    for panel in plain["panels"]:
        layers = [
            KINDS[layer["kind"]](**{k: _find(v, arrays) for k, v in layer.items() if k != "kind"})
            for layer in panel["layers"]
        ]
        axes = {n: Axis(**{**panel[n], "limits": _pair(panel[n]["limits"])}) for n in ("x", "y")}
        panels.append(Panel(panel["title"], axes["x"], axes["y"], layers, panel["equal"]))
    return Figure(plain["name"], plain["caption"], panels, plain["columns"])


def _find(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    return arrays[value["array"]] if isinstance(value, Mapping) and set(value) == {"array"} else value


def _pair(limits: Sequence[float] | None) -> tuple[float, float] | None:
    return None if limits is None else (float(limits[0]), float(limits[1]))


def _numbers(values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ArgumentError(f"a figure is drawn from real numbers, came {array.dtype}; take abs, real or imag first")
    return array
