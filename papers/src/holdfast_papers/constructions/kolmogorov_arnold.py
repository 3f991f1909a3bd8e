"""Any continuous function of a short sequence by five state-space layers (ssm, Prop. 3.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from holdfast._arguments import checked
from holdfast.errors import ArgumentError
from holdfast_papers.constructions.network import Chain, Construction, parameters_of, width_of
from holdfast_papers.constructions.staircase import Points, Staircase

_WIDEST = 4_000_000  # units of the outer functions: 130 MB of weights
_WORK = 1e8  # sigmoids evaluated for measuring, about a second
_CANDIDATES = 4096  # points on steps among which the worst are looked for


@checked
def kolmogorov_arnold(
    f: Callable[[Any], Any],
    length: int,
    *,
    digits: int = 2,
    base: int = 4,
    terms: int | None = None,
    tolerance: float = 1e-1,
    seed: int = 0,
) -> Construction:
    """Any continuous function of T inputs in [0, 1] at the last step, by five state-space layers (ssm, Prop. 3.6).

    f(x_1, ..., x_T) = sum_q Phi_q(sum_p lambda_p phi(x_p + q a)). Layers 1-2 compute phi of shifted copies of each
    input, layer 3 the temporal convolution with lambda, layers 4-5 the outer functions and their sum (ssm, Fig. 3). phi
    and lambda are those of Braun and Griebel (see inner_function), cut to k digits; lambda_p = sum_r
    (base^-beta(r))^(p-1) is itself a kernel of decaying modes, so that layer 3 is exact. x_p is the input p - 1 steps
    before the last, so that lambda decays.

    With k digits phi is a staircase of sigmoids with base^k steps, xi one of about base^(T k) plateaus, and Phi_q takes
    f / terms at the cell's centre there. A continuous phi must cross other plateaus at each step; the copies are
    shifted by a = base^-k / terms so that at any x at most one copy for each coordinate is at a step. Hence error <=
    modulus of f over half a cell + T (max f - min f) / terms: both `digits` and `terms` must grow. `bound` of the
    result has this with modulus and range found by sampling; its `error` is measured on the network, at random points
    and on the steps, where it is largest.

    Cost: width about terms base^(T k), exponential in T. float64 holds 3 digits at T = 2, 2 at T = 3, 1 at T = 4, 5.

    Args:
        f: takes (points, T), oldest input first, and gives (points,).
        length: T, the number of inputs.
        digits: k, the digits to which an input is resolved.
        base: of these digits.
        terms: number of shifted copies; None is T base^k.
        tolerance: measured error that is accepted.
        seed: of the random points at which the error, modulus and range are measured.
    """
    evaluate = _checked(f, length)
    count = _count_terms(length, digits, base, terms)
    stairs = Staircase.build(evaluate, length, digits, base, count)
    network = stairs.network()
    width = width_of(network)
    error, probes = _measure(network, stairs, evaluate, width, seed)
    modulus, spread = _modulus(evaluate, length, base**-digits, seed)
    ok = error <= tolerance
    return Construction.judged(
        network,
        error,
        tolerance,
        ok=ok,
        advice="raise digits, and terms with them",
        width=width,
        probes=probes,
        bound=modulus + length * spread / count,
        details={
            "digits": digits,
            "base": base,
            "terms": count,
            "modulus": modulus,
            "range": spread,
            "multiplications": parameters_of(network) * length,
        },
    )


def _checked(f: Callable[[Any], Any], length: int) -> Callable[[Points], np.ndarray]:
    def evaluate(x: Points) -> np.ndarray:
        try:
            values = np.asarray(f(x), dtype=np.float64)
        except TypeError as error:
            raise ArgumentError(
                f"f must map a numpy array (points, {length}) to one number per point: {error}"
            ) from error
        if values.shape != (len(x),) or not np.isfinite(values).all():
            raise ArgumentError(
                f"f must map (points, {length}) to one finite number per point, got shape {values.shape} for "
                f"{x.shape}, or numbers that are not finite"
            )
        return values

    return evaluate


def _count_terms(length: int, digits: int, base: int, terms: int | None) -> int:
    if length < 2 or digits < 1 or base < 2:
        raise ArgumentError(
            f"expected length >= 2, digits >= 1 and base >= 2, got {length=}, {digits=}, {base=}; for a single input use "
            "`elementwise`"
        )
    count = length * base**digits if terms is None else terms
    if count < 2 * length + 1:
        raise ArgumentError(f"the theorem needs at least 2 T + 1 = {2 * length + 1} terms, got {count}")
    units = count * (base**digits + 1) ** length
    if units > _WIDEST:
        raise ArgumentError(
            f"expected at most {_WIDEST:,} units, got {units:,} for {count} terms with {digits} digits in base {base} for "
            f"{length} inputs; the width grows like terms base^(length digits): lower digits, base or terms"
        )
    return count


def _measure(
    network: Chain, stairs: Staircase, f: Callable[[Points], np.ndarray], width: int, seed: int
) -> tuple[float, int]:
    """Largest error of the network at random points and at the worst of many points on steps; and their number.

    Which points are worst is found with the staircase as a table, a thousand times cheaper than the network.
    """
    probes = int(min(2048, max(128, _WORK / (width * stairs.length))))
    generator = np.random.default_rng(seed % 2**64)
    on_steps = stairs.points_on_steps(_CANDIDATES, generator)
    worst = np.argsort(np.abs(stairs(on_steps) - f(on_steps)))[-(probes - probes // 2) :]
    x = np.concatenate([generator.random((probes // 2, stairs.length)), on_steps[worst]])
    error = 0.0
    with torch.no_grad():
        for part in np.array_split(x, max(1, probes * len(stairs.xi) * stairs.length // 2**22)):
            y, _ = network(torch.from_numpy(part)[..., None])
            error = max(error, float(np.abs(y[:, -1, 0].numpy() - f(part)).max()))
    return error, probes


def _modulus(f: Callable[[Points], np.ndarray], length: int, cell: float, seed: int) -> tuple[float, float]:
    """By sampling: the largest |f(x) - f(c)| with c at most half a cell away in each coordinate, and max f - min f."""
    generator = np.random.default_rng(seed % 2**64)
    x = generator.random((20_000, length))
    corners = cell / 2 * np.sign(generator.random(x.shape) - 0.5)
    values = f(x)
    moved = f(np.clip(x + corners, 0, 1))
    ends = f(np.array(np.meshgrid(*[[0.0, 1.0]] * length)).reshape(length, -1).T.copy())
    spread = max(values.max(), ends.max()) - min(values.min(), ends.min())
    return float(np.abs(moved - values).max()), float(spread)
