"""One-dimensional functions by sums of sigmoids, at equal distances or crowded where the function bends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

Sigmoid = Literal["tanh", "sigmoid"]
Function = Callable[[np.ndarray], np.ndarray]

WIDEST = 8192
_SOLVED = 1024  # widest least-squares problem, 2 s; wider sums take the difference quotients of f as weights
_OVERHANG = 6  # sigmoids past each end of the interval, so that the ends are no worse than the middle
# steepness times distance: smaller is more accurate for smooth f (aliasing e^(-pi^2 / 0.5) = 3e-9) and less well
# conditioned (about 1e5)
_STEEPNESS = 0.5
_CELLS = 4096  # of the grid on which the bends of f are looked for
_GRADING = 0.1  # how much a distance grows per unit of length away from a bend: neighbours differ by 10%


@dataclass(frozen=True, eq=False)
class Sigmoids:
    """f(x) ~ constant + sum_i weights_i sigma(steepness_i (x - positions_i)); one steepness may serve all."""

    positions: np.ndarray
    steepness: float | np.ndarray
    weights: np.ndarray
    constant: float
    activation: Sigmoid

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return _sigmoid(self.steepness * (x[:, None] - self.positions), self.activation) @ self.weights + self.constant


def widths() -> list[int]:
    """4, 6, 8, 12, 16, ...: the numbers of sigmoids that are tried."""
    steps = range(2, int(math.log2(WIDEST)) + 1)
    return [size for k in steps for size in (2**k, 3 * 2 ** (k - 1)) if size <= WIDEST]


def fit_sigmoids(f: Function, low: float, high: float, width: int, activation: Sigmoid = "tanh") -> Sigmoids:
    """`width` sigmoids for f on [low, high]: least squares up to 1024 of them, difference quotients beyond."""
    over = min(_OVERHANG, width // 4)
    gap = (high - low) / (width - 2 * over)
    positions = low + gap * (np.arange(width) + 0.5 - over)
    steepness = (2 if activation == "sigmoid" else 1) * _STEEPNESS / gap
    if width > _SOLVED:
        weights, constant = _difference_quotients(f, low, high, positions, gap, activation)
        return Sigmoids(positions, steepness, weights, constant, activation)
    x = np.linspace(low, high, 4 * width + 17)
    columns = _sigmoid(steepness * (x[:, None] - positions), activation)
    design = np.column_stack([columns, np.ones(len(x))])
    # smaller singular values would buy the last digits with weights of 1e10
    solved, *_ = np.linalg.lstsq(design, f(x), rcond=1e-9)
    return Sigmoids(positions, steepness, solved[:-1], float(solved[-1]), activation)


def fit_crowded(f: Function, low: float, high: float, width: int, activation: Sigmoid = "tanh") -> Sigmoids:
    """As `fit_sigmoids`, by least squares, with the sigmoids crowded where f bends: a kink costs log(1 / eps) units.

    A sigmoid's distance to the next goes like 1 / sqrt |f''|, as for broken lines, and grows by at most a tenth of the length
    from there on, so that neighbours have nearly the same steepness.
    """
    edges = _crowded_edges(f, low, high, width)
    gaps, positions = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    steepness = (2 if activation == "sigmoid" else 1) * _STEEPNESS / gaps
    x = np.unique(
        np.concatenate([edges[:-1, None] + gaps[:, None] * np.arange(4) / 4, edges[-1:, None] + np.zeros((1, 4))])
    )
    x = x[(x >= low) & (x <= high)]
    design = np.column_stack([_sigmoid(steepness * (x[:, None] - positions), activation), np.ones(len(x))])
    solved, *_ = np.linalg.lstsq(design, f(x), rcond=1e-9)
    return Sigmoids(positions, steepness, solved[:-1], float(solved[-1]), activation)


def _crowded_edges(f: Function, low: float, high: float, width: int) -> np.ndarray:
    """width + 1 edges from below `low` to above `high`, at quantiles of the density 1 / distance."""
    x = np.linspace(low, high, _CELLS + 1)
    cell = x[1] - x[0]
    bend = np.abs(np.diff(f(x), 2, append=0, prepend=0)[: len(x)]) / cell**2
    bend[[0, 1, -2, -1]] = 0
    wanted = np.sqrt(bend)  # as densities, up to a factor that the number of sigmoids sets
    over = min(_OVERHANG, width // 4)
    inside = width - 2 * over
    scale = 1.0
    for _ in range(40):
        distance = 1 / np.maximum(scale * wanted, inside / (2 * (high - low)))
        for order in (slice(None), slice(None, None, -1)):  # no distance is far larger than one beside it
            graded = distance[order]
            for k in range(1, len(graded)):
                graded[k] = min(graded[k], graded[k - 1] + _GRADING * cell)
        count = float((cell / distance)[:-1].sum())
        scale *= inside / count
        if abs(count / inside - 1) < 0.02:
            break
    mass = np.concatenate([[0.0], np.cumsum((cell / distance)[:-1])])
    edges = np.interp(np.linspace(0, mass[-1], inside + 1), mass, x)
    first, last = edges[1] - edges[0], edges[-1] - edges[-2]
    before, after = low - first * np.arange(over, 0, -1), high + last * np.arange(1, over + 1)
    return np.concatenate([before, edges, after])


def sigmoids_for_power(power: int, tolerance: float) -> tuple[Sigmoids, float]:
    """u^power on [-1, 1] by the fewest sigmoids with an error within `tolerance`, or the best there are; and the error."""
    best: tuple[Sigmoids, float] | None = None
    x = np.linspace(-1, 1, 3001)
    for width in widths():
        if width > 64:
            break  # a polynomial is at the floor of 1e-9 well before
        fit = fit_sigmoids(lambda u: u**power, -1.0, 1.0, width)
        error = float(np.abs(fit(x) - x**power).max())
        if best is None or error < best[1]:
            best = (fit, error)
        if best[1] <= tolerance:
            break
    assert best is not None
    return best


def _difference_quotients(
    f: Function, low: float, high: float, positions: np.ndarray, gap: float, activation: Sigmoid
) -> tuple[np.ndarray, float]:
    """Each sigmoid rises by what f rises over its own interval: f smoothed over a few intervals, no system to solve."""
    rises = f(np.clip(positions + gap / 2, low, high)) - f(np.clip(positions - gap / 2, low, high))
    start = float(f(np.array([low]))[0])
    return (rises, start) if activation == "sigmoid" else (rises / 2, start + float(rises.sum()) / 2)


def _sigmoid(z: np.ndarray, activation: Sigmoid) -> np.ndarray:
    return np.tanh(z) if activation == "tanh" else 0.5 * (1 + np.tanh(z / 2))
