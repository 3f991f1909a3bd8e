"""Which of the activations of "Inverse Approximation Theory", Def. 3.8, a function is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, ShapeError

ActivationKind = Literal["A0", "A1", "neither"]
MAX_ARGUMENT = 20.0  # |z| that is looked at
GRID_POINTS = 4001
RELATIVE_TOLERANCE = 1e-6  # relative misfit of a law that counts as none: derivatives by autograd in float64


@dataclass(frozen=True)
class ActivationClass:
    """What Def. 3.8 asks of an activation, and what it is.

    Args:
        kind: "A0" (linear around 0), "A1" (sigma' = a - b sigma^2 around 0) or "neither". A linear piece is of both; it
            counts as "A0".
        slope: c_sigma of A0, sigma'(0) otherwise.
        a: of A1; NaN for the others.
        b: of A1; NaN for the others.
        reach: Z0, the |z| up to which the law holds, inf where it holds as far as was looked; 0 for "neither".
        bounded: whether |sigma| stops growing.
        monotone: whether sigma never falls.
        lipschitz: the largest slope seen.
    """

    kind: ActivationKind
    slope: float
    a: float
    b: float
    reach: float
    bounded: bool
    monotone: bool
    lipschitz: float

    @property
    def admitted(self) -> bool:
        """Whether Theorem 3.9 is about it: bounded, monotone, Lipschitz, and of one of the two classes."""
        return self.kind != "neither" and self.bounded and self.monotone and math.isfinite(self.lipschitz)


@checked
def classify_activation(sigma: Callable[[Tensor], Tensor]) -> ActivationClass:
    """The class of an activation in "Inverse Approximation Theory", Def. 3.8, which its Theorem 3.9 is about.

    A0: sigma(z) = c z around 0. A1: sigma(0) = 0 and sigma' = a - b sigma^2 around 0, as tanh has with a = b = 1. All
    are bounded, monotone and Lipschitz. Looked at on 4001 points of [-20, 20] in float64, derivatives by autograd.

    Args:
        sigma: an elementwise function of tensors that autograd can differentiate.

    Returns:
        an ActivationClass: `kind`, "A0", "A1" or "neither", with its constants and the |z| up to which the law holds;
        `admitted` says whether the theorem is about it.

    Raises:
        ArgumentError: a function that fails on float64 tensors, has no gradient, or is not finite on [-20, 20].
        ShapeError: a function that is not elementwise.

    Example:
        >>> import torch
        >>> from holdfast.stability import classify_activation
        >>> [classify_activation(f).kind for f in (torch.tanh, torch.nn.functional.hardtanh, torch.relu)]
        ['A1', 'A0', 'neither']
    """
    z = torch.linspace(-MAX_ARGUMENT, MAX_ARGUMENT, GRID_POINTS, dtype=torch.float64)
    y, slope = _evaluated(sigma, z)
    centre, size = GRID_POINTS // 2, float(y.abs().max())
    c = float(slope[centre])
    # relative to |z|: near 0 every smooth function is linear to an absolute tolerance
    linear = _reach(z, (y - c * z).abs() <= RELATIVE_TOLERANCE * max(abs(c), 1e-300) * z.abs().clamp(min=1e-3))
    a, b, misfit = _riccati(y, slope, centre)
    curved = _reach(z, misfit) if abs(float(y[centre])) <= RELATIVE_TOLERANCE * size and a >= 0 and b >= 0 else 0.0
    kind: ActivationKind = "A0" if linear > 0 and c > 0 else "A1" if curved > 0 and a > 0 else "neither"
    quarter = GRID_POINTS // 8
    ends = torch.cat([y[:quarter], y[-quarter:]]).abs()
    return ActivationClass(
        kind=kind,
        slope=c,
        a=a if kind == "A1" else math.nan,
        b=b if kind == "A1" else math.nan,
        reach={"A0": linear, "A1": curved, "neither": 0.0}[kind],
        # over the outer quarters of the points, from |z| = 15 to 20, nothing that is bounded grows by a tenth
        bounded=float(ends.max()) <= 1.1 * max(float(y[quarter].abs()), float(y[-quarter - 1].abs()), 1e-300),
        monotone=bool((y.diff() >= -1e-12 * size).all()),
        lipschitz=float(slope.abs().max()),
    )


def _evaluated(sigma: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    free = z.clone().requires_grad_()
    try:
        y = sigma(free)
    except Exception as error:
        raise ArgumentError(f"sigma must be an elementwise function of float64 tensors; it failed: {error}") from error
    if not isinstance(y, Tensor) or y.shape != z.shape:
        got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise ShapeError(f"sigma must map a tensor of shape {tuple(z.shape)} to one of that shape, got {got}")
    if not y.requires_grad:
        raise ArgumentError(
            "sigma must be differentiable by autograd, got a result without a gradient; use torch functions"
        )
    (slope,) = torch.autograd.grad(y.sum(), free)
    if not bool(torch.isfinite(y).all() and torch.isfinite(slope).all()):
        raise ArgumentError("sigma must have finite values and slopes on [-20, 20], got NaN or infinity")
    return y.detach(), slope


def _riccati(
    y: Float64[Tensor, " points"], slope: Float64[Tensor, " points"], centre: int
) -> tuple[float, float, Float64[Tensor, " points"] | Tensor]:
    """a and b of sigma' = a - b sigma^2 from the points within |z| < 0.5, and where the law holds."""
    near = slice(centre - 50, centre + 51)
    # sigma' = a - b sigma^2 is linear in a and b
    columns = torch.stack([torch.ones(101, dtype=torch.float64), -(y[near] ** 2)], 1)
    a, b = (float(v) for v in torch.linalg.lstsq(columns, slope[near, None]).solution.flatten())
    return a, b, (slope - (a - b * y**2)).abs() <= RELATIVE_TOLERANCE * max(abs(a), 1e-300)


def _reach(z: Tensor, holds: Tensor) -> float:
    """The |z| up to which a law holds on both sides of 0, at least 0.05; inf if it holds everywhere."""
    broken = z[~holds].abs()
    if len(broken) == 0:
        return math.inf
    reach = float(broken.min())
    return reach if reach > 0.05 else 0.0
