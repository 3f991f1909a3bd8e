"""Discretisation of diagonal state-space modes, for the torch versions of the kernel; differentiable."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

Discretization = Literal["zoh", "bilinear"]
DISCRETIZATIONS = ("zoh", "bilinear")

_SERIES = 0.05  # below this |w| the quotient (e^w - 1) / w loses digits; eight terms of its series reach 1e-16


def _exp_minus_one(w: Shaped[Tensor, "features modes"]) -> Shaped[Tensor, "features modes"]:
    if not w.is_complex():
        return torch.expm1(w)
    grown, half = torch.expm1(w.real), torch.sin(w.imag / 2)
    return torch.complex(grown * torch.cos(w.imag) - 2 * half * half, (grown + 1) * torch.sin(w.imag))


def phi(w: Shaped[Tensor, "features modes"]) -> Shaped[Tensor, "features modes"]:
    """(e^w - 1) / w with its limit 1 at w = 0, accurate and differentiable everywhere."""
    small = w.detach().abs() < _SERIES
    near, far = torch.where(small, w, 0), torch.where(small, 1, w)
    series = torch.ones_like(w)
    for k in range(9, 1, -1):
        series = 1 + near / k * series
    return torch.where(small, series, _exp_minus_one(far) / far)


def discretize(
    dt: Float[Tensor, " features"], lam: Shaped[Tensor, "features modes"], discretization: Discretization
) -> tuple[Shaped[Tensor, "features modes"], Shaped[Tensor, "features modes"]]:
    """Abar and Bbar of h' = lam h + u over one step dt.

    zoh: exp(dt lam), (exp(dt lam) - 1) / lam; bilinear: (1 + dt lam / 2) / (1 - dt lam / 2), dt / (1 - dt lam / 2).
    S4D (Gu et al. 2022), section 3.1.
    """
    w = dt.unsqueeze(-1) * lam
    if discretization == "zoh":
        return torch.exp(w), dt.unsqueeze(-1) * phi(w)
    inverse = 1 / (1 - w / 2)
    return (1 + w / 2) * inverse, dt.unsqueeze(-1) * inverse
