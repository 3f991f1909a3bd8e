"""Element-wise functions by two state-space layers without recurrence (ssm, Prop. 3.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, unknown_name
from holdfast.nn._from_weights import diagonal_layer
from holdfast.parameterizations import AbstractParameterization
from holdfast_papers.constructions.network import Chain, Construction
from holdfast_papers.constructions.sigmoids import (
    WIDEST,
    Function,
    Sigmoid,
    Sigmoids,
    fit_crowded,
    fit_sigmoids,
    widths,
)

CROWDED = (64, 1024)  # sizes that are tried with sigmoids crowded at bends as well: least squares ends there


@checked
def elementwise(
    f: Callable[[Any], Any],
    low: float = -1.0,
    high: float = 1.0,
    *,
    tolerance: float = 1e-2,
    width: int | None = None,
    activation: Sigmoid = "tanh",
    parameterization: str | AbstractParameterization = "direct",
) -> Construction:
    """x_t -> f(x_t) on [low, high] by h1 = U1 x + b1, y = U2 sigma(h1): both recurrent weights are 0 (ssm, eq. 12).

    The sigmoids stand at equal distances, or crowded where f bends, and U2 is found by least squares; their number grows
    until the measured sup error is within the tolerance. Any continuous f is reached (Thm B.1); the paper gives no rate: for
    smooth f the error falls very fast down to about 1e-8, at a kink like 1 / width at equal distances and much faster with
    crowded ones. U2 is
    held by the first layer as its readout and the second layer adds the constant, which saves a width x width
    identity.

    Args:
        f: takes and gives an array.
        low: left end of the interval of inputs.
        high: right end of it.
        tolerance: largest |f - output| that is accepted.
        width: number of sigmoids, where it is not to be searched.
        activation: which sigmoid, "tanh" or "sigmoid".
        parameterization: of the recurrent weights, which are 0.
    """
    _check(low, high, tolerance, width, activation)
    evaluate = _checked(f)
    sizes = [width] if width is not None else widths()
    best: tuple[float, Chain, Sigmoids] | None = None
    for fit in _fits(evaluate, low, high, sizes, activation):
        network = _network(fit, parameterization)
        error = _measure(network, evaluate, low, high, len(fit.positions))
        if best is None or error < best[0]:
            best = (error, network, fit)
        if best[0] <= tolerance:
            break
    assert best is not None
    error, network, fit = best
    return Construction.judged(
        network,
        error,
        tolerance,
        ok=error <= tolerance,
        advice=f"{sizes[-1]} sigmoids leave an error of {error:.3g}; is f continuous?",
        probes=len(_probes(low, high, len(fit.positions))),
        details={"interval": (low, high), "largest_weight": float(np.abs(fit.weights).max())},
    )


def _fits(f: Function, low: float, high: float, sizes: list[int], activation: Sigmoid) -> Iterator[Sigmoids]:
    """At equal distances, and of some sizes crowded where f bends: whichever is enough first."""
    for size in sizes:
        yield fit_sigmoids(f, low, high, size, activation)
        if CROWDED[0] <= size <= CROWDED[1]:
            yield fit_crowded(f, low, high, size, activation)


def _check(low: float, high: float, tolerance: float, width: int | None, activation: str) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ArgumentError(f"the interval must have finite ends with low < high, got [{low!r}, {high!r}]")
    if not tolerance > 0:
        raise ArgumentError(f"tolerance must be above 0, got {tolerance!r}")
    if activation not in ("tanh", "sigmoid"):
        raise unknown_name("sigmoidal activation", activation, ("tanh", "sigmoid"))
    if width is not None and not 4 <= width <= WIDEST:
        raise ArgumentError(f"width must be between 4 and {WIDEST}, got {width}")


def _checked(f: Callable[[Any], Any]) -> Function:
    def evaluate(x: np.ndarray) -> np.ndarray:
        try:
            values = np.asarray(f(x), dtype=np.float64)
        except TypeError as error:
            raise ArgumentError(f"f must map a numpy array to as many values: {error}") from error
        if values.shape != x.shape or not np.isfinite(values).all():
            raise ArgumentError(
                f"f must map an array to as many finite numbers, got shape {values.shape} for {x.shape}, with "
                f"{int((~np.isfinite(values)).sum())} numbers that are not finite"
            )
        return values

    return evaluate


def _probes(low: float, high: float, width: int) -> np.ndarray:
    """Equal distances that share no point with the fit's but the ends, and points that crowd towards both ends.

    A root at an end is worst within the first distance: there equal distances alone saw 40% of the error.
    """
    evenly = np.linspace(low, high, 4 * width + 2001)
    inward = (high - low) * np.geomspace(1e-9, 1 / len(evenly), 100)
    return np.concatenate([evenly, low + inward, high - inward])


def _network(fit: Sigmoids, parameterization: str | AbstractParameterization) -> Chain:
    width = len(fit.positions)
    first = diagonal_layer(
        np.zeros(width),
        np.broadcast_to(fit.steepness, width)[:, None].copy(),
        fit.weights[None, :],
        b=-fit.steepness * fit.positions,
        activation=fit.activation,
        parameterization=parameterization,
    )
    second = diagonal_layer([0.0], [[1.0]], [[1.0]], b=[fit.constant], parameterization=parameterization)
    return Chain(first, second)


@torch.no_grad()
def _measure(network: Chain, f: Function, low: float, high: float, width: int) -> float:
    x = _probes(low, high, width)
    worst = 0.0
    for part in np.array_split(x, max(1, len(x) * width // 2**22)):
        y, _ = network(torch.from_numpy(part.copy())[:, None, None])
        worst = max(worst, float(np.abs(y[:, 0, 0].numpy() - f(part)).max()))
    return worst
