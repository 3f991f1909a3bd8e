"""What a recurrent matrix promises: eigenvalues, abscissas, the Lyapunov solution, transient growth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Complex, Float64
from torch import Tensor

from holdfast._types import Time
from holdfast.errors import ArgumentError, ShapeError

NORMALITY_ROUNDINGS = (
    100  # W counts as normal while |WW' - W'W| / |W|^2 is below so many roundings of the dtype it was stored in
)
DEFECTIVE_CONDITION = 1e8  # eigenvector condition from which eigenvalues have fewer than half their digits
FIRST_TIME = 0.05  # |W| t at which |e^{Wt}| is first looked at
TIME_DOUBLINGS = 60


@dataclass(frozen=True, eq=False)
class Lyapunov:
    """The solution P of W'P + PW = -I (continuous) or W'PW - P = -I (discrete), and what it bounds.

    `paper_bound` is 1/(2 beta0), beta0 = -max Re lam ("Inverse Approximation Theory", Lemma A.8), in discrete time
    1/(1 - r^2) with the spectral radius r: the norm of P for a normal W. For any other the true norm may be larger, and
    need not be: diag(-0.1, [[-5, 1], [0, -6]]) is not normal and keeps the bound. It is never smaller.
    """

    norm: float
    paper_bound: float
    condition: float
    applies: bool
    reason: str
    solution: Float64[np.ndarray, "n n"] | None = None

    @property
    def excess(self) -> float:
        """How many times the true norm is the paper's bound."""
        return self.norm / self.paper_bound


@dataclass(frozen=True)
class Growth:
    """|e^{Wt}| <= bound e^{-rate t} (discrete: |W^k| <= bound e^{-rate k}); `measured` is the largest norm seen, at `time`."""

    bound: float
    rate: float
    measured: float
    time: float

    def decay(self, time: float) -> float:
        """The bound on |e^{Wt}| at a time (a number of steps in discrete time)."""
        return self.bound * math.exp(-self.rate * time)


@dataclass(frozen=True, eq=False)
class MatrixAnalysis:
    """`spectral`: abscissa max Re lam, or radius max |lam|; `numerical`: max eigenvalue of (W + W')/2, or |W|_2.

    `margin` is -abscissa or 1 - radius. `departure` is the share of W that no rotation makes diagonal (Henrici),
    `eigenvector_condition` that of the matrix of eigenvectors. Without a margin there is no Lyapunov solution.
    """

    eigenvalues: Complex[np.ndarray, " n"]
    spectral: float
    numerical: float
    margin: float
    departure: float
    eigenvector_condition: float
    lyapunov: Lyapunov | None
    growth: Growth | None


def as_matrix(W: Tensor, name: str, limit: int) -> Float64[np.ndarray, "n n"]:
    """W in float64; raises for what is not a finite square matrix of at most `limit` rows."""
    if W.ndim != 2 or W.shape[0] != W.shape[1] or len(W) == 0:
        raise ShapeError(f"{name} must be a square matrix, got shape {tuple(W.shape)}")
    if len(W) > limit:
        raise ArgumentError(
            f"{name} must have at most {limit} rows, above which the eigenvalues take minutes, got {len(W)} x {len(W)}; pass a "
            "larger limit= to do it anyway"
        )
    array = W.detach().cpu().double().numpy()
    if not np.isfinite(array).all():
        raise ArgumentError(
            f"{name} must be finite, got {int((~np.isfinite(array)).sum())} of {W.numel()} entries that are not"
        )
    return array


def analyse_diagonal(lam: Tensor, time: Time) -> MatrixAnalysis:
    """A diagonal recurrence: normal, so that everything follows from the eigenvalues."""
    values = lam.detach().cpu().to(torch.complex128).flatten().numpy()
    if not np.isfinite(values).all():
        raise ArgumentError(
            f"expected finite eigenvalues, got {int((~np.isfinite(values)).sum())} of {len(values)} that are not"
        )
    spectral = float(values.real.max() if time == "continuous" else np.abs(values).max())
    margin = -spectral if time == "continuous" else 1 - spectral
    # diag(lam) has P = diag(1 / (-2 Re lam)) or 1 / (1 - |lam|^2): no equation to solve
    lyapunov, growth = None, None
    if margin > 0:
        norm = _normal_norm(spectral, time)
        sizes = 1 / (-2 * values.real) if time == "continuous" else 1 / (1 - np.abs(values) ** 2)
        reason = "the recurrence is diagonal, so that eigenvectors are orthogonal and the lemma is an equality"
        lyapunov = Lyapunov(norm, norm, float(sizes.max() / sizes.min()), True, reason)
        growth = Growth(1.0, margin if time == "continuous" else -_log(spectral), 1.0, 0.0)
    return MatrixAnalysis(values, spectral, spectral, margin, 0.0, 1.0, lyapunov, growth)


