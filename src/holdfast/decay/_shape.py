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

from holdfast.decay._signal import Values

Array = Float64[np.ndarray, " points"]
MAX_COMPARED_VALUES = 8192  # values that are compared


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
    # starts at an exponential, two power laws and a curve that ends: chi^2 may have several minima in kappa
    drop = log_v[0] - log_v[-1]
    best: tuple[float, np.ndarray] | None = None
    for kappa in starts:
        # the rate that makes this kappa fall by the drop that was seen
        start = np.array([log_v[0], np.log(_first_rate(drop, kappa)), kappa])
        candidate = _levenberg(start, s, log_v, weight)
        if candidate is not None and (best is None or candidate[0] < best[0]):
            best = candidate
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
    # equal weights first: they give the size of what the family misses, which is then added to the noise
    even = fit_shape(t, log_v, np.ones_like(t), scaled=False, starts=(0.0,))
    if even is None:
        return None
    fit = fit_shape(t, log_v, np.hypot(error, max(even.scatter, 1e-12)), scaled=False, starts=(even.kappa,))
    if fit is None:
        return None
    s = (t - t[0]) / (t[-1] - t[0])
    model = _model(np.array([np.log(fit.amplitude), np.log(fit.rate * (t[-1] - t[0])), fit.kappa]), s)
    assert model is not None
    left = log_v - model[0]
    correlation = float(left[1:] @ left[:-1]) / max(float(left @ left), 1e-300)
    # below 1, or a smooth misfit would make every error infinite; 0.98 grows them tenfold
    correlation = min(max(correlation, 0.0), 0.98)
    factor = math.sqrt((1 + correlation) / (1 - correlation))
    return replace(fit, rate_error=fit.rate_error * factor, kappa_error=fit.kappa_error * factor)


def _first_rate(drop: float, kappa: float) -> float:
    return drop if kappa == 0 else float(np.expm1(np.clip(kappa * drop, -5, 30)) / kappa)


def _model(p: np.ndarray, s: Array) -> tuple[Array, Float64[np.ndarray, "points 3"]] | None:
    """log v and its derivatives by (log A, log r, kappa)."""
    amplitude, log_rate, kappa = p
    # a fit that ran away: e^60 times the window is no rate that a curve can show
    if abs(log_rate) > 60 or abs(kappa) > 60:
        return None
    x = np.exp(log_rate) * s
    inside = 1 + kappa * x
    # the curve has ended inside the window: its log does not exist
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
    model = _model(p, s)
    if model is None:
        return None
    residual = (y - model[0]) * weight
    cost, damping = float(residual @ residual), 1e-3
    for _ in range(steps):
        jacobian = model[1] * weight[:, None]
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ residual
        # scaled by the diagonal (Marquardt): the three constants have different units; lstsq, as it may be singular
        step = np.linalg.lstsq(normal + damping * np.diag(np.diag(normal) + 1e-300), gradient, rcond=None)[0]
        trial = _model(p + step, s)
        if trial is not None:
            new = (y - trial[0]) * weight
            new_cost = float(new @ new)
            if new_cost <= cost:
                # chi^2 to seven digits is far below what its own statistics can tell
                small = cost - new_cost <= 1e-7 * cost
                p, model, residual, cost, damping = p + step, trial, new, new_cost, damping / 5
                if small:
                    break
                continue
        # a rejected step: nearer to gradient descent, until even a tiny one does not help
        damping *= 4
        if damping > 1e12:
            break
    return cost, p


def _summary(
    best: tuple[float, np.ndarray], t: Array, s: Array, y: Array, weight: Array, scaled: bool
) -> ShapeFit | None:
    cost, p = best
    model = _model(p, s)
    if model is None:
        return None
    freedom = max(len(t) - 3, 1)
    jacobian = model[1] * weight[:, None]
    covariance = np.linalg.pinv(jacobian.T @ jacobian, hermitian=True)
    misfit = cost / freedom
    # known noise is never scaled down by a lucky misfit; of unknown noise the misfit is the only estimate
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
        scatter=float(np.sqrt(np.mean((y - model[0]) ** 2))),
        folds=float(model[0][0] - model[0][-1]),
    )


