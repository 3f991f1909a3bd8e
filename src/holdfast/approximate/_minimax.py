"""The exponential sum with the smallest largest error on [0, horizon]: Remez exchange in rates and weights.

A completely monotone kernel has one best sum of k modes; its weights are positive, and its error takes the values
+E, -E, ..., +E at 2k + 1 times (Braess, "Nonlinear Approximation Theory", 1986, ch. VI). Errors of that many
alternating signs certify it: no sum of k modes is better than the smallest of them (de la Vallee Poussin). Orders 1, 2,
... are solved one after the other, each from the two before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.approximate._alternation import ROUNDING_FLOOR, Alternation, AlternationProblem, Extended, Row, exchanged
from holdfast.approximate._problem import condition, pose
from holdfast.approximate._sums import ExponentialSum, SumStatus
from holdfast.approximate._target import Target
from holdfast.errors import ArgumentError
from holdfast.laws import AbstractLaw, PowerLaw

_SPLITS = (1.3, 0.7, 2.5, 4.0)  # half the distance of the first two log rates
_MONOTONE = (
    "the exchange is for completely monotone kernels: sums or integrals of decaying exponentials, weights positive"
)


def fit_minimax(target: Target, order: int) -> ExponentialSum:
    """The best sum of `order` modes in the sup norm on [0, target.end], with the ripple that certifies it.

    Stops at the order that is exact to rounding, or at the last that was certified, and the status says so.
    """
    problem = posed(target)
    alternations = best_sums(problem, order)
    if not alternations:
        raise ArgumentError(f"no single mode alternates around {target.name}: {_MONOTONE}")
    best, (status, notes) = alternations[-1], _why(problem, alternations, order)
    rates, weights = best.rates, best.weights
    number, rank = condition(pose(target, rates.min(), rates.max()), rates)
    exact = problem.exact(best)
    return ExponentialSum(
        rates, weights, method="minimax", condition=number, rank=rank, status=status, notes=notes,
        ripple=np.nan if exact else best.ripple,
        held_by_horizon=problem.end if best.times[-1] == problem.end and not exact else None,
    )  # fmt: skip


def best_sums(problem: AlternationProblem, order: int) -> list[Alternation]:
    """The best sums of 1, 2, ..., `order` modes; fewer where one is exact to rounding, or the next is not certified."""
    alternations: list[Alternation] = []
    while len(alternations) < order and not (alternations and problem.exact(alternations[-1])):
        starts = (exchanged(problem, start) for start in _starts(problem, alternations))
        following = next((at for at in starts if at is not None), None)
        if following is None:
            break
        alternations.append(following)
    return alternations


def _why(
    problem: AlternationProblem, alternations: Sequence[Alternation], order: int
) -> tuple[SumStatus, tuple[str, ...]]:
    """The status and what it means, where fewer modes were found than were asked for."""
    if len(alternations) == order:
        return "ok", ()
    if problem.exact(alternations[-1]):
        return "reduced", (f"{len(alternations)} modes are exact to rounding; {order} would be no better",)
    if alternations[-1].level < 1e3 * ROUNDING_FLOOR * problem.size:
        return "reduced", (f"the error of {len(alternations) + 1} modes lies below rounding; {order} were asked for",)
    return "not converged", (f"{len(alternations)} modes were certified and {len(alternations) + 1} not; {_MONOTONE}",)


def posed(target: Target) -> AlternationProblem:
    """The kernel on [0, target.end]; refuses samples, and kernels that do not begin above 0."""
    if target.sampled:
        raise ArgumentError(
            "method='minimax' evaluates rho at times of its choice and needs a law or a function, got samples; use "
            "method='nonnegative' or 'nonlinear'"
        )
    function = _precise(target.law) or (lambda t: target(t.astype(np.float64)).astype(Extended))
    first = float(function(np.zeros(1))[0])
    if not first > 0:
        raise ArgumentError(f"{target.name} is {first:g} at t = 0: {_MONOTONE}")
    return AlternationProblem(function, target.end, first)


def _precise(law: AbstractLaw | None) -> Callable[[Row], Row] | None:
    if not isinstance(law, PowerLaw):
        return None
    # log1p and exp in extended precision: the law's own float64 values would hide errors below 1e-16
    exponent = Extended(law.exponent)
    return lambda t: np.exp(-exponent * np.log1p(t.astype(Extended)))


def _starts(problem: AlternationProblem, alternations: Sequence[Alternation]) -> list[Alternation]:
    if not alternations:
        return _single(problem)
    # a spline through one point has no slope to continue: the second mode comes from splitting the first
    if len(alternations) == 1:
        return [_split(alternations[0], apart) for apart in _SPLITS]
    # extrapolating two orders is nearer; the last one alone is the way back where that fails
    last = _continued(problem, alternations[-1:])
    return [last] if len(alternations) == 2 else [_continued(problem, alternations[-2:]), last]


def _single(problem: AlternationProblem) -> list[Alternation]:
    """Of 60 rates the one whose least-squares multiple has the smallest largest error; none if no multiple is positive."""
    t = np.concatenate([[0.0], np.geomspace(1e-6 * problem.end, problem.end, 300)])
    values = problem.function(t).astype(np.float64)
    rates = np.geomspace(1 / problem.end, 1e6 / problem.end, 60)
    modes = np.exp(-np.multiply.outer(t, rates))
    weights = values @ modes / (modes**2).sum(0)
    errors = np.where(weights > 0, np.abs(values[:, None] - weights * modes).max(0), np.inf)
    i = int(np.argmin(errors))
    if not np.isfinite(errors[i]):
        return []
    rate = float(rates[i])
    times = np.array([0.0, min(1 / rate, problem.end / 2), min(10 / rate, problem.end)])
    return [Alternation(np.log([rate]), np.log(weights[[i]]), float(errors[i]), times)]


def _split(at: Alternation, apart: float) -> Alternation:
    times = np.expm1(np.interp(np.linspace(0, 1, 5), np.linspace(0, 1, 3), np.log1p(at.times)))
    return Alternation(
        at.log_rates + apart * np.array([-1.0, 1.0]), at.log_weights + np.log([0.5, 0.5]), 0.3 * at.level, times
    )


def _continued(problem: AlternationProblem, before: Sequence[Alternation]) -> Alternation:
    """One mode more: rates, weights and times as functions of their place in the row, and linear in the order."""
    order = before[-1].order + 1
    share = (-1.0, 2.0) if len(before) == 2 else (1.0,)
    middles, ends = (np.arange(order) + 0.5) / order, np.linspace(0, 1, 2 * order + 1)
    quick = np.exp(before[-1].log_rates[-1])

    def extended(values: Callable[[Alternation], Row], places: Row, at_ends: bool = False) -> Row:
        return sum(part * _curve(values(at), at_ends)(places) for part, at in zip(share, before, strict=True))  # type: ignore[return-value]

    log_rates = extended(lambda at: at.log_rates, middles)
    log_weights = extended(lambda at: at.log_weights + np.log(at.order), middles) - np.log(order)
    times = np.expm1(extended(lambda at: np.log1p(quick * at.times), ends, at_ends=True)) / quick
    times[0] = 0.0
    if before[-1].times[-1] == problem.end:
        times[-1] = problem.end
    # errors fall like exp(-c sqrt(order)): the next ratio is near the last one
    fall = before[-1].level / before[0].level if len(before) == 2 else 0.4
    return Alternation(log_rates, log_weights, fall * before[-1].level, np.minimum(times, problem.end))


def _curve(values: Row, at_ends: bool) -> Callable[[Row], Row]:
    from scipy.interpolate import make_interp_spline

    n = len(values)
    places = np.linspace(0, 1, n) if at_ends else (np.arange(n) + 0.5) / n
    return make_interp_spline(places, values.astype(np.float64), k=min(3, n - 1))
