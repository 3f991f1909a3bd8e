"""S4D as a plain loop over time, in the dtype of the input, and the discretization that the torch versions share."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

Discretization = Literal["zoh", "bilinear"]
DISCRETIZATIONS = ("zoh", "bilinear")

# below this |w| the quotient (e^w - 1) / w loses digits; eight terms of its series reach 1e-16
_MAX_SERIES_MODULUS = 0.05


def _exp_minus_one(w: Shaped[Tensor, "features modes"]) -> Shaped[Tensor, "features modes"]:
    if not w.is_complex():
        return torch.expm1(w)
    # expm1 rounds e^w - 1 near -1, and its derivative is that plus 1: 1e-16 for 0, which a large dt multiplies
    return torch.where(w.real < -1, torch.exp(w) - 1, torch.expm1(w))


def phi(w: Shaped[Tensor, "features modes"]) -> Shaped[Tensor, "features modes"]:
    """(e^w - 1) / w with its limit 1 at w = 0, accurate and differentiable everywhere."""
    small = w.detach().abs() < _MAX_SERIES_MODULUS
    # each branch sees harmless values where the other is taken: autograd multiplies an untaken branch's infinity by 0
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


class S4DInputs(NamedTuple):
    """What every version computes from, all tensors in one dtype; complex modes stand for conjugate pairs."""

    u: Tensor  # (batch, time, features)
    dt: Tensor  # (features,)
    lam_re: Tensor  # (features, modes)
    lam_im: Tensor | None  # None, as c_im, for real modes
    c_re: Tensor
    c_im: Tensor | None
    d: Tensor | None  # (features,)
    lengths: Tensor | None  # (batch,)


class S4DForm(NamedTuple):
    """How it is computed."""

    bilinear: bool  # else the input is held over a step ("zoh")
    reverse: bool


def s4d_reference(
    u: Float[Tensor, "batch time features"],
    dt: Float[Tensor, " features"],
    lam_re: Float[Tensor, "features modes"],
    lam_im: Float[Tensor, "features modes"] | None,
    c_re: Float[Tensor, "features modes"],
    c_im: Float[Tensor, "features modes"] | None,
    d: Float[Tensor, " features"] | None = None,
    h0: Float[Tensor, "batch features modes *pair"] | None = None,
    *,
    discretization: Discretization = "zoh",
    lengths: Int64[Tensor, " batch"] | None = None,
    reverse: bool = False,
) -> tuple[Float[Tensor, "batch time features"], Float[Tensor, "batch features modes *pair"]]:
    """The layer of `holdfast.kernels.s4d` as a plain loop, one step of all rows at a time; autograd differentiates it.

    Args:
        u: inputs (batch, time, features).
        dt: step of each feature (features,).
        lam_re: real parts of the continuous-time eigenvalues (features, modes).
        lam_im: their imaginary parts, or None for real modes.
        c_re: real parts of the output weights (features, modes).
        c_im: their imaginary parts, or None for real modes.
        d: direct path (features,), or None.
        h0: state before the first step (batch, features, modes), complex numbers as pairs; None is zero.
        discretization: "zoh" or "bilinear".
        lengths: int64 (batch,): outputs after a row's length are 0, and its state stays as it was there.
        reverse: run from the last step to the first.
    """
    batch, time, features = u.shape
    pairs = lam_im is not None
    lam = torch.complex(lam_re, lam_im) if lam_im is not None else lam_re
    c = 2 * torch.complex(c_re, c_im) if c_im is not None else c_re
    a, b = discretize(dt.unsqueeze(-1), lam, discretization)
    if h0 is None:
        h = torch.zeros(batch, features, lam.shape[1], dtype=lam.dtype, device=u.device)
    else:
        h = torch.view_as_complex(h0.contiguous()) if pairs else h0
    ends = torch.full((batch,), time, device=u.device) if lengths is None else lengths
    steps = u.unbind(1)  # the gradient of u[:, t] would fill an array of u's size at every step
    outputs: list[Tensor] = list(steps)
    for t in reversed(range(time)) if reverse else range(time):
        # outputs after the end are 0, while the state stays: two masks of one comparison
        inside = (t < ends)[:, None]
        moved = a * h + b * steps[t].unsqueeze(-1)
        h = torch.where(inside[..., None], moved, h)
        y = (c * moved).sum(-1)
        y = y.real if pairs else y
        y = y if d is None else y + d * steps[t]
        outputs[t] = torch.where(inside, y, torch.zeros_like(y))
    out = torch.stack(outputs, 1) if time else u.clone()
    return out, torch.view_as_real(h) if pairs else h
