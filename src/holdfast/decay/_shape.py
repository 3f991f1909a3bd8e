"""One family for all smooth decay: v(s) = A (1 + kappa r s)^(-1/kappa), s the time since the window's start.

kappa = 0 is the exponential A e^{-r s}; kappa = 1/p > 0 the power law of exponent p; kappa = -1/n < 0 the curve
(1 - s/S)^n that ends at S = n/r. The local rate obeys 1/r(s) = 1/r + kappa s: kappa is how fast the time scale grows.
Over a window in which v falls by N e-folds the rate changes by the factor e^{-kappa N}: `z = kappa N` is what the
choice between laws rests on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

Array = Float64[np.ndarray, " points"]


@dataclass(frozen=True)
class ShapeFit:
    """Least squares of log v over the window; errors are one standard deviation, scaled by the misfit."""

    start: float
    stop: float
    points: int
    amplitude: float
    rate: float
    kappa: float
    rate_error: float
    kappa_error: float
    misfit: float
    scatter: float
    folds: float

    @property
    def z(self) -> float:
        return self.kappa * self.folds

    @property
    def z_error(self) -> float:
        return self.kappa_error * self.folds

    @property
    def end_rate(self) -> float:
        return self.rate * float(np.exp(-self.z))


def fit_shape(
    t: Array, log_v: Array, error: Array, *, scaled: bool, starts: tuple[float, ...] = (0.0, 0.5, 2.0, -0.3)
) -> ShapeFit | None:
    """Fits (A, r, kappa); `error` is the standard deviation of log_v, up to a factor if not `scaled`.

    None where the points do not fall or the fit does not converge. The misfit is the reduced chi^2. The best of the fits
    from each kappa in `starts` is taken.
    """
    if len(t) < 4 or log_v[0] <= log_v[-1]:
        return None
    s = (t - t[0]) / (t[-1] - t[0])  # scaled to [0, 1] so that one set of starting values serves all curves
    weight = 1 / error
    drop = log_v[0] - log_v[-1]
    best: tuple[float, np.ndarray] | None = None
    for kappa in starts:
        start = np.array([log_v[0], np.log(_first_rate(drop, kappa)), kappa])
        found = _levenberg(start, s, log_v, weight)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
        if scaled and best is not None and best[0] < 1.5 * len(t):
            break  # as good as the noise allows
    if best is None:
        return None
    return _summary(best, t, s, log_v, weight, scaled)


def fit_loosely(t: Array, log_v: Array, error: Array) -> ShapeFit | None:
    """The same fit where the family does not hold to within the noise: every point counts alike.

    What is left over is taken as a relative error of each point. Neighbouring ones are alike as a rule, so that there
    are fewer independent points than points: the errors grow by sqrt((1 + c)/(1 - c)), c the correlation of neighbours.
    """
    even = fit_shape(t, log_v, np.ones_like(t), scaled=False, starts=(0.0,))
    if even is None:
        return None
    fit = fit_shape(t, log_v, np.hypot(error, max(even.scatter, 1e-12)), scaled=False, starts=(even.kappa,))
    if fit is None:
        return None
    s = (t - t[0]) / (t[-1] - t[0])
    found = _model(np.array([np.log(fit.amplitude), np.log(fit.rate * (t[-1] - t[0])), fit.kappa]), s)
    assert found is not None
    left = log_v - found[0]
    correlation = float(left[1:] @ left[:-1]) / max(float(left @ left), 1e-300)
    correlation = min(max(correlation, 0.0), 0.98)
    factor = math.sqrt((1 + correlation) / (1 - correlation))
    return replace(fit, rate_error=fit.rate_error * factor, kappa_error=fit.kappa_error * factor)


def _first_rate(drop: float, kappa: float) -> float:
    return drop if kappa == 0 else float(np.expm1(np.clip(kappa * drop, -5, 30)) / kappa)


def _model(p: np.ndarray, s: Array) -> tuple[Array, Float64[np.ndarray, "points 3"]] | None:
    """log v and its derivatives by (log A, log r, kappa)."""
    amplitude, log_rate, kappa = p
    if abs(log_rate) > 60 or abs(kappa) > 60:
        return None
    x = np.exp(log_rate) * s
    inside = 1 + kappa * x
    if inside.min() <= 1e-12:
        return None
    if abs(kappa) * x.max() < 1e-4:
        # series of log(1 + kappa x)/kappa: the quotient would lose half its digits here
        g, by_kappa = x * (1 - kappa * x / 2), -(x**2) * (0.5 - 2 * kappa * x / 3)
    else:
        g = np.log1p(kappa * x) / kappa
        by_kappa = (x / inside - g) / kappa
    return amplitude - g, np.stack([np.ones_like(s), -x / inside, -by_kappa], 1)


def _levenberg(p: np.ndarray, s: Array, y: Array, weight: Array, steps: int = 60) -> tuple[float, np.ndarray] | None:
    found = _model(p, s)
    if found is None:
        return None
    residual = (y - found[0]) * weight
    cost, damping = float(residual @ residual), 1e-3
    for _ in range(steps):
        jacobian = found[1] * weight[:, None]
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ residual
        step = np.linalg.lstsq(normal + damping * np.diag(np.diag(normal) + 1e-300), gradient, rcond=None)[0]
        trial = _model(p + step, s)
        if trial is not None:
            new = (y - trial[0]) * weight
            new_cost = float(new @ new)
            if new_cost <= cost:
                small = cost - new_cost <= 1e-7 * cost
                p, found, residual, cost, damping = p + step, trial, new, new_cost, damping / 5
                if small:
                    break
                continue
        damping *= 4
        if damping > 1e12:
            break
    return cost, p


def _summary(
    best: tuple[float, np.ndarray], t: Array, s: Array, y: Array, weight: Array, scaled: bool
) -> ShapeFit | None:
    cost, p = best
    found = _model(p, s)
    if found is None:
        return None
    freedom = max(len(t) - 3, 1)
    jacobian = found[1] * weight[:, None]
    covariance = np.linalg.pinv(jacobian.T @ jacobian, hermitian=True)
    misfit = cost / freedom
    inflation = max(misfit, 1.0) if scaled else misfit
    errors = np.sqrt(np.maximum(np.diag(covariance), 0) * inflation)
    span = float(t[-1] - t[0])
    rate = float(np.exp(p[1])) / span
    return ShapeFit(
        start=float(t[0]),
        stop=float(t[-1]),
        points=len(t),
        amplitude=float(np.exp(p[0])),
        rate=rate,
        kappa=float(p[2]),
        rate_error=float(errors[1]) * rate,
        kappa_error=float(errors[2]),
        misfit=misfit,
        scatter=float(np.sqrt(np.mean((y - found[0]) ** 2))),
        folds=float(found[0][0] - found[0][-1]),
    )
