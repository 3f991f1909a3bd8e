"""The fitting problem on a finite set of times: values, weights of the L1 norm, and the modes as columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64

from holdfast.approximate._target import Target

FitNorm = Literal["l1", "sup"]
QuadratureRule = tuple[Float64[np.ndarray, " time"], Float64[np.ndarray, " time"]]

_MAX_PANELS = 100_000  # panels of an oscillating kernel; beyond, periods are sampled thinner


@dataclass(frozen=True, eq=False)
class FitProblem:
    """Times, rho there, and weights whose sum of |error| is the L1 norm (without `rest`, the law's tail after them)."""

    time: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    rest: float = 0.0

    def modes(self, rates: np.ndarray) -> np.ndarray:
        """exp(-rates t), one column per mode."""
        return np.exp(-np.multiply.outer(self.time, rates))

    def l1(self, gaps: np.ndarray) -> float:
        """The L1 norm of the errors `gaps` at the times, tail included."""
        return float(np.abs(gaps) @ self.weights) + self.rest


def pose(
    target: Target, slowest: float, fastest: float, *, panels: int = 200, nodes: int = 2, thin: int | None = None
) -> FitProblem:
    """The problem for modes between two rates.

    For a law over all times the times reach 60 time constants of the slowest mode, where only the law itself is left;
    else they end with what is known. Of samples all are taken, or about `thin` of them, fewer as time goes on.
    """
    if target.sampled:
        assert target.time is not None and target.values is not None
        kept = slice(None) if thin is None or len(target.time) <= thin else _thinned(len(target.time), thin)
        return FitProblem(target.time[kept], target.values[kept], sample_weights(target.time[kept]))
    # e^-60 = 9e-27: after that only the law is left, and its tail is known exactly
    end = 60 / slowest if target.endless else target.end
    quickest = max(fastest, target.fastest)
    # faster oscillations average out over every mode of the sum
    frequency = min(target.frequency, 50 * quickest)
    t, w = time_rule(end, quickest, panels=panels, nodes=nodes, frequency=frequency, until=target.oscillates_until)
    return FitProblem(t, target(t), w, target.rest(end))


def _thinned(count: int, wanted: int) -> np.ndarray:
    return np.unique(np.concatenate([[0.0], np.geomspace(1, count - 1, wanted)]).round().astype(int))


def condition(problem: FitProblem, rates: np.ndarray) -> tuple[float, int]:
    """Condition number and numerical rank of the modes as weighted columns of unit norm."""
    columns = problem.modes(rates) * np.sqrt(problem.weights)[:, None]
    norms = np.linalg.norm(columns, axis=0)
    sizes = np.linalg.svd(columns / np.where(norms > 0, norms, 1), compute_uv=False)
    # the tolerance of numpy's matrix_rank
    cut = sizes[0] * max(columns.shape) * np.finfo(float).eps
    rank = int((sizes > cut).sum())
    # with fewer times than modes the columns depend on each other: numpy lists only the first min(shape) values
    full = len(sizes) == len(rates) and sizes[-1] > 0
    return (float(sizes[0] / sizes[-1]) if full else math.inf), rank


def time_rule(
    end: float, fastest: float, *, panels: int = 400, nodes: int = 4, frequency: float = 0.0, until: float = math.inf
) -> QuadratureRule:
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
