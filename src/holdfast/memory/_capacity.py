"""memory_capacity: how many past inputs can be read off the outputs of a model by a linear map."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from holdfast._arguments import as_generator, checked, checked_fields, positive
from holdfast._record import Record
from holdfast.errors import ArgumentError, ShapeError
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.memory._checks import prepare
from holdfast.memory._curve import ModelError
from holdfast.memory._options import Run

INPUT_BOUND = 0.8  # inputs are uniform in [-0.8, 0.8], as in reservoirpy


@dataclass(frozen=True, eq=False, repr=False)
class MemoryCapacity(Record):
    """Linear memory capacity: MC_k for every delay k, between 0 (forgotten) and 1 (recalled exactly).

    Args:
        delays: k = 1, 2, ..., (delays,), in steps.
        capacities: MC_k, (delays,), from 0 to 1: the squared correlation of u(t - k) with the best linear readout, on
            held-out steps.
        outputs: numbers in an output of the model; the total is at most about this.
        length: number of steps that were run.
        tested: of these, the last ones that MC_k was measured on. Of a forgotten input about 1 / tested is left by chance.
        ridge: regularization of the readout.
    """

    delays: Float64[np.ndarray, " delays"]
    capacities: Float64[np.ndarray, " delays"]
    outputs: int
    length: int
    tested: int
    ridge: float

    @property
    def total(self) -> float:
        """MC = sum of MC_k."""
        return float(self.capacities.sum())

    def summary(self) -> str:
        """A line: the total, and how far back half of an input can be recalled."""
        recalled = self.delays[self.capacities >= 0.5]
        how_far = f"the last one recalled by half is {recalled[-1]:g} steps back" if len(recalled) else "none by half"
        return f"{self.total:.4g} past inputs of {self.outputs} outputs, {how_far}, {self.tested} steps tested"

    def figure(self) -> Figure:
        """MC_k over the delay k."""
        layers = [Line(f"total {self.total:.3g}", self.delays, self.capacities)]
        panel = Panel("Linear memory capacity", Axis("delay k"), Axis("MC_k", limits=(0.0, 1.05)), layers)
        return Figure("capacity", f"Recall of past inputs by delay: {self.summary()}.", [panel])


@checked_fields
@dataclass(frozen=True)
class Readout:
    """The linear map that recalls past inputs from outputs, and how it is tested.

    Args:
        ridge: what is added to the diagonal of the outputs' covariance sums; above 0.
        test_share: share of the steps, the last ones, that MC_k is measured on.
    """

    ridge: float = 1e-6
    test_share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.test_share < 1 or not 0 < self.ridge < math.inf:
            raise ArgumentError(
                f"expected 0 < test_share < 1 and ridge > 0, got test_share={self.test_share}, ridge={self.ridge}"
            )


@checked
def memory_capacity(
    model: Callable[..., Any],
    *,
    longest: int = 100,
    series: Float[Tensor, " time"] | int = 5000,
    readout: Readout | None = None,
    input_size: int = 1,
    double: bool = False,
    run: Run | None = None,
    seed: int | torch.Generator = 0,
) -> MemoryCapacity:
    """Linear memory capacity of any causal model: how well its past inputs can be read off its present output.

    MC_k = corr^2(u(t - k), w_k y(t) + b_k), with w_k, b_k by ridge regression of u(t - k) on the outputs y(t), and the
    correlation over steps that the regression has not seen; MC = sum_k MC_k (Jaeger 2001, "Short term memory in echo
    state networks"). For independent inputs MC is at most the number of outputs. The series, its split and the readout
    are those of reservoirpy's `memory_capacity`: the first `longest` steps only make targets, as many after them warm up.

    Args:
        model: as `memory_function` takes it; torch's RNN, GRU and LSTM give their state as outputs.
        longest: largest delay k, in steps.
        series: the inputs u(t), one number per step, or how many are drawn, uniform in [-0.8, 0.8].
        readout: the regression and its test; None is `Readout()`.
        input_size: number of input features; all of them are given u(t).
        double: measure a float64 copy of an nn.Module.
        run: how the model is called (layout, mode, dtype, device); None is `Run()`.
        seed: number or torch.Generator of the random series.

    Returns:
        a MemoryCapacity: MC_k as `capacities`, (longest,), from 0 to 1, for the `delays` 1 to `longest` in steps, and their
        sum `total`.

    Raises:
        ArgumentError: a series that is too short for `longest`.
        ShapeError: a series that is not one finite number per step.
        ModelError: a model that is not causal, not repeatable, or mixes rows of a batch, or outputs that are not finite.

    Example:
        >>> import torch
        >>> from holdfast.memory import memory_capacity
        >>> delay = lambda x: torch.nn.functional.pad(x, (0, 0, 2, 0))[:, : x.shape[1]]  # by 2 steps
        >>> memory_capacity(delay, longest=3, series=500).capacities.round(1).tolist()
        [0.0, 1.0, 0.0]
    """
    positive(longest=longest, series=series if isinstance(series, int) else None)
    readout, run = readout or Readout(), run or Run()
    generator = as_generator(seed)
    u = _series(series, generator)
    tested = round(len(u) * readout.test_share)
    trained = len(u) - longest - tested
    if tested < 3 or trained < longest + 3:
        raise ArgumentError(
            f"the series must be several times longer than {longest=}, got {len(u)} steps, of which {tested} test "
            f"(test_share={readout.test_share}) and {trained} train, {longest} of those only to warm up; use a longer series"
        )
    with run.undisturbed(model), torch.no_grad():
        subject = run.subject(model, input_size, double=double)
        prepare(subject, generator)
        # the first `longest` inputs are targets only: the model never sees them
        x = u[longest:].to(subject.device, subject.dtype).reshape(1, -1, 1).expand(-1, -1, input_size).contiguous()
        y = subject(x)[0].double().cpu().numpy()
    if not np.isfinite(y).all():
        raise ModelError(
            f"expected finite outputs, got NaN or infinity within {len(y)} steps of inputs up to "
            f"{float(u.abs().max()):g}; use smaller inputs, or check that the model is stable"
        )
    past = np.lib.stride_tricks.sliding_window_view(u.numpy(), longest + 1)[:, -2::-1]  # row t: u(t-1), u(t-2), ...
    # warm-up steps are left out of the fit, and the tested ones come last: no output sees the future
    guess = _readout(y[longest:trained], past[longest:trained], readout.ridge)(y[trained:])
    capacities = _squared_correlation(guess, past[trained:])
    delays = np.arange(1.0, longest + 1)
    return MemoryCapacity(delays, capacities, subject.outputs, len(y), tested, readout.ridge)


def _series(series: Tensor | int, generator: torch.Generator) -> Tensor:
    if isinstance(series, int):
        return (2 * torch.rand(series, generator=generator, dtype=torch.float64) - 1) * INPUT_BOUND
    if series.ndim != 1 or not bool(torch.isfinite(series).all()):
        raise ShapeError(
            f"series must be finite numbers of shape (steps,), got shape {tuple(series.shape)}"
            + ("" if series.ndim != 1 else " with NaN or infinity")
        )
    return series.detach().double().cpu()


def _readout(y: np.ndarray, wanted: np.ndarray, ridge: float) -> Callable[[np.ndarray], np.ndarray]:
    """Ridge regression with a free constant, fitted on outputs y; the covariance sums are not divided by their number."""
    means = y.mean(0), wanted.mean(0)
    left, right = y - means[0], wanted - means[1]
    # normal equations: outputs are few and the ridge keeps them regular
    weights = np.linalg.solve(left.T @ left + ridge * np.eye(y.shape[1]), left.T @ right)
    return lambda outputs: (outputs - means[0]) @ weights + means[1]


def _squared_correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of each column; 0 where one of them stands still."""
    a, b = a - a.mean(0), b - b.mean(0)
    # a guess that is constant has no correlation: nothing is recalled
    size = (a**2).sum(0) * (b**2).sum(0)
    return np.divide((a * b).sum(0) ** 2, size, out=np.zeros(a.shape[1]), where=size > 0)
