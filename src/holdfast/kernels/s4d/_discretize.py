"""Discretisation of diagonal state-space modes, for the torch versions of the kernel; differentiable."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

Discretization = Literal["zoh", "bilinear"]
DISCRETIZATIONS = ("zoh", "bilinear")

_MAX_SERIES_MODULUS = (
    0.05  # below this |w| the quotient (e^w - 1) / w loses digits; eight terms of its series reach 1e-16
)


def _exp_minus_one(w: Shaped[Tensor, "features modes"]) -> Shaped[Tensor, "features modes"]:
    if not w.is_complex():
        return torch.expm1(w)
    # expm1 rounds e^w - 1 near -1, and its derivative is that plus 1: 1e-16 for 0, which a large dt multiplies
    return torch.where(w.real < -1, torch.exp(w) - 1, torch.expm1(w))


def phi(w: Shaped[Tensor, "features modes"]) -> Shaped[Tensor, "features modes"]:
    """(e^w - 1) / w with its limit 1 at w = 0, accurate and differentiable everywhere."""
    small = w.detach().abs() < _MAX_SERIES_MODULUS
    near, far = torch.where(small, w, 0), torch.where(small, 1, w)
    series = torch.ones_like(w)
    for k in range(9, 1, -1):
        series = 1 + near / k * series
    return torch.where(small, series, _exp_minus_one(far) / far)


def discretize(
    dt: Float[Tensor, "*step"] | float, lam: Shaped[Tensor, "*modes"], discretization: Discretization
) -> tuple[Shaped[Tensor, "*both"], Shaped[Tensor, "*both"]]:
    """Abar and Bbar of h' = lam h + u over one step dt, for any shapes that broadcast.

    zoh: exp(dt lam), (exp(dt lam) - 1) / lam; bilinear: (1 + dt lam / 2) / (1 - dt lam / 2), dt / (1 - dt lam / 2).
    S4D (Gu et al. 2022), section 3.1. Computed in double where the device has it and rounded once, as the native kernel
    does: in float32 dt lam overflows at 3e38 and torch's complex quotients are NaN below 1e-38.
    """
    given = lam.dtype
    if isinstance(dt, Tensor):
        # exp(log_dt) overflows in float32 at log_dt = 89: past the largest number a decaying mode no longer changes
        dt = dt.clamp(max=torch.finfo(dt.dtype).max)
    if has_double(lam.device):
        lam = lam.to(torch.complex128 if lam.is_complex() else torch.float64)
        dt = dt.double() if isinstance(dt, Tensor) else dt
    w = dt * lam
    if discretization == "zoh":
        factor, gain = torch.exp(w), dt * phi(w)
    else:
        inverse = 1 / (1 - w / 2)
        factor, gain = (1 + w / 2) * inverse, dt * inverse
    return factor.to(given), gain.to(given)


def has_double(device: torch.device) -> bool:
    """True if tensors on `device` can be float64."""
    return device.type != "mps"
