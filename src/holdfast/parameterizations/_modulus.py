"""The stability modulus g(beta) of StableSSM, Def. 3.2, for any f, by search."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError

MAX_WEIGHT = 300.0  # |w| searched
MIN_WEIGHT = 1e-6  # first grid point on each side of 0
OFFSET_POINTS = 65  # points v in [w - beta, w + beta]
ZOOM_STEPS = 12  # each narrows the grid around the best points tenfold

# a margin below the first number holds no digits (float64); a weight beside such a one whose margin is below the second
# shows that f fades into the boundary there instead of reaching it
_BLURRED_MARGINS = {"continuous": (1e-290, 1e-100), "discrete": (1e-9, 1e-7)}


def mode_distance(lam: Tensor, other: Tensor, time: Time) -> Tensor:
    """Relative L1 distance between two modes; inf where either is unstable.

    Continuous: |f| int_0^inf |e^{other t} - e^{lam t}| dt = |lam/other - 1|. Discrete: (1 - |lam|) times the sum over
    k >= 0 of |other^k - lam^k|; with opposite signs the odd terms add instead of subtracting.
    """
    if time == "continuous":
        distance = (lam / other - 1).abs()
        stable = (lam < 0) & (other < 0)
    else:
        p, q = lam.abs(), other.abs()
        same = (1 / (1 - q) - 1 / (1 - p)).abs()
        opposite = (1 / (1 - q**2) - 1 / (1 - p**2)).abs() + p / (1 - p**2) + q / (1 - q**2)
        distance = (1 - p) * torch.where(lam * other >= 0, same, opposite)
        stable = (p < 1) & (q < 1)
    return torch.where(stable, distance, torch.full_like(distance, math.inf))


@checked
def numerical_modulus(f: Callable[[Tensor], Tensor], time: Time, beta: float, *, span: float = MAX_WEIGHT) -> float:
    """The stability modulus g(beta) of StableSSM, Def. 3.2, of any f by search, in float64.

    The sup over |w| <= span of the worst relative distance within beta of w. inf where some perturbed mode is unstable,
    or where the sup still grows in proportion to the span searched. A grid with 400 points for each decade on each side
    of 0 is zoomed into around its best points. Ends of the line where f fades into the boundary by rounding are left
    out: exp(-e^w) is 1 in float64 for w < -37 but never reaches it.

    Args:
        f: the parameterization, a function of tensors.
        time: "continuous" or "discrete".
        beta: size of the perturbation of a weight.
        span: largest |w| that is searched.

    Returns:
        g(beta), a relative distance without a unit; inf as above.

    Raises:
        ArgumentError: a negative or infinite beta, or a span that is infinite or at most 1e-6.
        UnknownNameError: an unknown time.

    Example:
        >>> from holdfast import parameterizations
        >>> g = parameterizations.numerical_modulus(lambda w: -w.exp(), "continuous", 0.5)
        >>> round(g, 4)  # e^beta - 1
        0.6487
    """
    if not MIN_WEIGHT < span < math.inf or not 0 <= beta < math.inf:
        raise ArgumentError(f"expected a finite span above {MIN_WEIGHT:g} and a finite beta >= 0, got {span=}, {beta=}")
    count = int(400 * math.log10(span / MIN_WEIGHT))
    side = torch.logspace(math.log10(MIN_WEIGHT), math.log10(span), count, device="cpu")
    grid = torch.cat([-side.flip(0), side.new_zeros(1), side]).double()
    domain = _resolved(f, grid, time)
    if domain is None:
        return math.inf
    low, high = domain
    offsets = beta * torch.linspace(-1, 1, OFFSET_POINTS, dtype=torch.float64, device="cpu")

    def worst(w: Tensor) -> Tensor:
        v = w.unsqueeze(-1) + offsets
        value = mode_distance(f(w).unsqueeze(-1), f(v), time)
        return torch.where((v < low) | (v > high), torch.zeros_like(value), value).amax(-1)

    # the worst weights lie beta from where f turns or ends: these points are among the shifted ones
    w = torch.cat([grid, grid + beta, grid - beta]).unique()
    w = w[(w >= low) & (w <= high)]
    values = worst(w)
    best = float(values.max())
    # where the sup is at the end of the line and grows with it, no finite bound holds
    inner = float(values[w.abs() <= span / 4].max())
    if not math.isfinite(best) or best > 1.5 * inner:
        return math.inf
    return max(best, *(_zoom(worst, w, values, int(i)) for i in values.topk(min(5, len(values))).indices))


def _resolved(f: Callable[[Tensor], Tensor], grid: Tensor, time: Time) -> tuple[float, float] | None:
    """The interval of weights where f has digits; None where f really reaches the boundary at an end of it."""
    try:
        lam = f(grid)
    except Exception as error:  # the caller's own function
        raise ArgumentError(
            f"f must be a function of tensors, got one that failed on shape {tuple(grid.shape)}: {error}"
        ) from error
    if not isinstance(lam, Tensor) or lam.shape != grid.shape:
        raise ArgumentError(f"f must map a tensor to one of the same shape, got {type(lam).__name__} for {grid.shape}")
    margin = -lam if time == "continuous" else 1 - lam.abs()
    blurred, fading = _BLURRED_MARGINS[time]
    inside = torch.nonzero((margin < 0) | (margin >= blurred)).flatten()
    if len(inside) == 0:
        return None
    first, last = int(inside[0]), int(inside[-1])
    reached_low = first > 0 and float(margin[first]) > fading
    reached_high = last < len(grid) - 1 and float(margin[last]) > fading
    return None if reached_low or reached_high else (float(grid[first]), float(grid[last]))


def _zoom(worst: Callable[[Tensor], Tensor], w: Tensor, values: Tensor, index: int) -> float:
    low, high = float(w[max(index - 1, 0)]), float(w[min(index + 1, len(w) - 1)])
    best = float(values[index])
    for _ in range(ZOOM_STEPS):
        points = torch.linspace(low, high, 41, dtype=torch.float64, device="cpu")
        refined = worst(points)
        k = int(refined.argmax())
        best = max(best, float(refined[k]))
        low, high = float(points[max(k - 1, 0)]), float(points[min(k + 1, 40)])
    return best
