"""Figures that commands write with --plot, and memory curves as characters in a terminal."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from holdfast._drawing.panels import drawn
from holdfast.decay import DecayFit, KernelFit, envelope
from holdfast.errors import ArgumentError, BackendError
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Points, Rule
from holdfast.memory import MemoryCurve

DOTS_PER_INCH = 150
WIDTH, HEIGHT = 68, 14  # with the numbers at its left it fits 80 columns


def check_plot(path: Path) -> None:
    """Refuses a file that no figure can be saved in, before anything is measured."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise BackendError("--plot needs matplotlib: pip install matplotlib") from error
    if path.suffix.lstrip(".").lower() not in FigureCanvasBase.get_supported_filetypes():
        raise ArgumentError(f"--plot must end in .png, .pdf or .svg, got {str(path)!r}")


def write_plot(figure: Figure, path: Path) -> None:
    """Writes the figure; the format follows the file's ending, and missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with drawn(figure) as canvas:
        canvas.savefig(path, dpi=DOTS_PER_INCH)


def kernel_figure(name: str, fit: KernelFit) -> Figure:
    """|rho| and the chosen sum over time; L1 and sup errors over the number of modes, with the tolerance."""
    orders = sorted(fit.sums)
    kernel = [
        Points("|rho|", fit.time, np.abs(fit.values)),
        Line(f"{fit.chosen} modes, {fit.best.method}", fit.time, np.abs(fit.best(fit.time))),
    ]
    errors = [
        Line("L1 error", orders, [fit.sums[m].l1_error for m in orders], markers=True),
        Line("sup error", orders, [fit.sums[m].sup_error for m in orders], markers=True),
        Rule("tolerance (L1)", y=fit.tolerance * fit.size),
    ]
    panels = [
        Panel(name, Axis("t"), Axis("|rho|", log=True), kernel),
        Panel("Errors", Axis("modes", log=True), Axis("error", log=True), errors),
    ]
    return Figure("kernel", f"{name} with the sum of {fit.chosen} modes, and errors by the number of modes.", panels)


def terminal_plot(curve: MemoryCurve, width: int = WIDTH, height: int = HEIGHT) -> str:
    """log10 of the curve over time: a column is the largest and smallest value in its stretch of time."""
    values = np.where(np.isfinite(curve.values), curve.values, np.nan)
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) == 0:
        return "  (nothing above zero to plot)"
    top = math.ceil(math.log10(positive.max()))
    # 20 decades are more than float64 tells apart: a value that fell to 1e-300 would flatten the rest
    bottom = max(math.floor(math.log10(positive.min())), top - 20)
    bottom = min(bottom, top - 1)
    grid = [[" "] * width for _ in range(height)]
    for column, part in enumerate(np.array_split(values, width)):
        part = part[np.isfinite(part) & (part > 0)]
        if len(part) == 0:
            continue
        high, low = (_row(value, top, bottom, height) for value in (part.max(), part.min()))
        for row in range(high, low + 1):
            grid[row][column] = ":"
        grid[high][column] = "*"
    lines = []
    for row in range(height):
        power = top - (top - bottom) * row / (height - 1)
        lines.append(f"{10**power:8.1e} |" + "".join(grid[row]).rstrip())
    lines.append(" " * 9 + "+" + "-" * width)
    lines.append(f"{'t =':>9} {curve.time[0]:<g}" + f"{curve.time[-1]:>{width - 1}g}")
    return "\n".join(lines)


def shown(curve: MemoryCurve, fit: DecayFit) -> MemoryCurve:
    """The curve up to where it sinks into its rounding errors, and a twentieth further to show that it does."""
    return curve.until(max(fit.window[1] + 0.05 * (fit.window[1] - float(curve.time[0])), float(curve.time[0])))


def _row(value: float, top: int, bottom: int, height: int) -> int:
    share = (top - math.log10(value)) / (top - bottom)
    return min(max(round(share * (height - 1)), 0), height - 1)


def memory_figure(curves: dict[str, MemoryCurve], fits: dict[str, DecayFit], title: str) -> Figure:
    """The curves, each with its envelope."""
    layers: list[Layer] = []
    for k, (name, whole) in enumerate(curves.items()):
        curve = shown(whole, fits[name])
        layers.append(Line(_label(name, fits[name]), curve.time, curve.values, colour=k))
        layers.append(Line("envelope", curve.time, envelope(curve), colour=k, dash="dot", legend=k == 0))
    panel = Panel(title, Axis("t"), Axis("M(t)", log=True), layers)
    return Figure("memory", f"Memory functions of {title}, and their envelopes.", [panel])


def _label(name: str, fit: DecayFit) -> str:
    return f"{name}: {fit.law}" + (f", {fit.constant[1]:.3g}" if fit.constant else "")
