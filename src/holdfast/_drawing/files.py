"""PNG and SVG of a figure by matplotlib, from the same spec as the page."""

from __future__ import annotations

from pathlib import Path

from holdfast._drawing.panels import drawn
from holdfast.figures import Figure


def draw(figure: Figure, stem: Path) -> list[Path]:
    """Writes `stem`.png (200 dots an inch) and `stem`.svg, and gives back their paths."""
    paths = [stem.with_suffix(ending) for ending in (".png", ".svg")]
    with drawn(figure) as canvas:
        for path in paths:
            # no date in the file: equal figures are equal bytes
            canvas.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths
