"""Exponential sums by quadrature of the integral that a power law is, and exactly for laws that are sums already."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

from holdfast.approximate._problem import Norm, condition, pose
from holdfast.approximate._sums import ExponentialSum
from holdfast.approximate._target import Target
from holdfast.errors import ArgumentError
from holdfast.laws import Exponential, ExponentialMixture, PowerLaw, ReciprocalSum

Modes = tuple[Float64[np.ndarray, " modes"], Float64[np.ndarray, " modes"]]


def fit_quadrature(target: Target, order: int, horizon: float, norm: Norm) -> ExponentialSum:
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
            raise ArgumentError(f"{target.name} is a sum of {len(rates)} modes; raise order to that, got {order}")
    else:
        raise ArgumentError(
            f"quadrature knows the integral of a PowerLaw (and mixtures as they are), not of {target.name}; use "
            "method='nonnegative' or 'nonlinear'"
        )
    number, rank = condition(pose(target, rates.min(), rates.max()), rates)
    return ExponentialSum(rates, coefficients, method="quadrature", condition=number, rank=rank)


def _own_modes(law: Exponential | ExponentialMixture | ReciprocalSum) -> Modes:
    if isinstance(law, Exponential):
        return np.array([law.rate]), np.ones(1)
    if isinstance(law, ExponentialMixture):
        return np.array(law.rates), np.array(law.coefficients)
    assert law.terms is not None
    k = np.arange(1, law.terms + 1, dtype=np.float64)
    return k ** -float(law.power), k**-2


def _rule(p: float, step: float, last: float, order: int) -> Modes:
    """Nodes s = e^x at x = last, last - step, ... and their weights h s^p e^{-s} / Gamma(p)."""
    x = last - step * np.arange(order)
    s = np.exp(x)
    return s, step * np.exp(p * x - s - math.lgamma(p))


def _trapezoidal(target: Target, p: float, order: int, horizon: float, norm: Norm) -> Modes:
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
    best = optimum.x if optimum.fun < error(first) else first
    return _rule(p, math.exp(best[0]), best[1], order)