def imitation_misfit(t: Array, log_v: Array, error: Array, modes: int) -> float:
    """Reduced chi^2 of the best sum of `modes` exponentials with weights >= 0 (rates free, also 0).

    Variable projection: for given rates the weights are a non-negative least squares problem, and the rates move. The
    residuals are relative errors over `error`, the standard deviation of log v.
    """
    from scipy.optimize import least_squares, nnls

    s = (t - t[0]) / (t[-1] - t[0])
    weight = 1 / error
    # divided by the first value, so that curves of any size are inside the range of float64
    scaled = np.exp(log_v - log_v[0])
    relative = weight / scaled

    def residual(log_rates: np.ndarray) -> np.ndarray:
        columns = np.exp(-np.outer(s, np.exp(np.clip(log_rates, -20, 20)))) * relative[:, None]
        # columns of length 1: nnls stops by an absolute tolerance
        size = np.sqrt((columns**2).sum(0)) + 1e-300
        weights, _ = nnls(columns / size, weight)
        return (columns / size) @ weights - weight

    finest = float(np.diff(s).min())
    best = np.inf
    # rates spread from once over the window to once per sample; two starts, since the rates have local minima
    for slow in (0.3, 2.0):
        start = np.log(np.geomspace(slow, max(1 / finest, 4 * slow), modes))
        solution = least_squares(residual, start, method="trf", x_scale=1.0, max_nfev=60)
        best = min(best, 2 * float(solution.cost))
    return best / max(len(t) - 2 * modes, 1)


@dataclass(frozen=True)
class Repetition:
    """v(t + lag) ~ gain v(t), leaving the share `unexplained` of the variance; `gain_error` is one standard deviation.

    `lag` is where the curve repeats itself best, `period` the first lag at which it nearly does.
    """

    lag: int
    period: int
    gain: float
    gain_error: float
    unexplained: float


def find_repetition(values: Values) -> Repetition | None:
    """The lag after a first decorrelation at which the curve best repeats itself, up to half its length."""
    x = values[-MAX_COMPARED_VALUES:]
    n = len(x)
    lags = np.arange(1, n // 2 + 1)
    # a constant repeats itself at every lag
    if n < 12 or float(x.std()) == 0:
        return None
    # padded, or the end of the curve would be correlated with its start
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(x, size)
    products = np.fft.irfft(spectrum * spectrum.conj(), size)[lags]
    squares = np.concatenate([[0.0], np.cumsum(x**2)])
    early, late = squares[n - lags], squares[n] - squares[lags]
    gain = products / np.maximum(early, np.finfo(float).tiny)
    residual = np.maximum(late - gain * products, 0.0)
    unexplained = residual / ((n - lags) * float(x.var()))
    # lags before the first decorrelation repeat because the curve is smooth, not because it is periodic
    apart = np.flatnonzero(unexplained > 0.3)
    if len(apart) == 0:
        return None
    after = int(apart[0])
    best = after + int(np.argmin(unexplained[after:]))
    # the best lag may be several periods; the first that is nearly as good is one
    near = unexplained[after:] <= max(1.5 * float(unexplained[best]), 0.05)
    lag, period = int(lags[best]), int(lags[after + int(np.argmax(near))])
    # directly, since the sums of squares above cancel where the oscillation is small against the mean; the root of the
    # two powers, since a regression slope would be drawn below 1 by every mismatch of the lag
    early_part, late_part = x[:-lag], x[lag:]
    power = float(early_part @ early_part)
    slope = float(np.sqrt(late_part @ late_part / power))
    left = float(((late_part - slope * early_part) ** 2).sum())
    error = float(np.sqrt(left / max(n - lag - 1, 1) / power))
    return Repetition(lag, period, slope, error, left / ((n - lag) * float(x.var())))
