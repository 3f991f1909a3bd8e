"""Sums of a few decaying exponentials that imitate a curve over its window."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

Array = Float64[np.ndarray, " points"]


def imitation_misfit(t: Array, log_v: Array, error: Array, modes: int) -> float:
    """Reduced chi^2 of the best sum of `modes` exponentials with weights >= 0 (rates free, also 0).

    Variable projection: for given rates the weights are a non-negative least squares problem, and the rates move. The
    residuals are relative errors over `error`, the standard deviation of log v.
    """
    from scipy.optimize import least_squares, nnls

    s = (t - t[0]) / (t[-1] - t[0])
    weight = 1 / error
    scaled = np.exp(log_v - log_v[0])
    relative = weight / scaled

    def residual(log_rates: np.ndarray) -> np.ndarray:
        columns = np.exp(-np.outer(s, np.exp(np.clip(log_rates, -20, 20)))) * relative[:, None]
        size = np.sqrt((columns**2).sum(0)) + 1e-300
        weights, _ = nnls(columns / size, weight)
        return (columns / size) @ weights - weight

    finest = float(np.diff(s).min())
    best = np.inf
    for slow in (0.3, 2.0):
        start = np.log(np.geomspace(slow, max(1 / finest, 4 * slow), modes))
        found = least_squares(residual, start, method="trf", x_scale=1.0, max_nfev=60)
        best = min(best, 2 * float(found.cost))
    return best / max(len(t) - 2 * modes, 1)
