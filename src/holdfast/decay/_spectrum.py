"""What the eigenvalues of a linear recurrence say about its memory for t -> inf."""

from __future__ import annotations

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.decay._result import AsymptoticLaw, Law
from holdfast.errors import ArgumentError

BOUNDARY_WIDTH = 1e-12  # |Re lam| or |1 - |lam|| below which a mode counts as neither growing nor decaying


@checked
def asymptotic_law(
    eigenvalues: Float[Tensor, " modes"] | Complex[Tensor, " modes"], time: Time = "discrete", *, dt: float = 1.0
) -> AsymptoticLaw:
    """The law of c' e^{W t} U (continuous) or c' W^k U with steps of dt (discrete), from the eigenvalues of W.

    The slowest mode decides: rate = -max Re lam, or -max log|lam| / dt. On the boundary the memory does not decay; it
    is periodic if that eigenvalue turns. Only zeros in discrete time: finite. Assumed: the slowest mode is reached from
    the input and read by the output, and is not defective on the boundary (there a Jordan block grows like t).

    Args:
        eigenvalues: of W (modes,).
        time: "discrete" or "continuous".
        dt: time of one step, in discrete time.
    """
    if eigenvalues.numel() == 0 or not bool(torch.isfinite(eigenvalues).all()):
        raise ArgumentError(f"eigenvalues must be finite numbers, at least one, came {eigenvalues.tolist()}")
    if not 0 < dt < math.inf:
        raise ArgumentError(f"dt must be a finite number above 0, came {dt!r}")
    lam = eigenvalues.detach().to(torch.complex128).flatten()
    if time == "continuous":
        slowest = complex(lam[int(lam.real.argmax())])
        rate = -slowest.real
        margin, turns = rate, slowest.imag != 0
    else:
        slowest = complex(lam[int(lam.abs().argmax())])
        size = abs(slowest)
        if size == 0:
            return AsymptoticLaw("finite", math.inf, slowest)
        rate, margin = -math.log(size) / dt, 1 - size
        turns = slowest.imag != 0 or slowest.real < 0
    law: Law = "exponential"
    if margin <= BOUNDARY_WIDTH:
        law = "periodic" if turns and margin >= -BOUNDARY_WIDTH else "non-decaying"
    return AsymptoticLaw(law, rate, slowest)
