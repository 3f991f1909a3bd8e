"""How the time of a training step grows with each size: the exponent p of time ~ size^p, fitted in log-log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.kernels import reuse_memory
from holdfast_papers.benchmarks.case import OwnKernel, Shape
from holdfast_papers.benchmarks.timing import sweep


@dataclass(frozen=True)
class Growth:
    """Times of one kernel over one size, and the line through them; `bound` is the exponent of its arithmetic."""

    kernel: str
    size: str
    base: Shape
    values: tuple[int, ...]
    seconds: tuple[float, ...]
    exponent: float
    error: float
    bound: float


def fit(values: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """The exponent by least squares in log-log, and its standard error."""
    x, y = np.log(np.asarray(values, dtype=float)), np.log(np.asarray(seconds, dtype=float))
    centred = x - x.mean()
    exponent = float(centred @ y / (centred @ centred))
    left = y - y.mean() - exponent * centred
    return exponent, float(np.sqrt(left @ left / max(len(x) - 2, 1) / (centred @ centred)))


def measure(kernel: OwnKernel, size: str, budget: float) -> Growth:
    """Times the kernel at every value of one size, in turn, for about `budget` seconds."""
    at = kernel.dims.index(size)
    values = kernel.sweeps[size]
    shapes = [(*kernel.base[:at], value, *kernel.base[at + 1 :]) for value in values]
    steps = [kernel.ours(kernel.make_inputs(shape)).step for shape in shapes]
    with reuse_memory():
        seconds = tuple(sweep(steps, budget))
    exponent, error = fit(values, seconds)
    return Growth(kernel.name, size, kernel.base, values, seconds, exponent, error, kernel.bounds[size])
