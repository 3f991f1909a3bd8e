"""Sums of exponentials whose error alternates between equal extremes: the exchange of times and Newton's method on them.

On fixed times the 2k + 1 equations error = +-E are solved in log rates, log weights and E. They are ill conditioned,
about 1/E, yet what a step leaves over is again nearly a sum of these modes, so that the steps stay small: they are
damped by the size of the next step and not by the residual, which says nothing (Deuflhard's natural monotonicity test).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

# 64 bits of mantissa where the machine has them: at order 32 float64's rounding is a percent of the error
Extended = np.longdouble
Row = np.ndarray  # of numbers, float64 or extended

ROUNDING_FLOOR = 2e-15  # of the largest value: below lie rounding errors
_MAX_STEPS = 40  # of Newton's method on fixed times
_MAX_EXCHANGES = 25
_GRID_POINTS = 16  # of the grid between two times of the alternation
_EQUATION_TOLERANCE = 1e-5  # share of E that the equations may miss
_RIPPLE_TOLERANCE = 1e-4  # ripple at which the exchange ends
_MAX_RIPPLE = (
    1e-2  # ripple up to which a sum counts as best; rounding leaves more than _RIPPLE_TOLERANCE at errors near 1e-14
)


@dataclass(frozen=True, eq=False)
class Alternation:
    """A sum with the times at which its error alternates, by which share those errors differ, and the largest of all."""

    log_rates: Row
    log_weights: Row
    level: float
    times: Row
    ripple: float = np.inf
    largest: float = np.inf

    @property
    def order(self) -> int:
        """The number of modes."""
        return len(self.log_rates)

    @property
    def rates(self) -> Row:
        """In float64."""
        return np.exp(self.log_rates).astype(np.float64)

    @property
    def weights(self) -> Row:
        """In float64."""
        return np.exp(self.log_weights).astype(np.float64)

    @property
    def signs(self) -> Row:
        """+1, -1, ..., +1: the sign of the error at each time."""
        return (-1.0) ** np.arange(2 * self.order + 1)


@dataclass(frozen=True, eq=False)
class AlternationProblem:
    """The kernel on [0, end], in extended precision where its formula is known."""

    function: Callable[[Row], Row]
    end: float
    size: float

    def exact(self, at: Alternation) -> bool:
        """Whether the error is rounding alone."""
        return at.largest <= ROUNDING_FLOOR * self.size

    def errors(self, at: Alternation, t: Row) -> Row:
        """rho - sum at the times t."""
        modes = np.exp(-np.multiply.outer(t.astype(Extended), np.exp(at.log_rates)))
        return self.function(t) - modes @ np.exp(at.log_weights)


def exchanged(problem: AlternationProblem, at: Alternation) -> Alternation | None:
    """The sum whose error alternates between equal extremes, from a start; None where that leads nowhere."""
    best: Alternation | None = None
    for _ in range(_MAX_EXCHANGES):
        if not _in_order(at):
            break
        at = _levelled(problem, _solved(problem, at))
        if problem.exact(at):
            return at
        if best is not None and best.ripple < _MAX_RIPPLE and at.ripple >= best.ripple:
            break
        best = at if best is None or at.ripple < best.ripple else best
        if best.ripple < _RIPPLE_TOLERANCE:
            break
    return best if best is not None and best.ripple < _MAX_RIPPLE else None


def _in_order(at: Alternation) -> bool:
    rows = (at.times, at.log_rates)
    return all(bool(np.isfinite(row).all() and (np.diff(row) > 0).all()) for row in rows)


def _solved(problem: AlternationProblem, at: Alternation) -> Alternation:
    """Newton's method for error(times) = +-level; the last point that a step led nearer to."""
    # log rates in float64 would move rates by 1e-15
    at = replace(at, log_rates=at.log_rates.astype(Extended), log_weights=at.log_weights.astype(Extended))
    for _ in range(_MAX_STEPS):
        gaps = _gaps(problem, at)
        if np.abs(gaps).max() <= max(_EQUATION_TOLERANCE * at.level, ROUNDING_FLOOR * problem.size / 100):
            break
        moved = _stepped(problem, at, gaps)
        if moved is None:
            break
        at = moved
    return at


