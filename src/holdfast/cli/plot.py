"""Figures that commands write with --plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import ArgumentError, BackendError


def new_figure(path: Path, size: tuple[float, float] = (8, 4.5)) -> Any:
    """An empty figure that can be saved at `path`; an error where that is not possible, before anything is measured."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendError("--plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=size, layout="constrained")
    if path.suffix.lstrip(".").lower() not in figure.canvas.get_supported_filetypes():
        raise ArgumentError(f"unknown kind of figure {path.suffix!r}; use .png, .pdf or .svg")
    return figure


def save(figure: Any, path: Path) -> None:
    """Writes the figure; the format follows the file's ending, and missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
