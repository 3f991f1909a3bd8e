"""Time constants of modes, in steps to 1/e: spread over the modes of a recurrence, and the eigenvalues that have them."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from holdfast.errors import ArgumentError
from holdfast.parameterizations import AbstractParameterization
from holdfast.parameterizations._fitting import holding, nearest

MIN_TIME_CONSTANT = 0.05  # steps: e^-20 of a state is left after one


def checked_time_constants(values: Float[Tensor, " given"]) -> np.ndarray:
    """The values in float64, the fastest first; ArgumentError unless all are finite and above 0."""
    given = np.sort(values.detach().cpu().double().numpy().reshape(-1))
    if not len(given) or not np.isfinite(given).all() or given[0] <= 0:
        raise ArgumentError(f"time constants: expected finite numbers above 0, got {values.tolist()!r:.80}")
    return np.maximum(given, MIN_TIME_CONSTANT)


def spread(values: Float64[np.ndarray, " given"], count: int) -> Float64[np.ndarray, " count"]:
    """`count` time constants that follow the sorted ones given: their quantiles, geometric between two of them.

    Fewest and most are among them; of one mode, the slowest.
    """
    places = np.linspace(0, len(values) - 1, count) if count > 1 else np.array([len(values) - 1.0])
    return np.exp(np.interp(places, np.arange(len(values)), np.log(values)))


def assigned(present: Tensor, values: np.ndarray, frequency: Tensor | None = None) -> Tensor:
    """Time constants for modes (..., modes): each keeps its rank; of equal ones the higher frequency is the faster.

    Args:
        present: the time constants that the modes have.
        values: sorted ones that they are to follow.
        frequency: of each mode, where they oscillate.
    """
    modes = present.shape[-1]
    now = np.nan_to_num(present.detach().cpu().double().numpy().reshape(-1, modes), nan=math.inf, posinf=math.inf)
    turns = (
        np.zeros_like(now) if frequency is None else frequency.detach().cpu().double().abs().numpy().reshape(now.shape)
    )
    wanted = spread(values, modes)
    placed = np.empty_like(now)
    for row, (constants, turning) in enumerate(zip(now, turns, strict=True)):
        # 1e-6 apart are equal: rounding must not decide the order
        order = np.lexsort((-turning, np.round(np.log(np.maximum(constants, 1e-12)), 6)))
        placed[row, order] = wanted
    return torch.from_numpy(placed.reshape(present.shape))


def assigned_to_pairs(lam: Tensor, present: Tensor, values: np.ndarray) -> Tensor:
    """The same for the eigenvalues of a real matrix: both of a conjugate pair get one time constant."""
    # one of each conjugate pair is assigned, the other follows: W stays real
    first = lam.imag >= 0
    chosen = torch.empty(lam.shape, dtype=torch.float64)
    chosen[first] = assigned(present[first], values, lam.imag[first])
    for i in torch.nonzero(~first).flatten().tolist():
        gaps = (lam[first] - lam[i].conj()).abs()
        chosen[i] = chosen[first][int(gaps.argmin())]
    return chosen


def from_margins(margins: Tensor) -> Tensor:
    """Time constants of steps that take these shares off a mode; inf at the boundary and past it."""
    shares = margins.double()
    return torch.where(shares > 0, -1 / torch.log1p(-shares.clamp(max=1 - 1e-15)), torch.inf)


def paced(lam: Tensor, steps: Tensor, dt: Tensor | float, rule: str) -> Tensor:
    """Eigenvalues whose modes fall to 1/e in `steps`; frequencies stay, phases where a step has those.

    Args:
        lam: the present ones.
        steps: time constants, of the same shape.
        dt: the step size; of no use in discrete time.
        rule: "discrete", "zoh", "euler" or "bilinear".
    """
    left = torch.exp(-1 / steps.double())  # of a mode after a step
    wide = lam.to(torch.complex128 if lam.is_complex() else torch.float64)
    if rule == "discrete":
        return _turned(wide, left).to(lam.dtype)
    if rule == "euler":
        return ((_turned(1 + dt * wide, left) - 1) / dt).to(lam.dtype)
    half = wide.imag * dt / 2 if lam.is_complex() else torch.zeros_like(left)
    if rule == "zoh":
        real = -1 / (steps.double() * dt)
    else:
        # |1 + z/2| = left |1 - z/2| is a quadratic in Re z; where no Re z damps so much, the one that damps the most
        square = left**2
        root = ((1 + square) ** 2 - (1 - square) ** 2 * (1 + half**2)).clamp(min=0).sqrt()
        least = -2 * torch.sqrt(1 + half**2)
        real = torch.maximum(-2 * (1 - square) * (1 + half**2) / (1 + square + root), least) / dt
    return (torch.complex(real, wide.imag) if lam.is_complex() else real).to(lam.dtype)


def held_by_form(f: AbstractParameterization, lam: Tensor) -> tuple[AbstractParameterization, Tensor]:
    """`f`, with other constants where its range does not hold the eigenvalues, and the nearest ones that it holds.

    Args:
        f: gives eigenvalues; of complex ones real parts in continuous time, moduli in discrete time.
        lam: the eigenvalues.
    """
    if not lam.is_complex():
        form = holding(f, lam)
        return form, nearest(form, lam)
    given = lam.real if f.time == "continuous" else lam.abs()
    form = holding(f, given)
    held = nearest(form, given)
    return form, torch.complex(held, lam.imag) if f.time == "continuous" else torch.polar(held, lam.angle())


def _turned(factor: Tensor, left: Tensor) -> Tensor:
    """The factor with another modulus; of 0, which has no phase, a real one."""
    size = factor.abs()
    return torch.where(size > 0, factor * (left / size.clamp(min=1e-300)), left.to(factor.dtype))
