"""Exponential sums with free rates: variable projection, reweighted towards the L1 norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.approximate._linear import fit_nonnegative
from holdfast.approximate._problem import FitProblem, condition, pose
from holdfast.approximate._sums import ExponentialSum, SumStatus
from holdfast.approximate._target import Target

_REWEIGHTINGS = 8  # the L1 error settles to a percent after about five
# relative to the largest: below, weights of opposite sign and any size would hide in rounding
_MIN_SINGULAR_VALUE = 1e-11


@dataclass(frozen=True, eq=False)
class _Point:
    """Log rates, weights, and the L1 error with them; whether the search that led there ended by itself."""

    error: float
    theta: np.ndarray
    coefficients: np.ndarray
    converged: bool = True


def fit_nonlinear(target: Target, order: int, rates: np.ndarray | None, horizon: float) -> ExponentialSum:
    """Rates and weights together: min over log rates of the weighted least-squares error, weights projected out.

    Golub and Pereyra's variable projection with Kaufman's Jacobian; the weights 1/|error| of each round turn squares
    into absolute values. Starts from the non-negative fit, from rates spread over the kernel's time scales (a kernel that
    changes sign leads non-negative weights astray), and from the main modes of a larger fit; or only from `rates`. The
    point with the smallest L1 error is kept. Weights may have any sign; for a completely monotone law they come out positive.
    """
    start = fit_nonnegative(target, order, rates, horizon)
    slowest = min(1 / horizon, start.rates.min())
    # times fine enough for rates ten times the start's: the search may make them faster
    problem = pose(target, slowest, max(start.rates.max() * 10, target.fastest), thin=2000)
    starts = [start.rates]
    if rates is None:
        starts += [_spread(problem, order, slowest, target.fastest), _pruned(problem, order, slowest, target.fastest)]
    # the start itself is a candidate: a search in squares may end at a larger L1 error
    plain = _Point(
        problem.l1(problem.values - problem.modes(start.rates) @ start.coefficients),
        np.log(start.rates),
        start.coefficients,
    )
    best = min([plain, *(_search(problem, at, slowest) for at in starts)], key=lambda point: point.error)
    fitted = np.exp(best.theta)
    number, rank = condition(problem, fitted)
    status: SumStatus = "ok"
    notes: tuple[str, ...] = ()
    if rank < order:
        status = "rank deficient"
        notes = (f"{order} modes have numerical rank {rank}: rates that meet act as t e^-rt, by large weights",)
    if not best.converged:
        status = "not converged"
        notes += ("the search for rates stopped at its limit of steps; the best point is given",)
    return ExponentialSum(
        fitted, best.coefficients, method="nonlinear", condition=number, rank=rank, status=status, notes=notes
    )


def _spread(problem: FitProblem, order: int, slowest: float, fastest: float) -> np.ndarray:
    """Geometric rates from one over the time that holds 99% of the kernel to a third of the fastest."""
    mass = np.cumsum(np.abs(problem.values) * problem.weights)
    late = float(problem.time[int(np.searchsorted(mass, 0.99 * mass[-1]))])
    low = max(slowest, 1 / max(late, 1e-300))
    return np.geomspace(low, max(fastest / 3, 2 * low), order)


def _pruned(problem: FitProblem, order: int, slowest: float, fastest: float) -> np.ndarray:
    """The `order` modes that matter most, by their L1 norm |c| / rate, of a fit with two more."""
    wide = _search(problem, _spread(problem, order + 2, slowest, fastest), slowest)
    rates = np.exp(wide.theta)
    return np.sort(rates[np.argsort(-np.abs(wide.coefficients) / rates)[:order]])


def _search(problem: FitProblem, rates: np.ndarray, slowest: float) -> _Point:
    """Rounds of reweighted least squares from `rates`; the best of them."""
    # log rates: they stay positive, and a step is a relative change
    theta = np.log(rates)
    coefficients = _project(problem, theta, np.sqrt(problem.weights))[1]
    best = _Point(_l1(problem, theta, coefficients), theta, coefficients)
    failures = 0
    for _ in range(_REWEIGHTINGS):
        root = np.sqrt(_reweighted(problem, theta, coefficients))
        theta, converged = _refine(problem, theta, root, np.log(slowest))
        coefficients = _project(problem, theta, root)[1]
        error = _l1(problem, theta, coefficients)
        # reweighting does not fall at every round: one that gains less than a percent is forgiven, two end it
        failures = 0 if error < 0.99 * best.error else failures + 1
        if error < best.error:
            best = _Point(error, theta, coefficients, converged)
        if failures == 2:
            break
    return best


def _l1(problem: FitProblem, theta: np.ndarray, coefficients: np.ndarray) -> float:
    return problem.l1(problem.values - problem.modes(np.exp(theta)) @ coefficients)


def _reweighted(problem: FitProblem, theta: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """w / |error|: then the sum of squares is the L1 norm. Near the errors' zeros |error| is held at a tenth."""
    gaps = np.abs(problem.values - problem.modes(np.exp(theta)) @ coefficients)
    size = np.abs(problem.values)
    share = (gaps @ problem.weights) / max(float(size @ problem.weights), 1e-300)
    return problem.weights / np.maximum(gaps, 0.1 * share * size + 1e-6 * gaps.max() + 1e-300)


def _project(problem: FitProblem, theta: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weighted errors after the best weights, those weights, and an orthonormal basis of the modes."""
    A = problem.modes(np.exp(theta)) * root[:, None]
    norms = np.linalg.norm(A, axis=0)
    # columns of unit norm, so that the cut below does not depend on the sizes of the modes
    norms = np.where(norms > 0, norms, 1)
    U, sizes, Vh = np.linalg.svd(A / norms, full_matrices=False)
    keep = sizes > _MIN_SINGULAR_VALUE * sizes[0]
    y = problem.values * root
    coefficients = (Vh[keep].T @ ((U[:, keep].T @ y) / sizes[keep])) / norms
    return y - A @ coefficients, coefficients, U[:, keep]


def _refine(problem: FitProblem, theta: np.ndarray, root: np.ndarray, slowest: float) -> tuple[np.ndarray, bool]:
    from scipy.optimize import least_squares

    def errors(at: np.ndarray) -> np.ndarray:
        return _project(problem, at, root)[0]

    def jacobian(at: np.ndarray) -> np.ndarray:
        _, coefficients, basis = _project(problem, at, root)
        rates = np.exp(at)
        moved = problem.modes(rates) * np.multiply.outer(problem.time, rates) * coefficients * root[:, None]
        # Kaufman: the part along the modes is taken up by the weights, and the term that is left out is second order
        return moved - basis @ (basis.T @ moved)

    # in units of the first error, so that the solver's tolerances are relative
    scale = max(float(np.linalg.norm(errors(theta))), 1e-300)
    solution = least_squares(
        lambda at: errors(at) / scale,
        theta,
        jac=lambda at: jacobian(at) / scale,
        # no slower than the horizon, and at most e^3 = 20 times the fastest of the start
        bounds=(np.full(len(theta), slowest - 1e-9), np.maximum(theta, theta.max()) + 3),
        max_nfev=40,
        xtol=1e-9,
        ftol=1e-6,
        gtol=1e-12,
    )
    return solution.x, bool(solution.status > 0)
