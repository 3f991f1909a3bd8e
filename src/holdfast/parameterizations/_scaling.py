"""The positive diagonal D for which D W D^-1 is smallest, in spectral norm or numerical radius.

Both are quasi-convex in log D (each level set is a linear matrix inequality in D^2), so that a descent finds the least
one. It runs on a smooth upper bound, the logarithm of a sum of exponentials of all eigenvalues, ever sharper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float64

SizeName = Literal["norm", "radius"]
Matrix = Float64[np.ndarray, "n n"]
Vector = Float64[np.ndarray, " n"]
MAX_LOG_SPREAD = math.log(1e6)  # of log D: beyond it the norm in which h shrinks says little about h
ANGLE_POINTS = 24
REFINEMENT_ROUNDS = 5
SHARPNESS_SEQUENCE = (10.0, 60.0, 400.0)
SAFE_RADIUS = 0.95  # without a search: far enough below 1
BALANCING_SWEEPS = 30
DESCENT_STEPS = 60


def numerical_radius(A: Matrix) -> float:
    """w(A) = max |x* A x| over unit vectors x = max over angles of the largest eigenvalue of Re(e^{i theta} A).

    The best of ANGLE_POINTS directions of the upper half plane (A is real), refined around it to about 1e-6.
    """
    angles = np.linspace(0, math.pi, ANGLE_POINTS)
    best = 0.0
    for _ in range(REFINEMENT_ROUNDS):
        tops = np.linalg.eigvalsh(_turned(A, angles))[:, -1]
        k, step = int(tops.argmax()), angles[1] - angles[0]
        best = max(best, float(tops[k]))
        angles = np.linspace(angles[k] - step, angles[k] + step, 9)
    return best


def find_scaling(W: Matrix, measure: SizeName) -> tuple[Vector, float]:
    """log D within +-MAX_LOG_SPREAD/2, and the norm or numerical radius of D W D^-1, for the best D that was found.

    First D = I and Osborne's balancing, which are enough for most; else a descent from the better of the two.
    """
    size = (lambda A: float(np.linalg.norm(A, 2))) if measure == "norm" else numerical_radius
    smooth = _smooth_norm if measure == "norm" else _smooth_radius
    starts = [np.zeros(len(W)), _balanced(W)]
    sizes = [size(_scaled(W, d)) for d in starts]
    best, least = (starts[0], sizes[0]) if sizes[0] <= max(SAFE_RADIUS, sizes[1]) else (starts[1], sizes[1])
    if least <= SAFE_RADIUS or len(W) < 2:
        return best, least
    for sharpness in SHARPNESS_SEQUENCE:
        candidate = _descend(W, best, sharpness / least, smooth)
        reached = size(_scaled(W, candidate))
        if reached < least:
            best, least = candidate, reached
    return best, least


def _scaled(W: Matrix, d: Vector) -> Matrix:
    return W * np.exp(d[:, None] - d[None, :])


def _balanced(W: Matrix) -> Vector:
    """Rows and columns of equal size outside the diagonal (Osborne): the least Frobenius norm."""
    off = np.abs(W - np.diag(np.diag(W))) ** 2
    d = np.zeros(len(W))
    for _ in range(BALANCING_SWEEPS):
        for i in range(len(W)):
            row = float(off[i] @ np.exp(2 * (d[i] - d)))
            column = float(off[:, i] @ np.exp(2 * (d - d[i])))
            step = 0.25 * math.log((column + 1e-12) / (row + 1e-12))
            d[i] = np.clip(d[i] + step, -MAX_LOG_SPREAD / 2, MAX_LOG_SPREAD / 2)
    return d


def _descend(W: Matrix, d: Vector, sharpness: float, smooth: Callable[[Matrix, float], tuple[float, Vector]]) -> Vector:
    from scipy.optimize import minimize

    bounds = [(-MAX_LOG_SPREAD / 2, MAX_LOG_SPREAD / 2)] * len(W)
    options = {"maxiter": DESCENT_STEPS}
    function = lambda d: smooth(_scaled(W, d), sharpness)  # noqa: E731
    return np.asarray(minimize(function, d, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)


def _smooth_norm(A: Matrix, sharpness: float) -> tuple[float, Vector]:
    """log sum exp of the singular values, and its slope in log D: sigma (u_k^2 - v_k^2) for each."""
    u, s, vt = np.linalg.svd(A)
    value, share = _soft(s, sharpness)
    return value, (u**2 * s) @ share - (vt.T**2 * s) @ share


def _smooth_radius(A: Matrix, sharpness: float) -> tuple[float, Vector]:
    """The same over all eigenvalues of Re(e^{i theta} A): each moves by Re(conj(v_k) (Gv)_k - (v*G)_k v_k)."""
    angles = np.linspace(0, math.pi, ANGLE_POINTS)
    values, vectors = np.linalg.eigh(_turned(A, angles))
    value, share = _soft(values.ravel(), sharpness)
    M = (vectors * share.reshape(values.shape)[:, None, :]) @ vectors.conj().transpose(0, 2, 1)
    M = (M * np.exp(1j * angles)[:, None, None]).sum(0)
    slope = (A * M.T).sum(1) - (A * M.T).sum(0)
    return value, slope.real


def _soft(values: np.ndarray, sharpness: float) -> tuple[float, np.ndarray]:
    top = float(values.max())
    weights = np.exp(sharpness * (values - top))
    return top + math.log(float(weights.sum())) / sharpness, weights / weights.sum()


def _turned(A: Matrix, angles: np.ndarray) -> np.ndarray:
    G = np.exp(1j * angles)[:, None, None] * A
    return (G + G.conj().transpose(0, 2, 1)) / 2
