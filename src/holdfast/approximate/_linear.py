"""Exponential sums on a fixed grid of rates: least squares, as the papers do, and non-negative weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64

from holdfast.approximate._problem import FitNorm, FitProblem, condition, pose
from holdfast.approximate._sums import ExponentialSum, SumStatus
from holdfast.approximate._target import Target
from holdfast.errors import ArgumentError
from holdfast.laws import Exponential, ExponentialMixture, PowerLaw, ReciprocalSum

_MAX_SEARCHES = 55  # small linear programs to place the ends of the rate grid: 0.3 s at order 64
_SOLVER_TOLERANCE = 1e-7  # tolerance of the linear program's equations
RatesAndWeights = tuple[Float64[np.ndarray, " modes"], Float64[np.ndarray, " modes"]]


def fit_least_squares(target: Target, order: int, rates: np.ndarray | None, horizon: float) -> ExponentialSum:
    """min over c of sum_k w_k (rho(t_k) - sum_i c_i e^{-rates_i t_k})^2, weights of any sign and size (iat, Fig. 1).

    The default rates are the papers' own, multiples of one rate, the polynomials in e^{-t/scale} of ssm eq. 47; of some
    scales the one with the smallest L1 error is taken. Nothing bounds the coefficients: on a power law they reach 1e8 at
    order 16, outside the theorems' assumption. The smallest-norm solution is taken where modes are dependent to
    rounding, and the status says so.
    """
    grid = _arithmetic(target, order, horizon) if rates is None else rates
    problem = pose(target, grid.min(), grid.max())
    number, rank = condition(problem, grid)
    status: SumStatus = "ok" if rank == len(grid) else "rank deficient"
    notes = (
        () if status == "ok" else (f"{len(grid)} modes have numerical rank {rank}: the smallest weights were taken",)
    )
    weights = _smallest_squares(problem, grid)
    return ExponentialSum(
        grid, weights, method="least_squares", condition=number, rank=rank, status=status, notes=notes
    )


def _smallest_squares(problem: FitProblem, rates: np.ndarray) -> np.ndarray:
    root = np.sqrt(problem.weights)
    A = problem.modes(rates) * root[:, None]
    norms = np.linalg.norm(A, axis=0)
    # a mode that is gone before the first time gets no weight
    norms = np.where(norms > 1e-100 * norms.max(), norms, np.inf)
    scaled, *_ = np.linalg.lstsq(A / norms, problem.values * root, rcond=None)
    return scaled / norms


def fit_nonnegative(
    target: Target, order: int, rates: np.ndarray | None, horizon: float, norm: FitNorm = "l1"
) -> ExponentialSum:
    """min over c >= 0 of the L1 or sup norm of rho - sum_i c_i e^{-rates_i t}, by linear programming.

    Weights are bounded by construction: their sum is s(0), near rho(0). The L1 norm is the one of the theorems (the sup
    over inputs of a functional's error). Default rates are geometric; their ends are searched for the smallest error,
    the slow one not below 1 / horizon.
    """
    grid = geometric(target, order, horizon, _error_of_grid(target, norm)) if rates is None else rates
    problem = pose(target, grid.min(), grid.max(), thin=800)
    coefficients = smallest(problem, grid, norm)
    number, rank = condition(problem, grid)
    notes: tuple[str, ...] = ()
    signs = np.sign(problem.values[np.abs(problem.values) > 1e-9 * np.abs(problem.values).max()])
    if signs.min() < 0:
        notes = ("rho has negative values, which non-negative weights cannot follow; try method='matrix_pencil'",)
    return ExponentialSum(grid, coefficients, method="nonnegative", condition=number, rank=rank, notes=notes)


def geometric(target: Target, order: int, horizon: float, value: Callable[[np.ndarray], float]) -> np.ndarray:
    """`order` rates in geometric progression whose two ends make `value(rates)` small (Nelder-Mead in log rates)."""
    from scipy.optimize import minimize

    slowest = 1 / horizon
    fastest = max(target.fastest, 10 * slowest)
    # one rate has no second end to search: all are tried
    if order == 1:
        ends = np.geomspace(slowest, fastest, _MAX_SEARCHES)
        return ends[[int(np.argmin([value(np.array([rate])) for rate in ends]))]]

    def objective(ends: np.ndarray) -> float:
        # outside of what makes sense: no slower than the horizon, fast end above the slow one
        if ends[0] < math.log(slowest) - 1e-9 or ends[1] < ends[0] + 0.1 or ends[1] > math.log(fastest) + 7:
            return math.inf
        return value(np.geomspace(math.exp(ends[0]), math.exp(ends[1]), order))

    # a kernel of two time scales has several minima: look everywhere first
    grid = np.linspace(math.log(slowest), math.log(fastest), 6)
    pairs = [np.array([low, high]) for low in grid[:-1] for high in grid[1:] if high > low]
    first = min(pairs, key=objective)
    reach = (grid[1] - grid[0]) / 2
    optimum = minimize(
        objective,
        first,
        method="Nelder-Mead",
        options={
            "maxfev": _MAX_SEARCHES - len(pairs),
            "xatol": 0.02,
            "fatol": 0.0,
            "initial_simplex": first + np.array([[0.0, 0.0], [reach, 0.0], [0.0, -reach]]),
        },
    )
    return np.geomspace(math.exp(optimum.x[0]), math.exp(optimum.x[1]), order)


def smallest(problem: FitProblem, rates: np.ndarray, norm: FitNorm = "l1", accuracy: float = 1e-7) -> np.ndarray:
    """Non-negative weights with the smallest error on the problem's times, to a relative `accuracy` of that error.

    A solver's tolerance is absolute, 1e-7: a correction sought in units of the error reached so far makes it relative,
    and errors of 1e-12 come out right.
    """
    correct = _corrected_l1 if norm == "l1" else _corrected_sup
    size = max(_error(problem, problem.values, norm), 1e-300)
    scale, best, coefficients = size, math.inf, np.zeros(len(rates))
    for _ in range(4):
        corrected = correct(problem, rates, coefficients, scale)
        error = _error(problem, problem.values - problem.modes(rates) @ corrected, norm)
        if error < best:
            best, coefficients = error, corrected
        # at 1e-13 rounding errors are left, which no weights follow
        if _SOLVER_TOLERANCE * scale < accuracy * best or error > 0.5 * scale or best <= 1e-13 * size:
            break
        scale = best
    return coefficients


def _error(problem: FitProblem, gaps: np.ndarray, norm: FitNorm) -> float:
    return float(np.abs(gaps) @ problem.weights) if norm == "l1" else float(np.abs(gaps).max())


def _corrected_l1(problem: FitProblem, rates: np.ndarray, start: np.ndarray, scale: float) -> np.ndarray:
    """start + scale d with modes d + p - n = (rho - modes start) / scale, p, n >= 0, the smallest weighted sum of p + n."""
    from scipy import sparse
    from scipy.optimize import linprog

    modes = problem.modes(rates)
    # rows times their weight: slacks p and n are then the terms of the L1 sum, each with cost 1
    A = modes * problem.weights[:, None]
    columns = A.sum(axis=0)
    # a mode that is gone before the first time keeps its scale, instead of dividing by 0
    columns = np.where(columns > 1e-100 * columns.max(), columns, 1)
    rows, size = A.shape
    eye = sparse.eye(rows, format="csr")
    equations = sparse.hstack([sparse.csr_matrix(A / columns), eye, -eye], format="csc")
    cost = np.concatenate([np.zeros(size), np.ones(2 * rows)])
    # d may be negative as long as start + scale d is not
    least = np.concatenate([-start * columns / scale, np.zeros(2 * rows)])
    gaps = (problem.values - modes @ start) * problem.weights / scale
    bounds = np.stack([least, np.full(len(least), np.inf)], axis=1)
    program = linprog(cost, A_eq=equations, b_eq=gaps, bounds=bounds)
    if program.x is None:  # numerical trouble inside the solver; the start is always feasible
        return start
    return np.maximum(start + program.x[:size] / columns * scale, 0)


def _corrected_sup(problem: FitProblem, rates: np.ndarray, start: np.ndarray, scale: float) -> np.ndarray:
    """start + scale d with -e <= (rho - modes start) / scale - modes d <= e and the smallest e."""
    from scipy.optimize import linprog

    modes = problem.modes(rates)
    gaps = (problem.values - modes @ start) / scale
    one = np.ones((len(gaps), 1))
    # both sides of |gap - modes d| <= e, e the last unknown
    sides = np.block([[modes, -one], [-modes, -one]])
    cost = np.append(np.zeros(len(rates)), 1.0)
    bounds = np.stack([np.append(-start / scale, 0.0), np.full(len(cost), np.inf)], axis=1)
    program = linprog(cost, A_ub=sides, b_ub=np.concatenate([gaps, -gaps]), bounds=bounds)
    if program.x is None:
        return start
    return np.maximum(start + program.x[:-1] * scale, 0)


def _error_of_grid(target: Target, norm: FitNorm) -> Callable[[np.ndarray], float]:
    def value(rates: np.ndarray) -> float:
        problem = pose(target, rates.min(), rates.max(), panels=40, thin=80)
        gaps = problem.values - problem.modes(rates) @ smallest(problem, rates, norm, 0.01)
        # an L1 error counts the tail after the last time, where the sum is gone and the law is not
        return _error(problem, gaps, norm) + (problem.rest if norm == "l1" else 0.0)

    return value


def _arithmetic(target: Target, order: int, horizon: float) -> np.ndarray:
    """1, 2, ..., `order` times one rate: of 24 the one whose least-squares fit has the smallest L1 error."""
    multiples = np.arange(1, order + 1)
    # over sqrt(order): the multiples then lie about the middle of the time scales
    first = np.geomspace(1 / horizon, max(target.fastest / 2, 10 / horizon), 24) / math.sqrt(order)
    problem = pose(target, first[0], first[-1] * order, thin=800)

    def error(rate: float) -> float:
        grid = rate * multiples
        return problem.l1(problem.values - problem.modes(grid) @ _smallest_squares(problem, grid))

    return min(first, key=error) * multiples


def fit_quadrature(target: Target, order: int, horizon: float, norm: FitNorm) -> ExponentialSum:
    """(1+t)^-p = (1/Gamma(p)) int_0^inf s^{p-1} e^{-s} e^{-st} ds by the trapezoidal rule in log s.

    All weights are positive with sum near 1. The rule converges like exp(-pi sqrt(q order)), q = p in the sup norm and
    p - 1 in L1, while rates may be as slow as they like; with a finite horizon (no rate below 1 / horizon) the error
    stops at what lies beyond it. A mixture of exponentials is given back as it is.
    """
    law = target.law
    if isinstance(law, PowerLaw):
        rates, coefficients = _trapezoidal(target, law.exponent, order, horizon, norm)
    elif isinstance(law, Exponential | ExponentialMixture | ReciprocalSum):
        rates, coefficients = _own_modes(law)
        if len(rates) > order:
            raise ArgumentError(f"order must be at least {len(rates)}, the modes of {target.name}, got {order}")
    else:
        raise ArgumentError(
            f"method='quadrature' needs a PowerLaw or a mixture of exponentials, got {target.name}; use "
            "method='nonnegative' or 'nonlinear'"
        )
    number, rank = condition(pose(target, rates.min(), rates.max()), rates)
    return ExponentialSum(rates, coefficients, method="quadrature", condition=number, rank=rank)


def _own_modes(law: Exponential | ExponentialMixture | ReciprocalSum) -> RatesAndWeights:
    if isinstance(law, Exponential):
        return np.array([law.rate]), np.ones(1)
    if isinstance(law, ExponentialMixture):
        return np.array(law.rates), np.array(law.coefficients)
    assert law.terms is not None
    k = np.arange(1, law.terms + 1, dtype=np.float64)
    return k ** -float(law.power), k**-2


def _rule(p: float, step: float, last: float, order: int) -> RatesAndWeights:
    """Nodes s = e^x at x = last, last - step, ... and their weights h s^p e^{-s} / Gamma(p)."""
    x = last - step * np.arange(order)
    s = np.exp(x)
    return s, step * np.exp(p * x - s - math.lgamma(p))


def _trapezoidal(target: Target, p: float, order: int, horizon: float, norm: FitNorm) -> RatesAndWeights:
    from scipy.optimize import minimize

    slowest = math.log(1 / horizon) if math.isfinite(horizon) else -600.0  # e^-600 = 1e-261 is still a normal number
    # integrating e^{-st} over t costs one power of s: in L1 the part near s = 0 counts as that of exponent p - 1
    q = p - 1 if norm == "l1" and p > 1 else p

    def error(choice: np.ndarray) -> float:
        step, last = math.exp(choice[0]), choice[1]
        if last > 5 or last - step * (order - 1) < slowest - 1e-9:
            return math.inf
        rates, weights = _rule(p, step, last, order)
        problem = pose(target, rates.min(), max(rates.max(), 1.0), panels=150)
        gaps = problem.values - problem.modes(rates) @ weights
        return problem.l1(gaps) if norm == "l1" else max(abs(1 - weights.sum()), float(np.abs(gaps).max()))

    # h = pi / sqrt(q m) balances the rule's own error e^{-pi^2/h} and the part e^{-q h m} left out at s -> 0
    step = math.pi / math.sqrt(q * order)
    last = min(2.0, math.log(p + 2))
    if order > 1 and last - step * (order - 1) < slowest:
        step = (last - slowest) / (order - 1)
    first = np.array([math.log(step), last])
    optimum = minimize(error, first, method="Nelder-Mead", options={"maxfev": 120, "xatol": 1e-3, "fatol": 0.0})
    # the theory's balance is kept where the search does not improve on it
    best = optimum.x if optimum.fun < error(first) else first
    return _rule(p, math.exp(best[0]), best[1], order)
