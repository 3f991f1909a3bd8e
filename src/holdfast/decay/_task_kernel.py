"""The kernel of a task: ridge regression of targets on lagged inputs, in the form that has the smaller matrix.

With S = A'A where columns are fewer and S = AA' where rows are, f(A'A) A' = A' f(AA') gives the kernel of either form by
one function of S. One eigendecomposition of S serves every ridge. A Cholesky factor of A'A holds those of all shorter
kernels, so that one of them serves every length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from holdfast.decay._task_data import Rows

RIDGES = tuple(10.0**k for k in range(-8, 3))  # of the mean square of the inputs
ENOUGH = 0.99  # of what the best length explains: the task needs no more steps than explain this
CONFIDENCE = 0.95  # of every interval
BEARABLE = 0.9  # of what the best length explains: longer kernels that explain this are taken
CLEARLY = 0.02  # share of the variance below which no length is better than another
DRAWS = 400  # of blocks with repetition, for the interval of steps
DUAL_LENGTHS = 16  # lengths at which a kernel of more columns than rows is judged, before a bisection
MAX_LEVERAGE = 0.99  # of an answer on its own prediction, beyond which its residual says nothing
CHUNK_NUMBERS = 2_000_000  # of influences held at a time, 16 MB
STANDARD_ERRORS = 2.0  # below which a weight of the kernel says nothing


@dataclass(frozen=True, eq=False)
class TaskKernel:
    """A kernel of lagged inputs, what it explains where it was not fitted, and how well it is known.

    Args:
        rows: what was regressed, with the lags that were kept.
        weights: the kernel (lags + 1, features, outputs).
        errors: the standard error of each weight.
        size: root of the sum of squares of the weights of each lag, what noise adds taken off.
        size_error: its standard error.
        floor: below it the size says nothing.
        explained: share of the variance of the targets that were held out.
        explained_interval: its 95% interval.
        steps: the fewest steps back that explain 99% of what kernels of any length do.
        steps_interval: its 95% interval.
        error: on what was held out: mean squared error, or share of wrong classes.
        quantile: standard errors that a 95% interval reaches to either side.
    """

    rows: Rows
    weights: Float64[np.ndarray, "lags features outputs"]
    errors: Float64[np.ndarray, "lags features outputs"]
    size: Float64[np.ndarray, " lags"]
    size_error: Float64[np.ndarray, " lags"]
    floor: Float64[np.ndarray, " lags"]
    explained: float
    explained_interval: tuple[float, float]
    steps: int
    steps_interval: tuple[int, int]
    error: float
    quantile: float


def fit_task_kernel(rows: Rows, *, classes: bool) -> TaskKernel:
    """The kernel of all rows, with a ridge that was chosen on those that are held out.

    Four steps of iterated refinement take the bias of the ridge from r / (d + r) to its fourth power along an
    eigenvector of S with eigenvalue d, so that intervals need not count it where the data determine the kernel.

    Args:
        rows: what is regressed.
        classes: whether targets are classes.
    """
    rows, ridge, answers = _choose_length(rows)
    missed, whole = _by_length(rows, ridge), _squares(rows, rows.b[rows.fitted :])
    steps, shares, counts = _steps_of(missed, whole)
    held = rows.b[rows.fitted :]
    wrong = (answers + rows.mean).argmax(1) != (held + rows.mean).argmax(1) if classes else (answers - held) ** 2
    weights, errors, size_error = _with_errors(rows, ridge)
    energy = np.square(weights).sum((1, 2))
    several = weights[0].size > 1
    size = np.sqrt(np.maximum(energy - np.square(errors).sum((1, 2)), 0.0)) if several else np.sqrt(energy)
    floor = STANDARD_ERRORS * np.power((errors**4).sum((1, 2)), 0.25)
    low, high = np.quantile(counts, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), method="nearest")
    return TaskKernel(
        rows, weights, errors, size, size_error, floor, max(float(1 - missed[-1].sum() / max(whole.sum(), 1e-300)), 0.0),
        (float(np.quantile(shares, 0.025)), float(np.quantile(shares, 0.975))), steps,
        (min(int(low), steps), max(int(high), steps)), float(wrong.mean()), _quantile(rows),
    )  # fmt: skip


def _quantile(rows: Rows) -> float:
    from scipy.stats import t as student  # a second at import, for this alone

    return float(student.ppf((1 + CONFIDENCE) / 2, max(len(np.unique(rows.blocks)) - 1, 1)))


def absolute_ridge(A: np.ndarray, ridge: float) -> float:
    """A ridge in units of the mean square of the inputs, as it is added to the diagonal of S."""
    return ridge * len(A) * max(float(np.mean(A**2)), 1e-300)


def _gram(A: np.ndarray) -> np.ndarray:
    return A.T @ A if A.shape[1] <= A.shape[0] else A @ A.T


def _choose_length(rows: Rows) -> tuple[Rows, float, np.ndarray]:
    """The rows with as many lags as they can support, the ridge, and its answers on what is held out.

    All lags, unless half, a quarter, ... of them explain clearly more: few answers do not determine many weights.
    """
    spread = max(float(np.square(rows.b[rows.fitted :]).sum()), 1e-300)
    tried, shares, lags = [], [0.0], rows.lags
    while lags >= 1 and shares[-1] < BEARABLE:  # nothing explains more than everything
        tried.append((*_choose_ridge(_cut(rows, lags)), lags))
        shares.append(1 - tried[-1][0] / spread)
        lags //= 2
    shares = shares[1:]
    best = max(shares)
    enough = next(i for i, share in enumerate(shares) if share >= min(BEARABLE * best, best - CLEARLY))
    _, ridge, answers, lags = tried[enough]
    return _cut(rows, lags), ridge, answers


def _cut(rows: Rows, lags: int) -> Rows:
    if lags == rows.lags:
        return rows
    note = f"{len(rows.A):,} answers are too few for {rows.lags} lags: {lags} are used"
    A = rows.A[:, : (lags + 1) * rows.features]
    return replace(rows, A=A, lags=lags, complete=False, notes=(*rows.notes, note))


def _choose_ridge(rows: Rows) -> tuple[float, float, np.ndarray]:
    """Squares missed by the ridge that explains the most of what is held out, the ridge, its answers there."""
    A, b, held = rows.A[: rows.fitted], rows.b[: rows.fitted], rows.A[rows.fitted :]
    d, V = np.linalg.eigh(_gram(A))
    primal = len(d) == A.shape[1]
    left = held @ V if primal else (held @ A.T) @ V
    right = V.T @ (A.T @ b if primal else b)
    best: tuple[float, float, np.ndarray] | None = None
    for ridge in RIDGES:
        answers = left @ (right / (np.maximum(d, 0.0) + absolute_ridge(A, ridge))[:, None])
        missed = float(np.square(rows.b[rows.fitted :] - answers).sum())
        if best is None or missed < best[0]:
            best = missed, ridge, answers
    assert best is not None
    return best


def _squares(rows: Rows, values: np.ndarray) -> np.ndarray:
    """Sums of squares over each block that is held out."""
    _, place = np.unique(rows.blocks[rows.fitted :], return_inverse=True)
    return np.bincount(place, weights=np.square(values).sum(1))


def _by_length(rows: Rows, ridge: float) -> np.ndarray:
    """Squares missed by kernels of 0, 1, ..., lags steps back, over each block that is held out: (lags + 1, blocks)."""
    from scipy.linalg import solve_triangular  # a second at import, for this alone

    A, b, held = rows.A[: rows.fitted], rows.b[: rows.fitted], rows.A[rows.fitted :]
    if A.shape[1] > A.shape[0]:
        return _by_length_dual(rows, ridge)
    S = A.T @ A
    S[np.diag_indices_from(S)] += absolute_ridge(A, ridge)
    L = np.linalg.cholesky(S)
    # the leading block of L is the factor of the leading block of S: each length adds its own columns to the answers
    z = solve_triangular(L, A.T @ b, lower=True)
    H = solve_triangular(L, held.T, lower=True)
    rest, missed = rows.b[rows.fitted :].copy(), []
    for k in range(rows.lags + 1):
        own = slice(k * rows.features, (k + 1) * rows.features)
        rest -= H[own].T @ z[own]
        missed.append(_squares(rows, rest))
    return np.array(missed)


def _by_length_dual(rows: Rows, ridge: float) -> np.ndarray:
    """The same where rows are fewer: at 16 lengths and on a bisection of the one that is enough, between them by lines."""
    from scipy.linalg import cho_factor, cho_solve  # a second at import, for this alone

    A, b, held = rows.A[: rows.fitted], rows.b[: rows.fitted], rows.A[rows.fitted :]
    r, known = absolute_ridge(A, ridge), {}

    def missed(k: int) -> np.ndarray:
        if k not in known:
            own = A[:, : (k + 1) * rows.features]
            S = own @ own.T
            S[np.diag_indices_from(S)] += r
            answers = held[:, : own.shape[1]] @ (own.T @ cho_solve(cho_factor(S, overwrite_a=True), b))
            known[k] = _squares(rows, rows.b[rows.fitted :] - answers)
        return known[k]

    grid = np.unique(np.geomspace(1, rows.lags + 1, DUAL_LENGTHS).astype(int)) - 1
    whole = float(np.square(rows.b[rows.fitted :]).sum())
    least = min(float(missed(int(k)).sum()) for k in grid)
    limit = whole - ENOUGH * max(whole - least, 0.0)
    first = next((i for i, k in enumerate(grid) if float(missed(int(k)).sum()) <= limit), len(grid) - 1)
    low, high = int(grid[first - 1]) if first else -1, int(grid[first])
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if float(missed(middle).sum()) <= limit else (middle, high)
    at = sorted(known)
    values = np.array([known[k] for k in at])
    return np.array([np.interp(np.arange(rows.lags + 1), at, column) for column in values.T]).T


def _steps_of(missed: np.ndarray, whole: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """Steps that are enough, and of blocks drawn with repetition the shares explained and the steps."""
    generator = np.random.default_rng(0)
    count = len(whole)
    draws = generator.multinomial(count, np.full(count, 1 / count), size=DRAWS)
    weights = np.concatenate([np.ones((1, count)), draws])
    total = np.maximum(weights @ whole, 1e-300)
    shares = 1 - weights @ missed.T / total[:, None]  # (draws, lengths)
    enough = shares >= ENOUGH * np.maximum(shares.max(1, keepdims=True), 0.0)
    counts = np.where(enough.any(1), enough.argmax(1), missed.shape[0] - 1)
    return int(counts[0]), shares[1:, -1], counts[1:]


def _with_errors(rows: Rows, ridge: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (lags + 1, features, outputs), their standard errors and those of the size of each lag.

    A block moves the kernel by A_g' e_g behind the inverse, e_g the residuals that its answers would have if they had not
    been fitted: the jackknife over blocks, to first order.
    """
    A, b = rows.A, rows.b
    S = _gram(A)
    M = refined_inverse(S, absolute_ridge(A, ridge))
    primal = len(M) == A.shape[1]
    leverage = np.einsum("ij,ij->i", A @ M, A) if primal else np.einsum("ij,ji->i", S, M)
    weights = M @ (A.T @ b) if primal else A.T @ (M @ b)
    rest = (b - A @ weights) / (1 - leverage.clip(max=MAX_LEVERAGE))[:, None]
    front, source = (M, _pushed(rows, rest)) if primal else (A.T, np.tensordot(M, _apart(rows, rest), axes=1))
    kernel = weights.reshape(rows.lags + 1, rows.features, b.shape[1])
    errors, size_error = np.empty(kernel.shape), np.empty(len(kernel))
    lags = max(1, CHUNK_NUMBERS // (rows.features * source[0].size))
    for first in range(0, len(kernel), lags):
        part = slice(first, first + lags)
        change = np.tensordot(front[first * rows.features : (first + lags) * rows.features], source, axes=1)
        change = change.reshape(-1, rows.features, *change.shape[1:]).transpose(2, 0, 1, 3)  # blocks first
        errors[part], size_error[part] = _spread(change, kernel[part])
    return kernel, errors, size_error


def refined_inverse(S: np.ndarray, r: float) -> np.ndarray:
    """(1 - q^4) / d for each eigenvalue d of S, q = r / (d + r): ridge regression after three steps of refinement."""
    d, V = np.linalg.eigh(S)
    d = np.maximum(d, 0.0)
    q = r / (d + r)
    return (V * ((1 + q) * (1 + q * q) / (d + r))) @ V.T


def _pushed(rows: Rows, rest: np.ndarray) -> np.ndarray:
    """A_g' e_g of each block: (columns, blocks, outputs)."""
    numbers = np.unique(rows.blocks)
    parts = [rows.A[rows.blocks == g].T @ rest[rows.blocks == g] for g in numbers]
    return np.stack(parts, axis=1)


def _apart(rows: Rows, rest: np.ndarray) -> np.ndarray:
    """The residuals of each block beside zeros: (answers, blocks, outputs)."""
    numbers, place = np.unique(rows.blocks, return_inverse=True)
    apart = np.zeros((len(rest), len(numbers), rest.shape[1]))
    apart[np.arange(len(rest)), place] = rest
    return apart


def _spread(change: np.ndarray, kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard errors of weights and of the size of each lag, of the changes (blocks, lags, features, outputs)."""
    count = len(change)
    change = change - change.mean(0)
    scale = count / max(count - 1, 1)
    size = np.sqrt(np.square(kernel).sum((1, 2)))
    along = np.einsum("glfo,lfo->gl", change, kernel) / np.maximum(size, 1e-300)
    return np.sqrt(scale * np.square(change).sum(0)), np.sqrt(scale * np.square(along).sum(0))
