"""fit_exponential_sum: a kernel by decaying modes, six ways; and how its error falls with their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.approximate._linear import fit_least_squares, fit_nonnegative, fit_quadrature
from holdfast.approximate._minimax import fit_minimax
from holdfast.approximate._nonlinear import fit_nonlinear
from holdfast.approximate._pencil import fit_matrix_pencil
from holdfast.approximate._problem import FitNorm
from holdfast.approximate._sums import ExponentialSum, Numbers
from holdfast.approximate._target import KernelLike, Target, as_target
from holdfast.errors import ArgumentError, ShapeError

Method = Literal["nonnegative", "least_squares", "quadrature", "nonlinear", "matrix_pencil", "minimax"]
METHODS: tuple[Method, ...] = ("nonnegative", "least_squares", "quadrature", "nonlinear", "matrix_pencil", "minimax")
_ON_A_GRID = ("nonnegative", "least_squares", "nonlinear")
_NORMS: dict[str, tuple[FitNorm, ...]] = {
    "nonnegative": ("l1", "sup"),
    "quadrature": ("l1", "sup"),
    "minimax": ("sup",),
}
_HELD_RATIO = (
    1.25  # slowest rate times horizon: the search for the end of a grid, which 1 / horizon bounds, is good to 20%
)


@checked
def fit_exponential_sum(
    rho: KernelLike,
    order: int | None = None,
    method: Method = "nonnegative",
    horizon: float = 1e4,
    *,
    rates: Numbers | None = None,
    time: Any = None,
    dt: float | None = None,
    norm: FitNorm | None = None,
) -> ExponentialSum:
    """s(t) = sum_i c_i exp(-rates_i t) near rho: the weights of a linear recurrent layer with that memory.

    Sources: ssm, Prop. 3.2; iat, App. A.3. The result carries L1 and sup error, tail included where rho is an
    integrable law and the method is not "minimax".

    Args:
        rho: the kernel: a law, a function of an array of times, or samples with their `time` or spacing `dt`.
        order: number of modes; 16 by default, or as many as `rates`. More than samples can carry are cut to the useful
            number, and the status says so.
        method: "nonnegative": c >= 0 with the smallest L1 error on geometric rates, the bounded weights that the
            theorems assume. "least_squares": any c on equally spaced rates, the papers' own; its weights blow up.
            "quadrature": a power law's integral by the trapezoidal rule. "nonlinear": rates are fitted too.
            "matrix_pencil": complex modes from equally spaced samples. "minimax": the rates and weights with the smallest
            sup error on [0, horizon], for completely monotone kernels; its `ripple` certifies it.
        horizon: no rate is slower than 1 / horizon unless `rates` gives them, and "minimax" looks no further; samples
            bring their own horizon. "quadrature" also takes inf. A law that is not integrable ends there.
        rates: the rates themselves, above 0, for methods that fit on a grid of rates.
        time: times of samples.
        dt: spacing of samples, 1 by default; for "matrix_pencil" of a law or function the sampling step, by default
            1/1024 of the time that holds the kernel.
        norm: whose error "nonnegative" and "quadrature" make small, "l1" (None) or "sup"; "minimax" knows "sup" alone,
            the others "l1" alone.

    Returns:
        an ExponentialSum with `rates`, `coefficients` and errors; `to_layer` makes a layer of it.

    Raises:
        ArgumentError: arguments that do not go together, or a kernel that is 0.

    Example:
        >>> import holdfast
        >>> found = holdfast.fit_exponential_sum(holdfast.laws.PowerLaw(1.5), order=8, horizon=1000)
        >>> found.order, found.l1_error < 0.1
        (8, True)
    """
    positive(order=order)
    if not horizon > 0 or (math.isinf(horizon) and method != "quadrature"):
        raise ArgumentError(f"horizon must be above 0, and finite unless method='quadrature'; got {horizon!r}")
    known = _NORMS.get(method, ("l1",))
    if norm is not None and norm not in known:
        raise ArgumentError(f"norm must be {' or '.join(map(repr, known))} for method={method!r}, got {norm!r}")
    # read before rho: a wrong option is reported before a function is evaluated
    given = None if rates is None else _checked_rates(rates, method, order)
    wanted = order or (16 if given is None else len(given))
    target = as_target(rho, horizon=horizon, time=time, dt=None if method == "matrix_pencil" and callable(rho) else dt)
    if dt is not None and callable(rho) and method != "matrix_pencil":
        raise ArgumentError(
            f"dt is used only when rho is samples, or with method='matrix_pencil'; got {dt=} and {method=}; leave dt out"
        )
    # the alternation holds on [0, horizon] alone, so that errors after it do not count
    if method == "minimax":
        target = replace(target, endless=False)
    cut, note = _useful_order(target, wanted, given)
    span = target.end if target.sampled else horizon
    fitted = _dispatch(target, cut, method, span, given, norm or known[0], dt)
    if note:
        fitted = replace(fitted, status="reduced", notes=(*fitted.notes, note))
    if given is None and method != "minimax" and _slowest(fitted) * span < _HELD_RATIO:
        told = f"the slowest rate is held by the horizon {span:g}: a family of widths needs one that grows with them"
        fitted = replace(fitted, held_by_horizon=span, notes=(*fitted.notes, told))
    return fitted._against(target)


def _slowest(fitted: ExponentialSum) -> float:
    """The smallest rate whose mode counts: at least a millionth of the kernel's L1 norm."""
    mass = np.abs(fitted.coefficients) / fitted.rates.real
    return float(fitted.rates.real[mass >= 1e-6 * mass.sum()].min())


