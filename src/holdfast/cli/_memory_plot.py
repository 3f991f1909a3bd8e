"""Memory curves as characters in a terminal, and as figures."""

from __future__ import annotations

import math

import numpy as np

from holdfast.decay import DecayFit, envelope
from holdfast.figures import Axis, Figure, Layer, Line, Panel
from holdfast.memory import MemoryCurve

WIDTH, HEIGHT = 68, 14  # with the numbers at its left it fits 80 columns


def terminal_plot(curve: MemoryCurve, width: int = WIDTH, height: int = HEIGHT) -> str:
    """log10 of the curve over time: a column is the largest and smallest value in its stretch of time."""
    values = np.where(np.isfinite(curve.values), curve.values, np.nan)
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) == 0:
        return "  (nothing above zero to plot)"
    top = math.ceil(math.log10(positive.max()))
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
