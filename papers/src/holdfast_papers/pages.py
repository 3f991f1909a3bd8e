"""What the report shows of a result, as data: figures, tables and notes, packed with their arrays apart.

Saved, the numbers of a figure go into the result's arrays and the spec keeps their names, so that every point of a figure
can be found in a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np

from holdfast.errors import ShapeError
from holdfast.figures import Axis, Bars, Figure, Heatmap, Layer, Line, Panel, Points, Rule

Cell = float | int | str | bool | None
ARRAYS = "figure."  # what the names of a figure's arrays begin with
KINDS: dict[str, type[Layer]] = {c.__name__.lower(): c for c in (Line, Points, Bars, Heatmap, Rule)}


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
                raise ShapeError(
                    f"table {self.name!r}: expected {len(self.columns)} cells in each row, got {len(row)}: {row}"
                )


@dataclass(frozen=True)
class Note:
    """A note on the data of an experiment, which the page shows above everything else.

    Args:
        about: "data": which were used; "other data": these are not the paper's.
        text: the note.
    """

    about: Literal["data", "other data"]
    text: str


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
    notes: Sequence[str | Note] = ()


def pack(page: Page) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The page as plain values with names instead of arrays, and the arrays; equal arrays are kept once."""
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
    plain["notes"] = [asdict(note) if isinstance(note, Note) else note for note in page.notes]
    return plain, arrays


def unpack(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Page:
    """The page back from what `pack` gave."""
    values = dict(plain)
    values["figures"] = [_unpack_figure(figure, arrays) for figure in plain["figures"]]
    values["tables"] = [Table(**table) for table in plain["tables"]]
    values["notes"] = [Note(**note) if isinstance(note, Mapping) else note for note in plain["notes"]]
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
