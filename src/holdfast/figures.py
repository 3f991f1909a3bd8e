"""Figures as data: what is drawn, not how. One spec serves `plot()` and files (matplotlib) and the papers' page (plotly).

A Figure holds panels, a panel holds layers (Line, Points, Bars, Heatmap, Rule), a layer holds its numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from holdfast.errors import ArgumentError, ShapeError

Dash = Literal["solid", "dash", "dot"]
Numbers = Any  # a list or array of real numbers; a layer holds it as an array


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
            raise ShapeError(f"{self.label!r}: x, y, low and high must be lists of one length, got {shapes}")
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
            raise ShapeError(f"{self.label!r}: expected one number for each of the {len(self.names)} names")


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
            raise ShapeError(f"{self.label!r}: z must be (y, x), got {self.z.shape=}, {self.y.shape=}, {self.x.shape=}")

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
            raise ArgumentError(f"{self.label!r}: a line needs x or y, one of them; got x={self.x!r}, y={self.y!r}")

    @property
    def finite(self) -> bool:
        """Whether it can be drawn."""
        return math.isfinite(self.y if self.x is None else self.x)  # type: ignore[arg-type]


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

    The caption says what is seen for a reader who cannot see it: it is the figure's text alternative too.
    """

    name: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 2

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9-]+", self.name):
            raise ArgumentError(f"the name of a figure must be lower-case letters, digits and '-', got {self.name!r}")


def _numbers(values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ArgumentError(f"a figure needs real numbers, got {array.dtype}; take abs, real or imag first")
    return array
