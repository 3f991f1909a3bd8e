"""What the eigenvalues of a linear recurrence, or of a stack of them, say about memory for t -> inf."""

from __future__ import annotations

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.decay._result import AsymptoticLaw, Law
from holdfast.errors import ArgumentError
from holdfast.memory.closed_form import step_eigenvalues
from holdfast.nn import AbstractRecurrent, recurrences

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

    Returns:
        an AsymptoticLaw: `law` ("exponential", "periodic", "non-decaying" or "finite"), `rate` per unit of time, and the
        `slowest` eigenvalue.

    Raises:
        ArgumentError: no eigenvalues, some that are not finite, or a dt that is not above 0.

    Example:
        >>> import torch
        >>> from holdfast.decay import asymptotic_law
        >>> found = asymptotic_law(torch.tensor([0.5, 0.9]))
        >>> found.law, round(found.rate, 4)  # -log 0.9
        ('exponential', 0.1054)
    """
    if eigenvalues.numel() == 0 or not bool(torch.isfinite(eigenvalues).all()):
        raise ArgumentError(f"eigenvalues must be one or more finite numbers, got {eigenvalues.tolist()}")
    if not 0 < dt < math.inf:
        raise ArgumentError(f"dt must be a finite number above 0, got {dt!r}")
    lam = eigenvalues.detach().to(torch.complex128).flatten()
    if time == "continuous":
        slowest = complex(lam[int(lam.real.argmax())])
        rate = -slowest.real
        margin, turns = rate, slowest.imag != 0
    else:
        # by modulus, whose log over dt is the rate; the angle only says whether it turns
        slowest = complex(lam[int(lam.abs().argmax())])
        size = abs(slowest)
        if size == 0:
            return AsymptoticLaw("finite", math.inf, slowest)
        rate, margin = -math.log(size) / dt, 1 - size
        # a negative real eigenvalue changes sign at each step: that is a period of two
        turns = slowest.imag != 0 or slowest.real < 0
    law: Law = "exponential"
    if margin <= BOUNDARY_WIDTH:
        law = "periodic" if turns and margin >= -BOUNDARY_WIDTH else "non-decaying"
    return AsymptoticLaw(law, rate, slowest)


@checked
def stack_rate(model: nn.Module, *, input_rate: float = math.inf) -> float:
    """The rate at which outputs settle, per step: the smallest of the layers' own rates and of the input's.

    A layer's own rate is -log of the largest modulus of its eigenvalues (ssm, Prop. 3.11; the paper promises the input's
    rate whatever the layer is). Lipschitz functions between layers change no rate (Prop. 3.12), so that a stack has the
    smallest of all (Thm 3.13). 0 or below where a layer does not decay. Reached for t -> inf: layers with equal rates make
    powers of t before.

    Args:
        model: a layer whose state moves linearly, or a stack of such layers with memoryless functions between them.
        input_rate: c0 of an input that settles like e^(-c0 t); inf for one that is constant from some time on.

    Returns:
        the rate, per step; inf where every state is forgotten in one step and the input is constant.

    Raises:
        ArgumentError: a model without holdfast layers or with one whose recurrence is not linear, or an input_rate below 0.

    Example:
        >>> import torch, holdfast
        >>> layers = [holdfast.nn.DiagonalSSM(1, 1, eigenvalues=torch.tensor([-r])) for r in (0.5, 0.1)]
        >>> round(holdfast.decay.stack_rate(torch.nn.Sequential(*layers)), 4)  # the slower of the two
        0.1
    """
    layers = [view.module for view in recurrences(model) if isinstance(view.module, AbstractRecurrent)]
    spectra = [step_eigenvalues(layer) for layer in layers]
    if not layers or any(lam is None for lam in spectra):
        which = next((type(la).__name__ for la, lam in zip(layers, spectra, strict=True) if lam is None), "none")
        raise ArgumentError(
            f"model must have holdfast layers with a linear recurrence only, got a {type(model).__name__} with {which}; "
            "fit_decay measures the rate of any model"
        )
    if not input_rate >= 0:
        raise ArgumentError(f"input_rate must be a decay rate >= 0, got {input_rate!r}")
    # 0 where every state is forgotten in one step: the rate is then infinite
    radius = max(float(lam.abs().max()) for lam in spectra if lam is not None)
    return min(input_rate, 0.0 - math.log(radius) if radius > 0 else math.inf)