def _dispatch(
    target: Target, order: int, method: str, span: float, rates: np.ndarray | None, norm: FitNorm, dt: float | None
) -> ExponentialSum:
    if method == "nonnegative":
        return fit_nonnegative(target, order, rates, span, norm)
    if method == "least_squares":
        return fit_least_squares(target, order, rates, span)
    if method == "nonlinear":
        return fit_nonlinear(target, order, rates, span)
    if method == "quadrature":
        return fit_quadrature(target, order, span, norm)
    if method == "minimax":
        return fit_minimax(target, order)
    return fit_matrix_pencil(target, order, dt)


def _checked_rates(rates: Numbers, method: str, order: int | None) -> np.ndarray:
    if method not in _ON_A_GRID:
        raise ArgumentError(
            f"method={method!r} finds the rates itself; leave rates out, or use {', '.join(_ON_A_GRID)}"
        )
    plain = rates.detach().cpu().numpy() if isinstance(rates, Tensor) else rates
    array = np.asarray(plain, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0:
        raise ShapeError(f"rates must have shape (order,), got {array.shape}")
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise ArgumentError(f"rates must be finite and above 0 (decay), got {array}")
    if len(np.unique(array)) < len(array):
        raise ArgumentError(f"rates must all differ, since equal rates are one mode; got {array}: leave repeats out")
    if order not in (None, len(array)):
        raise ArgumentError(f"order must be the number of rates, {len(array)}, got {order}; leave order out")
    return array


def _useful_order(target: Target, order: int, rates: np.ndarray | None) -> tuple[int, str]:
    """Two numbers, a rate and a weight, need two samples: more modes than half the samples are not determined."""
    if not target.sampled or rates is not None:
        return order, ""
    assert target.values is not None
    most = max(1, len(target.values) // 2)
    if order <= most:
        return order, ""
    return most, f"{len(target.values)} samples carry at most {most} modes, not {order}"


@dataclass(frozen=True, eq=False)
class Convergence:
    """Errors of exponential sums over a range of orders, and the rates at which they fall.

    Args:
        orders: the orders that were asked for.
        sums: the fit of each order.
    """

    orders: tuple[int, ...]
    sums: tuple[ExponentialSum, ...]

    @property
    def l1(self) -> np.ndarray:
        """L1 errors, one for each order."""
        return np.array([s.l1_error for s in self.sums])

    @property
    def sup(self) -> np.ndarray:
        """Sup errors, one for each order."""
        return np.array([s.sup_error for s in self.sums])

    def algebraic(self, norm: FitNorm = "l1", floor: float = 1e-12) -> float:
        """alpha of an error like order^-alpha, by least squares on logarithms: the form of Jackson's theorem.

        Source: iat, Thm A.3.

        Args:
            norm: which errors, "l1" or "sup".
            floor: errors below this share of the first are left out.
        """
        x, y = self._kept(norm, floor)
        return -float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(x) > 1 else math.nan

    def root(self, norm: FitNorm = "l1", floor: float = 1e-12) -> float:
        """c of an error like exp(-c sqrt(order)), by least squares on logarithms.

        Args:
            norm: which errors, "l1" or "sup".
            floor: errors below this share of the first are left out.
        """
        x, y = self._kept(norm, floor)
        return -float(np.polyfit(np.sqrt(x), np.log(y), 1)[0]) if len(x) > 1 else math.nan

    def _kept(self, norm: FitNorm, floor: float) -> tuple[np.ndarray, np.ndarray]:
        errors = self.l1 if norm == "l1" else self.sup
        keep = errors > floor * errors[0]
        return np.array(self.orders, dtype=float)[keep], errors[keep]


@checked
def convergence(
    rho: KernelLike, orders: Sequence[int], method: Method = "nonnegative", horizon: float = 1e4, **options: Any
) -> Convergence:
    """Fits exponential sums of several orders, to see how their error falls.

    Args:
        rho: the kernel, as in fit_exponential_sum.
        orders: the numbers of modes.
        method: as in fit_exponential_sum.
        horizon: as in fit_exponential_sum.
        options: its other arguments; `rates` may be a function of the order.

    Returns:
        a Convergence: `orders`, the `sums` fitted, and their errors `l1` and `sup`, (orders,), in the units of rho times
        time and of rho; `algebraic()` and `root()` fit the rate at which they fall (iat, Thm A.3).

    Raises:
        ArgumentError: what fit_exponential_sum refuses, for any of the orders.
        UnknownNameError: a method that is not known.

    Example:
        >>> import holdfast
        >>> from holdfast.approximate import convergence
        >>> found = convergence(holdfast.laws.PowerLaw(1.5), [4, 8], "quadrature", horizon=1000)
        >>> found.l1.round(3).tolist()
        [0.185, 0.059]
    """
    make = options.pop("rates", None)
    fits = []
    for order in orders:
        given = {} if make is None else {"rates": make(order) if callable(make) else make}
        fits.append(fit_exponential_sum(rho, order, method, horizon, **given, **options))
    return Convergence(tuple(orders), tuple(fits))
