"""The memory that a task needs, from its inputs and targets alone: a linear kernel by ridge regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from holdfast.decay import DecayFit, fit_decay
from holdfast.errors import ArgumentError
from holdfast.memory import MemoryCurve

MAX_LAGS, MAX_COLUMNS = 256, 2100  # steps back that the kernel has, and its entries
RIDGES = tuple(10.0**k for k in range(-8, 3))  # of the mean square of the inputs
HELD_OUT = 0.25  # share of the sequences, or of the time of a single one, on which kernels are judged
ENOUGH = 0.99  # of what the whole kernel explains: the task needs no more steps than explain this
MAX_NUMBERS = 4_000_000  # of the regression's matrix; more rows are sampled evenly
MIN_ROWS = 4  # sequences from which on some are held out; of fewer, the last part of their time is
LITTLE, NOTHING = 0.3, 0.05  # shares explained below which products are tried, and below which no steps are told
MAX_FACTORS = 8  # inputs up to which there are products: 36 of them
MIN_STANDARD_ERRORS = 2.0  # standard errors below which a weight of the kernel says nothing


@dataclass(frozen=True, eq=False)
class TaskMemory:
    """How far back the targets of a task depend on its inputs, as far as a kernel of them sees it.

    Args:
        steps: the task needs inputs up to this many steps back: 99% of what the kernel explains.
        explained: share of the targets' variance that the kernel explains where it was not fitted; near 0: `steps` says
            nothing.
        lags: steps that the kernel was given.
        curve: the size of its weight on the input k steps back.
        fit: the decay law of that.
        products: whether it is a kernel of the products of two inputs of a step too, since inputs alone explain little.
        error: of the kernel on what was held out: the mean squared error, or the share of classes that it gets wrong.
        model_error: that of the model as it is, on the same sequences; None where it does not run on them.
        classes: whether targets are classes.
    """

    steps: int
    explained: float
    lags: int
    curve: MemoryCurve
    fit: DecayFit
    products: bool = False
    error: float = math.nan
    model_error: float | None = None
    classes: bool = False

    @property
    def unit(self) -> str:
        """What the errors are."""
        return "share of wrong classes" if self.classes else "mean squared error"

    @property
    def tells(self) -> bool:
        """Whether the kernel explains enough for its steps to mean something."""
        return self.explained >= NOTHING

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        plain: dict[str, Any] = {"steps": self.steps, "explained": self.explained, "lags": self.lags}
        plain |= {"products": self.products, "tells": self.tells}
        plain |= {"error": self.error, "model_error": self.model_error, "unit": self.unit}
        return {**plain, "fit": self.fit.to_dict(), "kernel": self.curve.to_dict()}


def look_at_task(inputs: Tensor, targets: Tensor, lags: int | None = None, *, classes: bool = False) -> TaskMemory:
    """Regresses targets on the inputs of the last steps, with a ridge and a length chosen on data held out.

    Where that explains little, products of two inputs of the same step are taken too, as the adding problem needs them.

    Args:
        inputs: (rows, time, features).
        targets: (rows, time, outputs), or (rows, outputs) where a sequence has one, at its end.
        lags: most steps back; None: half of the length (a quarter of a single sequence), at most 256.
        classes: whether targets are classes, a column each.
    """
    x, y = inputs.detach().cpu().double().numpy(), targets.detach().cpu().double().numpy()
    if x.ndim != 3 or len(x) != len(y):
        raise ArgumentError(f"data: inputs (rows, time, features) and as many targets, got {x.shape} and {y.shape}")
    linear = _regressed(x, y, lags, products=False, classes=classes)
    if linear.explained >= LITTLE or x.shape[2] > MAX_FACTORS:
        return linear
    i, j = np.triu_indices(x.shape[2])
    more = _regressed(np.concatenate([x, x[..., i] * x[..., j]], axis=2), y, lags, products=True, classes=classes)
    return more if more.explained > max(linear.explained, NOTHING) else linear


def _regressed(x: np.ndarray, y: np.ndarray, lags: int | None, products: bool, classes: bool) -> TaskMemory:
    once = y.ndim == 2
    length = x.shape[1] - 1 if once else x.shape[1] // (2 if len(x) >= MIN_ROWS else 4)
    lags = max(1, min(lags or MAX_LAGS, length, MAX_COLUMNS // x.shape[2] - 1))
    A, b, group, mean = _rows(x, y, lags, once)
    held = group >= np.quantile(group, 1 - HELD_OUT)
    if held.all() or not held.any():
        raise ArgumentError("data: too little to keep a part back; give more sequences, or a longer one")
    features = x.shape[2]
    best = max((_score(A, b, held, ridge, (lags + 1) * features)[0], ridge) for ridge in RIDGES)
    whole, ridge = max(best[0], 0.0), best[1]
    _, kernel, errors = _score(A, b, held, ridge, (lags + 1) * features)
    steps = _needed(A, b, held, ridge, features, lags, whole)
    size = np.abs(kernel.reshape(lags + 1, features, -1)).sum(1).max(-1)
    floor = MIN_STANDARD_ERRORS * errors.reshape(lags + 1, features).sum(1)
    curve = MemoryCurve(time=np.arange(lags + 1), values=size, floor=floor)
    answers = A[held] @ kernel
    wrong = (answers + mean).argmax(1) != (b[held] + mean).argmax(1) if classes else (answers - b[held]) ** 2
    return TaskMemory(steps, whole, lags, curve, fit_decay(curve), products, error=float(wrong.mean()), classes=classes)


def _rows(x: np.ndarray, y: np.ndarray, lags: int, once: bool) -> tuple[np.ndarray, ...]:
    """A row (x_t, x_{t-1}, ..., x_{t-lags}) and its target for each step with so many before it, its group, the mean target."""
    windows = np.lib.stride_tricks.sliding_window_view(x, lags + 1, axis=1)[..., ::-1]  # (rows, starts, features, lags)
    starts = windows.shape[1]
    windows = windows[:, -1:] if once else windows
    wanted = y[:, None] if once else y[:, lags:]
    A = windows.swapaxes(-1, -2).reshape(windows.shape[0] * windows.shape[1], -1)
    b = wanted.reshape(len(A), -1)
    several = len(x) >= MIN_ROWS
    group = np.repeat(np.arange(len(x)), windows.shape[1]) if several else np.tile(np.arange(starts), len(x))
    every = max(1, A.size // MAX_NUMBERS)
    A, b, group = A[::every], b[::every], group[::every]
    return A - A.mean(0), b - b.mean(0), group, b.mean(0)


def _score(
    A: np.ndarray, b: np.ndarray, held: np.ndarray, ridge: float, columns: int
) -> tuple[float, np.ndarray, np.ndarray]:
    """Share of the variance explained on the part held out, the kernel, and the standard error of its entries."""
    fitted, rest = A[~held, :columns], b[~held]
    G = fitted.T @ fitted
    G[np.diag_indices_from(G)] += ridge * len(fitted) * max(float(np.mean(fitted**2)), 1e-300)
    inverse = np.linalg.pinv(G, hermitian=True)
    kernel = inverse @ (fitted.T @ rest)
    missed = b[held] - A[held, :columns] @ kernel
    spread = float((b[held] ** 2).sum())
    noise = float((rest - fitted @ kernel).var())
    share = 1 - float((missed**2).sum()) / spread if spread > 0 else 0.0
    return share, kernel, np.sqrt(np.maximum(np.diag(inverse), 0) * noise)


def _needed(
    A: np.ndarray, b: np.ndarray, held: np.ndarray, ridge: float, features: int, lags: int, whole: float
) -> int:
    """The fewest steps back whose kernel explains 99% of what the whole one does, by bisection."""
    low, high = -1, lags
    while high - low > 1:
        middle = (low + high) // 2
        share = _score(A, b, held, ridge, (middle + 1) * features)[0]
        low, high = (low, middle) if share >= ENOUGH * whole else (middle, high)
    return high if math.isfinite(whole) else lags