def analyse_matrix(W: Float64[np.ndarray, "n n"], time: Time, eps: float) -> MatrixAnalysis:
    """A dense recurrence, normal or not; `eps` is the rounding of the dtype that its entries were stored in."""
    values, vectors = np.linalg.eig(W)
    if time == "continuous":
        spectral, numerical = float(values.real.max()), float(np.linalg.eigvalsh((W + W.T) / 2)[-1])
        margin = -spectral
    else:
        spectral, numerical = float(np.abs(values).max()), float(np.linalg.norm(W, 2))
        margin = 1 - spectral
    size = float(np.linalg.norm(W))
    # Frobenius norm less eigenvalues (Henrici): the strictly upper part of the Schur form
    off = max(size**2 - float((np.abs(values) ** 2).sum()), 0.0)
    departure = math.sqrt(off) / size if size else 0.0
    commutator = float(np.linalg.norm(W @ W.T - W.T @ W)) / size**2 if size else 0.0
    singular = np.linalg.svd(vectors, compute_uv=False)
    # the condition of V bounds how far a perturbation of W moves an eigenvalue (Bauer-Fike)
    condition = float(singular[0] / singular[-1]) if singular[-1] > 0 else math.inf
    lyapunov = _solve(W, time, spectral, commutator <= NORMALITY_ROUNDINGS * eps, departure) if margin > 0 else None
    growth = _growth(W, time, lyapunov) if lyapunov is not None else None
    return MatrixAnalysis(values.astype(complex), spectral, numerical, margin, departure, condition, lyapunov, growth)


def _solve(W: np.ndarray, time: Time, spectral: float, normal: bool, departure: float) -> Lyapunov | None:
    from scipy.linalg import solve_continuous_lyapunov, solve_discrete_lyapunov

    eye = np.eye(len(W))
    P = solve_continuous_lyapunov(W.T, -eye) if time == "continuous" else solve_discrete_lyapunov(W.T, eye)
    # symmetric up to rounding: the solver does not know that it is
    sizes = np.linalg.eigvalsh((P + P.T) / 2)
    if not np.isfinite(sizes).all() or sizes[0] <= 0:
        return None  # so near to the boundary that the equation cannot be solved in float64
    norm, bound = float(sizes[-1]), _normal_norm(spectral, time)
    name = "1/(2 beta0)" if time == "continuous" else "1/(1 - r^2)"
    if normal:
        reason = f"W is normal: its eigenvectors are orthogonal and |P| = {name}"
    else:
        reason = (
            f"W is not normal (departure {departure:.2g}): the proof of Lemma A.8 adds up squares along eigenvectors as if "
            f"they were orthogonal, so that its bound may fail. The true |P| is {norm:.4g}, {norm / bound:.3g} times "
            f"{name} = {bound:.4g}"
        )
    return Lyapunov(norm, bound, norm / float(sizes[0]), normal, reason, P)


def _growth(W: np.ndarray, time: Time, lyapunov: Lyapunov) -> Growth:
    """V(h) = h'Ph falls at least like e^{-t/|P|} (discrete: by 1 - 1/|P| a step), and |h|^2 <= V / lam_min(P)."""
    bound = math.sqrt(lyapunov.condition)
    if time == "continuous":
        rate = 1 / (2 * lyapunov.norm)
    else:  # P = I where the step forgets everything, as a ReLU network whose units are all off
        rate = -0.5 * math.log1p(-1 / lyapunov.norm) if lyapunov.norm > 1 else math.inf
    if time == "discrete":
        return Growth(bound, rate, *_largest_power(W, 1.0))
    from scipy.linalg import expm

    # |W| t = 0.05: e^{Wt} is then within 5% of I, so that no hump lies before the first look
    unit = FIRST_TIME / float(np.linalg.norm(W, 2))
    return Growth(bound, rate, *_largest_power(expm(W * unit), unit))


def _largest_power(step: np.ndarray, unit: float) -> tuple[float, float]:
    """The largest |step^k| and when: every k up to 16, then 8 in each doubling, until a power is below 1.

    Past a power of norm q < 1 no later one is above q times the largest before it. Between the powers that are looked
    at time grows by at most 1/8, so that a smooth maximum is missed by less than a percent.
    """
    best, when = 1.0, 0.0
    power, stride, k = step, step, 1
    for doubling in range(TIME_DOUBLINGS):
        for _ in range(16 if doubling == 0 else 8):
            norm = float(np.linalg.norm(power, 2))
            if norm > best:
                best, when = norm, k * unit
            # submultiplicative: from here on all norms stay below the largest so far
            if norm < 1 or not math.isfinite(norm):
                return best, when
            power, k = power @ stride, k + 2**doubling
        stride = stride @ stride
    return best, when


def _normal_norm(spectral: float, time: Time) -> float:
    return 1 / (-2 * spectral) if time == "continuous" else 1 / (1 - spectral**2)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
