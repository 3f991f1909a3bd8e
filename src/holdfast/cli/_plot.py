"""Figures that commands write with --plot."""

from __future__ import annotations

from pathlib import Path

from holdfast._drawing.panels import drawn
from holdfast.errors import ArgumentError, BackendError
from holdfast.figures import Figure

DOTS_PER_INCH = 150


def check_plot(path: Path) -> None:
    """Refuses a file that no figure can be saved in, before anything is measured."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise BackendError("--plot needs matplotlib: pip install matplotlib") from error
    if path.suffix.lstrip(".").lower() not in FigureCanvasBase.get_supported_filetypes():
        raise ArgumentError(f"unknown kind of figure {path.suffix!r}; use .png, .pdf or .svg")


def write_plot(figure: Figure, path: Path) -> None:
    """Writes the figure; the format follows the file's ending, and missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with drawn(figure) as canvas:
        canvas.savefig(path, dpi=DOTS_PER_INCH)
