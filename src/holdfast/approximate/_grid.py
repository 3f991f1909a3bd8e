"""Quadrature rules in time: fine where the fastest mode moves, wide enough for the slowest."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

Rule = tuple[Float64[np.ndarray, " time"], Float64[np.ndarray, " time"]]

_MAX_PANELS = 100_000  # panels of an oscillating kernel; beyond, periods are sampled thinner


def time_rule(
    end: float, fastest: float, *, panels: int = 400, nodes: int = 4, frequency: float = 0.0, until: float = math.inf
) -> Rule:
    """Times and weights of a composite Gauss-Legendre rule on [0, end], panels geometric after 0.001 / fastest.

    With a frequency no panel up to `until` is longer than an eighth of a period.
    """
    start = min(1e-3 / fastest, end / 2)  # before it the fastest mode falls by a thousandth: one panel is exact there
    edges = np.concatenate([[0.0], np.geomspace(start, end, panels)])
    if frequency > 0:
        longest = max(2 * np.pi / frequency / 8, min(end, until) / _MAX_PANELS)
        pieces = np.where(edges[:-1] < until, np.maximum(1, np.ceil(np.diff(edges) / longest)), 1).astype(int)
        inner = [np.linspace(a, b, n, endpoint=False) for a, b, n in zip(edges[:-1], edges[1:], pieces, strict=True)]
        edges = np.concatenate([*inner, edges[-1:]])
    x, w = np.polynomial.legendre.leggauss(nodes)
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    times = (middle[:, None] + half[:, None] * x).ravel()
    return times, (half[:, None] * w).ravel()


def sample_weights(time: Float64[np.ndarray, " time"]) -> Float64[np.ndarray, " time"]:
    """Weights of the trapezoidal rule on given times."""
    steps = np.diff(time)
    return (np.concatenate([steps, [0.0]]) + np.concatenate([[0.0], steps])) / 2