def _stepped(problem: AlternationProblem, at: Alternation, gaps: Row) -> Alternation | None:
    """The longest part of Newton's step after which the next would be shorter; None where no part is."""
    from scipy.linalg import LinAlgWarning, lu_factor, lu_solve

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LinAlgWarning)  # a singular matrix gives a step that is refused below
        factors = lu_factor(_jacobian(at).astype(np.float64))
    step = lu_solve(factors, gaps.astype(np.float64))
    size, k = float(np.abs(step).max()), at.order
    # at most 0.7 in log rates and log weights: a factor of 2, within which the linearization means something
    share = min(1.0, 0.7 / size) if np.isfinite(size) else 0.0
    while share > 1e-4:
        moved = replace(
            at, log_rates=at.log_rates + share * step[:k], log_weights=at.log_weights + share * step[k : 2 * k],
            level=at.level * (1 + share * step[-1]),
        )  # fmt: skip
        left = _gaps(problem, moved)
        # Deuflhard's natural test: steps by the old factors fall where gaps of very different sizes need not
        following = np.abs(lu_solve(factors, left.astype(np.float64))).max()
        # near the end rounding alone makes steps of 1e-6, while the gaps still fall
        if following <= (1 - share / 4) * size or (size < 1e-3 and np.abs(left).max() < np.abs(gaps).max() / 2):
            return moved
        share /= 2
    return None


def _gaps(problem: AlternationProblem, at: Alternation) -> Row:
    return problem.errors(at, at.times) - at.signs * at.level


def _jacobian(at: Alternation) -> np.ndarray:
    """Of the sum plus the alternating level in log rates, log weights and the level's share."""
    decay = np.multiply.outer(at.times.astype(Extended), np.exp(at.log_rates))
    modes = np.exp(-decay) * np.exp(at.log_weights)
    return np.concatenate([-modes * decay, modes, (at.signs * abs(at.level))[:, None]], axis=1)


def _levelled(problem: AlternationProblem, at: Alternation) -> Alternation:
    """The same sum with each time moved to the nearest extreme of the error, and the ripple of those extremes."""
    quick = np.exp(np.float64(at.log_rates[-1]))
    # log(1 + rate t): even points resolve the start, and the long tail as well
    u = np.log1p(quick * at.times)
    pieces = [np.linspace(a, b, _GRID_POINTS, endpoint=False) for a, b in itertools.pairwise(u)]
    # behind the last time the error may have its largest value: looked at with four times the points
    last = np.linspace(u[-1], np.log1p(quick * problem.end), 4 * _GRID_POINTS)
    grid = np.concatenate([*pieces, last if at.times[-1] < problem.end else u[-1:]])
    t = np.minimum(np.expm1(grid) / quick, problem.end)
    errors = problem.errors(at, t)
    times = []
    for j, sign in enumerate(at.signs):
        # between the neighbours of a time, so that extremes keep their order and their signs alternate
        low = max(j - 1, 0) * _GRID_POINTS
        high = (j + 1) * _GRID_POINTS + 1 if j < 2 * at.order else len(grid)
        place = low + int(np.argmax(sign * errors[low:high]))
        times.append(_peak(grid, sign * errors, place))
    moved = np.clip(np.expm1(np.array(times)) / quick, 0.0, problem.end)
    if times[-1] == grid[-1]:
        moved[-1] = problem.end
    sizes = (at.signs * problem.errors(at, moved)).astype(np.float64)
    # de la Vallee Poussin: the best error lies between the smallest and the largest extreme
    ripple = float(sizes.max() / sizes.min() - 1) if sizes.min() > 0 else np.inf
    return replace(at, times=moved, ripple=ripple, largest=float(np.abs(errors).max()))


def _peak(grid: Row, values: Row, place: int) -> float:
    """The top of the parabola through a largest value and its neighbours."""
    if place in (0, len(grid) - 1):
        return float(grid[place])
    x, y = grid[place - 1 : place + 2], values[place - 1 : place + 2].astype(np.float64)
    left, right = (x[1] - x[0]) * (y[1] - y[2]), (x[1] - x[2]) * (y[1] - y[0])
    if left == right:
        return float(x[1])
    top = x[1] - 0.5 * ((x[1] - x[0]) * left - (x[1] - x[2]) * right) / (left - right)
    return float(np.clip(top, x[0], x[2]))
