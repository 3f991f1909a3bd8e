"""Constants of a parameterization chosen so that given eigenvalues lie inside its range, with room."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast._arguments import checked
from holdfast.parameterizations._base import AbstractParameterization
from holdfast.parameterizations._best import Best, DiscreteBest
from holdfast.parameterizations._clip import Clip, DiscreteClip

BOUNDARY_DISTANCE = 1e-3
RANGE_FACTOR = 2.0  # the range reaches at least this many times past the outermost eigenvalue


@checked
def fit_constants(f: AbstractParameterization, lam: Float[Tensor, "*any"]) -> AbstractParameterization:
    """`f` itself where its range holds `lam` with room, else the same form with other constants where some do.

    best: b shrinks until -1/b is at least twice the fastest rate (a Mamba's A reaches -16; b = 0.5 ends at -2). clip:
    the edge moves to half the slowest rate. Values that no constant can hold are left to `f.inverse`, which lists them.

    Args:
        f: the parameterization.
        lam: the eigenvalues that it is to hold.

    Returns:
        `f`, or a new parameterization of its kind; `f` is not changed.

    Raises:
        ArgumentError: f is not a parameterization, or lam not a real tensor.

    Example:
        >>> import torch
        >>> from holdfast import parameterizations
        >>> f = parameterizations.get("best", b=0.5)  # its eigenvalues end at -2
        >>> parameterizations.fit_constants(f, torch.tensor([-1.0, -16.0]))
        best(continuous, a=1, b=0.03125)
    """
    if lam.numel() == 0:
        return f
    low, high = float(lam.min()), float(lam.max())
    if math.isinf(low) or math.isinf(high):
        return f  # no constant holds it
    if isinstance(f, Best) and low < 0 and -low * RANGE_FACTOR > 1 / f.b:
        return Best(a=f.a, b=1 / (RANGE_FACTOR * -low))
    if isinstance(f, DiscreteBest) and -1 < low < 1 - 1 / f.b:
        return DiscreteBest(b=1 / (1 - (low - 1) / 2))  # reaches half-way from the lowest eigenvalue to -1
    if isinstance(f, Clip) and -f.edge < high < 0:
        return Clip(edge=-high / RANGE_FACTOR)
    if isinstance(f, DiscreteClip) and max(-low, high) > 1 - f.edge and max(-low, high) < 1:
        return DiscreteClip(edge=(1 - max(-low, high)) / RANGE_FACTOR)
    return f


def holding(f: AbstractParameterization, lam: Float[Tensor, "*any"]) -> AbstractParameterization:
    """`f` itself where its range holds `lam`, else `fit_constants` of both.

    Args:
        f: the parameterization.
        lam: the eigenvalues that it is to hold.
    """
    return f if bool(f.range.contains(lam).all()) else fit_constants(f, lam)


def nearest(f: AbstractParameterization, lam: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """The eigenvalues, with those that `f` cannot take moved into its range.

    They keep a distance of at least 1e-3 to the stability boundary, in continuous time times the largest eigenvalue.

    Args:
        f: the parameterization.
        lam: the eigenvalues; those inside the range stay as they are.

    Returns:
        the eigenvalues, shaped like lam.

    Example:
        >>> import torch
        >>> from holdfast import parameterizations
        >>> parameterizations.nearest(parameterizations.get("exp"), torch.tensor([-1.0, 0.5]))
        tensor([-1.0000, -0.0010])
    """
    scale = float(lam.abs().max()) if f.time == "continuous" else 1.0
    edge = 0.0 if f.time == "continuous" else 1.0
    high = min(f.range.high, edge - BOUNDARY_DISTANCE * scale)
    low = max(f.range.low, -edge if f.time == "discrete" else f.range.low) + BOUNDARY_DISTANCE * scale
    return torch.where(f.range.contains(lam), lam, lam.clamp(min(low, high), high))
