"""Exact and Euler discretisation of dh/dt = lam h + v over a step in which v is held."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Discretization = Literal["zoh", "euler"]


def discretize(lam: Tensor, dt: Tensor | float, method: Discretization) -> tuple[Tensor, Tensor]:
    """Factor and input gain of one step, h+ = factor h + gain v, for real or complex lam.

    Zero-order hold: e^{lam dt} and (e^{lam dt} - 1)/lam, dt where lam = 0. Euler: 1 + lam dt and dt, stable only while
    |1 + lam dt| < 1: a negative lam is not enough at a large dt.
    """
    z = lam * dt
    if method == "euler":
        return 1 + z, torch.ones_like(lam) * dt
    zero = z == 0
    safe = torch.where(zero, torch.ones_like(z), z)
    # for |z| < 1e-8 the quotient is still exact to rounding: expm1 has no cancellation
    gain = torch.where(zero, torch.ones_like(z), torch.expm1(safe) / safe) * dt
    return torch.exp(z), gain
