"""ExponentialSum: modes and weights of a sum of decaying exponentials, with its errors and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast._record import Record
from holdfast._types import Numeric, Time
from holdfast.approximate._problem import sample_weights, time_rule
from holdfast.approximate._sum_layer import sum_layer
from holdfast.approximate._target import KernelLike, Target, as_target
from holdfast.errors import ArgumentError, ShapeError
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.laws import ExponentialMixture
from holdfast.nn import AbstractRecurrent
from holdfast.nn._initial_weights import ReadOut
from holdfast.parameterizations import AbstractParameterization

Numbers = np.ndarray | Tensor | Sequence[float] | Sequence[complex]
SumStatus = Literal["ok", "reduced", "rank deficient", "not converged"]

_MAX_TIME_CONSTANTS = 60.0  # e^-60 = 9e-27: past 60 time constants a mode is below every rounding error


@checked_fields
@dataclass(frozen=True, eq=False, repr=False)
class ExponentialSum(Record):
    """s(t) = Re sum_i coefficients_i exp(-rates_i t), rates with positive real part (ssm, Prop. 3.2, eq. 46).

    A linear functional with kernel rho is missed by at most l1_error |x|_inf. Errors are filled in by a fit or by
    `measure`; NaN is not measured.

    Args:
        rates: one for each mode, (modes,), per unit of time, real or complex; complex modes come with their conjugates.
        coefficients: one weight for each mode, (modes,).
        method: how it was found; "given" for a sum made by hand.
        l1_error: integral of |rho - s| over [0, inf), with the exact tail of a law, or over the known times where
            `tail` is "not known".
        l1_inside: the part of `l1_error` up to `horizon`.
        sup_error: the largest |rho - s|.
        horizon: time up to which rho was evaluated, in the units of 1 / `rates`.
        tail: whether the part after that is "exact" or "not known".
        condition: condition number of the modes as columns of unit norm.
        rank: numerical rank of the modes.
        status: "ok", "reduced" (fewer modes than asked for), "rank deficient" or "not converged".
        notes: the status and other remarks in words.
        held_by_horizon: the horizon, where it and not the kernel holds the slowest rate; else None.
        ripple: of a minimax fit, by which share the largest of its alternating errors exceeds the smallest. No sum of as
            many modes has an error below sup_error / (1 + ripple).
    """

    rates: np.ndarray
    coefficients: np.ndarray
    method: str = "given"
    l1_error: float = math.nan
    l1_inside: float = math.nan
    sup_error: float = math.nan
    horizon: float = math.nan
    tail: Literal["exact", "not known"] = "not known"
    condition: float = math.nan
    rank: int | None = None
    status: SumStatus = "ok"
    notes: tuple[str, ...] = field(default=())
    held_by_horizon: float | None = None
    ripple: float = math.nan

    def __post_init__(self) -> None:
        for name in ("rates", "coefficients"):
            given = getattr(self, name)
            array = np.array(given.detach().cpu().numpy() if isinstance(given, Tensor) else given)
            kind = np.complex128 if array.dtype.kind == "c" else np.float64
            object.__setattr__(self, name, array.astype(kind))
        if self.rates.ndim != 1 or self.rates.shape != self.coefficients.shape or len(self.rates) == 0:
            raise ShapeError(
                "expected as many coefficients as rates and at least one, got rates of shape "
                f"{self.rates.shape} and coefficients of shape {self.coefficients.shape}"
            )
        if not (np.isfinite(self.rates).all() and (self.rates.real > 0).all()):
            raise ArgumentError(f"rates must be finite with a real part above 0 (decay), got {self.rates}")
        if not np.isfinite(self.coefficients).all():
            raise ArgumentError(f"coefficients must be finite, got {self.coefficients}")

    @property
    def order(self) -> int:
        """The number of modes, conjugates counted."""
        return len(self.rates)

    @property
    def error(self) -> float:
        """The L1 error: sup over |x|_inf <= 1 of what a functional with this kernel is missed by."""
        return self.l1_error

    @property
    def is_complex(self) -> bool:
        """Whether some modes oscillate."""
        return self.rates.dtype.kind == "c"

    @property
    def weight_norms(self) -> dict[str, float]:
        """Norms of the coefficients: "l1", "l2", "max"; the theorems assume them bounded over all orders."""
        size = np.abs(self.coefficients)
        largest = float(size.max())
        # in units of the largest: squares of 1e200 overflow
        share = size / largest if largest > 0 else size
        return {"l1": float(size.sum()), "l2": largest * float(np.sqrt((share**2).sum())), "max": largest}

    def __call__(self, t: Numeric) -> Numeric:
        """s(t), in float64 unless t is a tensor of another dtype."""
        if isinstance(t, Tensor):
            values = self._values(t.detach().cpu().double().numpy())
            return torch.as_tensor(values, dtype=t.dtype, device=t.device)
        values = self._values(np.asarray(t, dtype=np.float64))
        return values if isinstance(t, np.ndarray) else float(values)

    def _values(self, t: np.ndarray) -> np.ndarray:
        flat = t.reshape(-1)
        out = np.empty(flat.shape)
        # 2^22 exponentials at a time: 64 MB of complex numbers
        step = max(1, 2**22 // self.order)
        for start in range(0, len(flat), step):
            decays = np.exp(-np.multiply.outer(flat[start : start + step], self.rates))
            out[start : start + step] = (decays @ self.coefficients).real
        return out.reshape(t.shape)

    def law(self) -> ExponentialMixture:
        """The sum as a decay law with exact tails; real modes only."""
        if self.is_complex:
            raise ArgumentError("a mixture law needs real rates, got complex ones; fit with method='nonnegative'")
        return ExponentialMixture(tuple(self.rates.tolist()), tuple(self.coefficients.tolist()))

    def measure(
        self, rho: KernelLike, *, horizon: float | None = None, time: Any = None, dt: float | None = None
    ) -> ExponentialSum:
        """The same sum with its errors against `rho` filled in.

        Args:
            rho: the kernel: a law, a function of an array of times, or samples.
            horizon: time up to which a function is looked at; None is the sum's own horizon, or 1e4.
            time: times of samples.
            dt: spacing of samples.
        """
        wanted = horizon if horizon is not None else self.horizon if math.isfinite(self.horizon) else 1e4
        return self._against(as_target(rho, horizon=wanted, time=time, dt=dt))

    def _against(self, target: Target) -> ExponentialSum:
        if target.sampled:
            assert target.time is not None and target.values is not None
            gaps = np.abs(target.values - self._values(target.time))
            size = float(gaps @ sample_weights(target.time))
            errors: dict[str, Any] = dict(l1_error=size, l1_inside=size, sup_error=float(gaps.max()))
            return replace(self, **errors, horizon=target.end, tail="not known")
        return self._against_function(target)

    def _against_function(self, target: Target) -> ExponentialSum:
        slowest, fastest = float(self.rates.real.min()), float(self.rates.real.max())
        # the faster of both oscillates in the difference
        frequency = max(target.frequency, float(np.abs(self.rates.imag).max()))
        known = target.end if math.isfinite(target.end) else _MAX_TIME_CONSTANTS / slowest
        # behind it the sum is 0 to rounding, and what is left is the law's own tail
        end = max(known, _MAX_TIME_CONSTANTS / slowest) if target.endless else known
        quickest = max(fastest, target.fastest)
        waves = self.rates[self.rates.imag != 0]
        until = max(target.oscillates_until, _MAX_TIME_CONSTANTS / float(waves.real.min()) if len(waves) else 0.0)
        t, w = _split_rule(known, end, quickest, frequency, until)
        gaps = np.abs(target(t) - self._values(t))
        # the nodes of the rule lie inside of panels: a sup at 0 or at a kink would come out low, by 2% where panels are wide
        edges = np.concatenate([np.zeros(1), target.kinks])
        at_edges = float(np.abs(target(edges) - self._values(edges)).max())
        inside = float(gaps[t <= known] @ w[t <= known])
        return replace(
            self,
            l1_error=float(gaps @ w) + target.rest(end),
            l1_inside=inside,
            sup_error=max(at_edges, float(gaps.max())),
            horizon=target.end,
            tail="exact" if target.endless else "not known",
        )

    def to_layer(
        self,
        parameterization: str | AbstractParameterization = "exp",
        *,
        time: Time = "continuous",
        dt: float = 1.0,
        dtype: torch.dtype | None = None,
        readout: ReadOut = "plain",
    ) -> AbstractRecurrent:
        """A layer with one input and one output whose kernel is this sum.

        Continuous time: inputs are held over each step, y(t) = int s(u) x(t - u) du. Discrete time: y_k = sum_j s(j dt)
        x_{k-j}. Of complex modes one of each conjugate pair is kept.

        Args:
            parameterization: of the layer's recurrent weights.
            time: "continuous" or "discrete".
            dt: time of one step.
            dtype: of the weights; None is torch's default.
            readout: "scaled" holds the coefficients in units of their modes' rates, so that a change of the weights by beta
                changes the kernel by at most beta in L1; "plain" holds them as they are.
        """
        return sum_layer(
            self.rates, self.coefficients, parameterization, time=time, dt=dt, dtype=dtype, readout=readout
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON's own types, with the order and the norms of the weights; what is not known becomes None."""
        return {"order": self.order, **super().to_dict(), "weight_norms": self.weight_norms}

    def summary(self) -> str:
        """A line: modes, method, errors, largest weight, status."""
        return (
            f"{self.order} {'complex' if self.is_complex else 'real'} modes, {self.method}, "
            f"l1 error {self.l1_error:.3g}, sup error {self.sup_error:.3g}, "
            f"largest weight {self.weight_norms['max']:.3g}, status {self.status!r}"
        )

    def figure(self) -> Figure:
        """|s(t)| over t, from a hundredth of the fastest time constant to twenty of the slowest."""
        fastest, slowest = 1 / float(np.abs(self.rates).max()), 1 / float(self.rates.real.min())
        t = np.geomspace(fastest / 100, 20 * slowest, 400)
        axes = Axis("t", log=True), Axis("|s(t)|", log=True)
        panel = Panel("Sum of exponentials", *axes, [Line(f"{self.order} modes", t, np.abs(self._values(t)))])
        return Figure("sum", f"Sum of exponentials: {self.summary()}.", [panel])


def _split_rule(
    known: float, end: float, fastest: float, frequency: float, until: float
) -> tuple[np.ndarray, np.ndarray]:
    """One rule up to `known`, another from there to `end`, so that the part inside is integrated on its own."""
    t, w = time_rule(known, fastest, panels=1500, frequency=frequency, until=until)
    # rounding must not leave a second part of no length
    if end <= known * (1 + 1e-12):
        return t, w
    later, weights = time_rule(end - known, 1e3 / known, panels=600, frequency=frequency, until=until - known)
    return np.concatenate([t, known + later]), np.concatenate([w, weights])
