"""A sampled kernel rho(t): its decay law, and the best sum of decaying exponentials of every order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.approximate import METHODS, ExponentialSum, Method, fit_exponential_sum
from holdfast.decay._fit_decay import fit_decay
from holdfast.decay._result import DecayFit
from holdfast.errors import ArgumentError, HoldfastError, unknown_name
from holdfast.memory import MemoryCurve
from holdfast.nn import AbstractRecurrent

# quadrature needs a law, minimax values between the samples
OFFERED_METHODS: tuple[Method, ...] = tuple(method for method in METHODS if method not in ("quadrature", "minimax"))
# least_squares is never better than nonlinear
TRIED_METHODS: tuple[Method, ...] = ("nonnegative", "nonlinear", "matrix_pencil")
DEFAULT_ORDERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, eq=False)
class KernelFit:
    """A sampled kernel: its decay law, and the best exponential sum of each order.

    Args:
        time: the times of the samples, (samples,).
        values: the samples of the kernel, (samples,).
        sums: the best sum of each order.
        useful: the last order that the samples carry; larger ones follow the noise.
        chosen: the order to take: the smallest within the tolerance, else the best of the useful ones.
        tolerance: largest accepted L1 error, relative to the L1 norm of the samples.
        decay: the law of |values|.
        notes: remarks of the fits, in words.
    """

    time: Float[np.ndarray, " samples"]
    values: Float[np.ndarray, " samples"]
    sums: dict[int, ExponentialSum]
    useful: int
    chosen: int
    tolerance: float
    decay: DecayFit
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> ExponentialSum:
        """The chosen sum."""
        return self.sums[self.chosen]

    @property
    def size(self) -> float:
        """L1 norm of the samples, to which errors are relative."""
        return float(np.trapezoid(np.abs(self.values), self.time))

    @property
    def reached(self) -> bool:
        """Whether the chosen sum is within the tolerance."""
        return self.best.l1_error <= self.tolerance * self.size

    def to_layer(self, parameterization: str = "exp", *, time: Time = "discrete") -> AbstractRecurrent:
        """A layer whose kernel is the chosen sum, with steps as long as the samples are apart.

        Args:
            parameterization: of the layer's recurrent weights.
            time: "discrete" or "continuous".
        """
        step = spacing(self.time) if time == "discrete" else float(np.diff(self.time).mean())
        return self.best.to_layer(parameterization, time=time, dt=step)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, for JSON."""
        return {
            "samples": len(self.values),
            "l1_norm": self.size,
            "decay": self.decay.to_dict(),
            "tolerance": self.tolerance,
            "reached": self.reached,
            "useful": self.useful,
            "chosen": self.chosen,
            "notes": list(self.notes),
            "sums": [fit.to_dict() for _, fit in sorted(self.sums.items())],
        }


def spacing(time: Float[np.ndarray, " samples"]) -> float:
    """The distance of the samples, which a layer in discrete time needs; refused where they are not equally far."""
    steps = np.diff(time)
    if len(steps) == 0:
        return 1.0  # one sample, which the fit refuses
    if float(np.ptp(steps)) > 1e-6 * float(steps.mean()):
        raise ArgumentError(
            f"a discrete layer needs equally spaced samples, got steps from {steps.min():g} to {steps.max():g}; use "
            "time='continuous' (--time continuous)"
        )
    return float(steps.mean())


@checked
def fit_kernel(
    values: Float[np.ndarray, " samples"],
    time: Float[np.ndarray, " samples"],
    *,
    orders: Sequence[int] = DEFAULT_ORDERS,
    method: str = "best",
    tolerance: float = 0.01,
    progress: Callable[[int, int], None] | None = None,
) -> KernelFit:
    """Fits samples of a kernel by sums of decaying exponentials, one for each order, and names its decay law.

    What `holdfast fit-kernel` prints.

    Args:
        values: the samples.
        time: their times.
        orders: numbers of modes to try.
        method: one of `fit_exponential_sum`, or "best", which takes the smallest L1 error of three.
        tolerance: L1 error wanted, relative to the L1 norm of the samples.
        progress: called as `progress(done, total)` after each order.

    Returns:
        a KernelFit: the `sums` by order, the `chosen` order and its sum `best`, rates per unit of `time`, and the `decay`
        law; `to_layer()` makes a layer of it.

    Raises:
        UnknownNameError: a method that is not known.
        ArgumentError: a tolerance that is not above 0, orders below 1, or samples that fit_exponential_sum refuses.

    Example:
        >>> import numpy as np
        >>> from holdfast.decay import fit_kernel
        >>> t = np.arange(100.0)
        >>> fit = fit_kernel(np.exp(-0.5 * t) + np.exp(-0.1 * t), t, orders=[1, 2], method="matrix_pencil")
        >>> fit.chosen, fit.best.rates.real.round(3).tolist()
        (2, [0.1, 0.5])
    """
    if method not in ("best", *OFFERED_METHODS):
        raise unknown_name("method", method, ("best", *OFFERED_METHODS))
    if not tolerance > 0:
        raise ArgumentError(f"tolerance must be above 0, got {tolerance}")
    wanted = sorted(set(orders))
    if not wanted or wanted[0] < 1:
        raise ArgumentError(f"orders must be one or more whole numbers >= 1, got {list(orders)}")
    sums: dict[int, ExponentialSum] = {}
    notes: list[str] = []
    for done, order in enumerate(wanted):
        fit = _best(values, time, order, method)
        notes += fit.notes
        if fit.order in sums and fit.status == "reduced":
            break  # further orders would be cut to the same one
        sums[fit.order] = fit
        if progress is not None:
            progress(done + 1, len(wanted))
    useful = _useful_order(sums, time, values)
    chosen = _choose(sums, useful, tolerance * float(np.trapezoid(np.abs(values), time)))
    decay = fit_decay(MemoryCurve(time=time, values=np.abs(values)))
    return KernelFit(time, values, sums, useful, chosen, tolerance, decay, tuple(dict.fromkeys(notes)))


def _choose(sums: dict[int, ExponentialSum], useful: int, allowed: float) -> int:
    carried = {order: fit.l1_error for order, fit in sorted(sums.items()) if order <= useful}
    within = [order for order, error in carried.items() if error <= allowed]
    return within[0] if within else min(carried, key=lambda order: carried[order])


def _useful_order(sums: dict[int, ExponentialSum], time: np.ndarray, values: np.ndarray) -> int:
    """The order with the smallest information criterion: past it, two more numbers per mode only follow the noise.

    BIC with errors of Laplace's law, 2 N log(mean |error|) + 2 m log N for N samples and 2 m numbers.
    """
    count, span = len(values), float(time[-1] - time[0])
    floor = 1e-16 * float(np.abs(values).max())

    def criterion(order: int) -> float:
        return 2 * count * float(np.log(max(sums[order].l1_error / span, floor))) + 2 * order * float(np.log(count))

    return min(sums, key=criterion)


def _best(values: np.ndarray, time: np.ndarray, order: int, method: str) -> ExponentialSum:
    if method != "best":
        return fit_exponential_sum(values, order, cast("Method", method), time=time)
    candidates, failure = [], None
    for name in TRIED_METHODS:
        try:
            candidates.append(fit_exponential_sum(values, order, name, time=time))
        except HoldfastError as error:  # unequal spacing, too many samples: another method may do
            failure = error
    if not candidates:
        assert failure is not None
        raise failure
    return min(candidates, key=lambda fit: fit.l1_error)
