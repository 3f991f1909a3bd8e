"""S4D as a plain loop over time, in the dtype of the input; autograd differentiates it."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from holdfast.kernels.s4d._discretize import Discretization, discretize


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
        inside = (t < ends)[:, None]
        moved = a * h + b * steps[t].unsqueeze(-1)
        h = torch.where(inside[..., None], moved, h)
        y = (c * moved).sum(-1)
        y = y.real if pairs else y
        y = y if d is None else y + d * steps[t]
        outputs[t] = torch.where(inside, y, torch.zeros_like(y))
    out = torch.stack(outputs, 1) if time else u.clone()
    return out, torch.view_as_real(h) if pairs else h
