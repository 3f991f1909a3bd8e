"""Volterra kernels as a user gives them, on the lags where they are looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from holdfast.errors import ArgumentError, ShapeError
from holdfast_papers.constructions.separate import symmetric

VolterraKernel = Callable[..., Any] | Tensor | np.ndarray | float

MAX_LAGS = 2048  # lags: a kernel of order 2 has their square, 34 MB
THIRD = 48  # lags at which a kernel of order 3 is looked at, where there are more


@dataclass(frozen=True, eq=False)
class Series:
    """The kernels on their lags: order 1 and 2 whole, order 3 as a function, looked at on some lags."""

    length: int
    constant: float
    first: np.ndarray | None
    second: np.ndarray | None
    third: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None

    @classmethod
    def read(cls, kernels: Mapping[int, VolterraKernel], length: int) -> Series:
        """Checks and samples what the user gave."""
        if not isinstance(length, int) or not 2 <= length <= MAX_LAGS:
            raise ArgumentError(f"length must be a whole number from 2 to {MAX_LAGS}, got {length!r}")
        unknown = [order for order in kernels if order not in (0, 1, 2, 3)]
        if unknown or not set(kernels) - {0}:
            raise ArgumentError(
                f"kernels must map orders 1, 2, 3 (and 0, a number) to kernels, got orders {sorted(kernels)}"
            )
        constant = kernels.get(0, 0.0)
        if not isinstance(constant, int | float) or not math.isfinite(constant):
            raise ArgumentError(f"the kernel of order 0 must be a finite number, got {constant!r}")
        lags = np.arange(length)
        first = _evaluated(kernels[1], 1, length)(lags) if 1 in kernels else None
        second = None
        if 2 in kernels:
            second = symmetric(_evaluated(kernels[2], 2, length)(lags[:, None], lags[None, :]))
        third = _symmetric_third(_evaluated(kernels[3], 3, length)) if 3 in kernels else None
        return cls(length, float(constant), first, second, third)

    @property
    def lags(self) -> np.ndarray:
        """The lags of a kernel of order 3 that are looked at."""
        if self.length <= THIRD:
            return np.arange(self.length)
        spread = np.geomspace(1, self.length - 1, THIRD)
        return np.unique(np.concatenate([np.arange(THIRD // 3), spread.round()]).astype(int))

    def cube(self, lags: np.ndarray) -> np.ndarray:
        """The kernel of order 3 on some lags."""
        assert self.third is not None
        return self.third(lags[:, None, None], lags[None, :, None], lags[None, None, :])

    def signals(self) -> np.ndarray:
        """Functions of one lag that the kernels are made of, as columns: fibres, scaled by what they matter."""
        columns = []
        if self.first is not None:
            columns.append(self.first[:, None])
        if self.second is not None:
            columns.append(_main_columns(self.second))
        if self.third is not None:
            few = self.lags[:: max(1, len(self.lags) // 12)]
            fibres = self.third(np.arange(self.length)[:, None, None], few[None, :, None], few[None, None, :])
            columns.append(_main_columns(fibres.reshape(self.length, -1)))
        return np.concatenate(columns, axis=1)


def _main_columns(matrix: np.ndarray) -> np.ndarray:
    U, sizes, _ = np.linalg.svd(matrix, full_matrices=False)
    keep = sizes > 1e-9 * sizes[0]
    keep[8:] = False  # eight signals are enough to find shared modes
    return U[:, keep] * sizes[keep]


def _evaluated(kernel: VolterraKernel, order: int, length: int) -> Callable[..., np.ndarray]:
    if callable(kernel):

        def from_function(*lags: np.ndarray) -> np.ndarray:
            shape = np.broadcast_shapes(*(lag.shape for lag in lags))
            values = np.broadcast_to(np.asarray(kernel(*lags), dtype=np.float64), shape)
            if not np.isfinite(values).all():
                raise ArgumentError(
                    f"the kernel of order {order} must be finite on lags 0 to {length - 1}, got NaN or infinity"
                )
            return values

        return from_function
    plain = kernel.detach().cpu().numpy() if isinstance(kernel, Tensor) else kernel
    table = np.asarray(plain, dtype=np.float64)
    if table.shape != (length,) * order:
        raise ShapeError(
            f"a kernel of order {order} must have shape {(length,) * order} for {length=}, got {table.shape}"
        )
    if not np.isfinite(table).all():
        raise ArgumentError(f"the kernel of order {order} must be finite, got values that are NaN or infinite")
    return lambda *lags: table[lags]


def _symmetric_third(kernel: Callable[..., np.ndarray]) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    def mean(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        orders = ((a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a))
        return np.sum([kernel(*order) for order in orders], axis=0) / 6

    return mean
