"""kernel_perturbation_error: the exact L1 form of the perturbation error for a linear functional.

The integral of |rho - sum_i c_i e^{lam_i t}| over [0, inf) comes from exact antiderivatives: between two zeros of the
difference it is the difference of signed tails, c e^{lam t} / lam of a mode and the law's own tail of rho. A zero is
placed by linear interpolation on a geometric grid; the error is quadratic in its place, about 1e-8 of the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from holdfast._arguments import as_generator, checked
from holdfast.errors import ArgumentError, unknown_name
from holdfast.laws import AbstractLaw
from holdfast.parameterizations import AbstractParameterization, fit_constants, get
from holdfast.stability.perturbation.balls import BALLS, NORMS, Ball, Norm, PerturbedWeight, ball_of
from holdfast.stability.perturbation.curve import PerturbationCurve, as_radii
from holdfast.stability.perturbation.evaluate import LIMIT, AbstractEvaluator, Stacked
from holdfast.stability.perturbation.search import SEARCHES, Progress, Search, SearchProblem, centre_error, run_search

KernelScope = Literal["recurrent", "all", "coefficients"]
SCOPES: dict[str, tuple[str, ...]] = {"recurrent": ("w",), "all": ("w", "c"), "coefficients": ("c",)}
PER_DECADE = 60  # grid points: neighbours differ by 4%
NODES = 8  # of the Gauss-Legendre rule on a panel


@runtime_checkable
class Sum(Protocol):
    """Anything with rates and coefficients: holdfast.ExponentialSum, laws.ExponentialMixture."""

    @property
    def rates(self) -> Sequence[float] | np.ndarray: ...

    @property
    def coefficients(self) -> Sequence[float] | np.ndarray: ...


class KernelDistance(AbstractEvaluator):
    """L1 distance between rho and sum_i c_i e^{f(w_i) t}, for perturbed w and c."""

    how = "closed form"

    def __init__(self, f: AbstractParameterization, w: Tensor, c: Tensor, target: Target, limit: float) -> None:
        super().__init__(limit)
        self.f, self.w, self.c, self.target = f, w, c, target

    @property
    def bytes_each(self) -> float:
        return 8.0 * 2 * len(self.w) * len(self.target.grid)

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        draws = len(next(iter(stacked.values())))
        w = stacked.get("w", self.w.expand(draws, -1))
        c = stacked.get("c", self.c.expand(draws, -1))
        return l1_distance(self.target, self.f(w), c)


@checked
def kernel_perturbation_error(
    sum: Sum,
    rho: AbstractLaw | Callable[[Tensor], Tensor],
    radii: Sequence[float] | np.ndarray | Tensor,
    *,
    parameterization: str | AbstractParameterization = "direct",
    scope: KernelScope = "recurrent",
    norm: Norm = "spectral",
    ball: Ball = "ball",
    search: Search = "exact",
    draws: int = 30,
    restarts: int = 3,
    steps: int = 20,
    horizon: float | None = None,
    seed: int | torch.Generator = 0,
    memory_limit: float = LIMIT,
    progress: Progress | None = None,
) -> PerturbationCurve:
    """E(beta) of a sum of exponentials, exactly, in the L1 norm of its kernel.

    E(beta) = sup of int_0^inf |rho(t) - sum_i c~_i e^{f(w~_i) t}| dt over |w~ - w| <= beta. For a linear functional
    with kernel rho this integral is the functional sup norm of the error (iat, Sec. 2; StableSSM, eq. 58). It is inf
    where a mode that has a weight stops decaying. Accurate to about 1e-8 of the norm of rho.

    Args:
        sum: anything with `rates` and `coefficients`, such as ExponentialSum; w starts at f^-1(-rates).
        rho: the target kernel: a law, with its exact tail, or a function of tensors together with `horizon`.
        radii: the beta, increasing and not negative.
        parameterization: f, by name or as an object; its constants are fitted so that it holds the rates.
        scope: "recurrent" moves w alone, the setting of StableSSM, Thm 3.3; "coefficients" c alone; "all" both. Moving
            c makes every family unstable whose slowest rate goes to 0, whatever f is: a slow mode's coefficient counts
            beta / rate.
        norm: of a perturbation, as in `perturbation_error`. With "spectral" w counts as diag(w), so that every mode
            moves by up to beta, and c as a vector.
        ball: where random perturbations lie: in the "ball" or on the "sphere".
        search: as in `perturbation_error`; "exact" takes the ends of every mode's interval.
        draws: number of random perturbations.
        restarts: random starting points of the gradient ascent.
        steps: steps of the gradient ascent.
        horizon: time up to which a rho given as a function is integrated; it is taken as 0 after.
        seed: number or torch.Generator for the random perturbations.
        memory_limit: bytes held at a time, about.
        progress: called as `progress(done, total)` along the way.
    """
    betas = as_radii(radii)
    known = {"scope": (scope, SCOPES), "search": (search, SEARCHES), "ball": (ball, BALLS), "norm": (norm, NORMS)}
    for kind, (value, names) in known.items():
        if value not in names:
            raise unknown_name(kind, value, names)
    if search == "exact" and scope == "coefficients":
        search = "adversarial"  # the error is convex in c: ascent along the steepest direction cannot get stuck low
    rates, coefficients = read_sum(sum)
    lam = torch.from_numpy(-rates)
    f = fit_constants(get(parameterization, time="continuous"), lam)
    values = {"w": f.inverse(lam), "c": torch.from_numpy(coefficients)}
    target = target_of(rho, rates, horizon)
    evaluator = KernelDistance(f, values["w"], values["c"], target, memory_limit)
    weights = [
        PerturbedWeight(
            name,
            values[name],
            ball_of(norm, values[name].shape, diagonal=name == "w"),
            f if name == "w" else None,
        )
        for name in SCOPES[scope]
    ]
    generator = as_generator(seed)
    centre = centre_error(evaluator, weights)
    problem = SearchProblem(weights, betas, evaluator, progress)
    found = run_search(problem, search, centre, draws, ball, restarts, steps, generator)
    return PerturbationCurve(
        radii=betas,
        errors=found.errors,
        centre=centre,
        draws=found.draws,
        metric="L1 of the kernel",
        norm=norm,
        ball=ball,
        search=search,
        scope=SCOPES[scope],
        method=evaluator.how,
        reason=f"a sum of {len(rates)} exponentials through {f!r}",
        target_norm=rho.norm
        if isinstance(rho, AbstractLaw)
        else float(l1_distance(target, lam[None], 0 * values["c"][None])),
        held_by_horizon=getattr(sum, "held_by_horizon", None),
    )


def read_sum(sum: Sum) -> tuple[np.ndarray, np.ndarray]:
    """Real rates above 0 and their coefficients, as float64."""
    try:
        rates, coefficients = np.asarray(sum.rates), np.asarray(sum.coefficients)
    except AttributeError:
        raise ArgumentError(
            f"expected a sum with rates and coefficients, such as ExponentialSum; came {type(sum).__name__}"
        ) from None
    if np.iscomplexobj(rates) or np.iscomplexobj(coefficients):
        if np.abs(np.imag(rates)).max() > 0 or np.abs(np.imag(coefficients)).max() > 0:
            raise ArgumentError("the exact L1 form takes real rates and coefficients; use method='nonnegative' to fit")
        rates, coefficients = rates.real, coefficients.real
    rates, coefficients = rates.astype(np.float64), coefficients.astype(np.float64)
    if rates.ndim != 1 or rates.shape != coefficients.shape or len(rates) == 0:
        raise ArgumentError(f"expected one coefficient a rate, at least one; {rates.shape=}, {coefficients.shape=}")
    if not (np.isfinite(rates).all() and (rates > 0).all() and np.isfinite(coefficients).all()):
        raise ArgumentError(f"expected finite rates above 0 and finite coefficients; came {rates}, {coefficients}")
    return rates, coefficients


@dataclass(frozen=True, eq=False)
class Target:
    """rho on the grid with its signed tail anywhere."""

    grid: Float64[Tensor, " times"]
    values: Float64[Tensor, " times"]
    tail: Callable[[Tensor], Tensor]


def target_of(
    rho: AbstractLaw | Callable[[Tensor], Tensor], rates: Float64[np.ndarray, " modes"], horizon: float | None
) -> Target:
    """A law with its exact tail, or a function of tensors of times, integrated up to `horizon` and taken as 0 after."""
    if isinstance(rho, AbstractLaw):
        if horizon is not None:
            raise ArgumentError("a law is integrated to infinity by its exact tail; leave horizon out")
        if not rho.integrable:
            raise ArgumentError(
                f"{rho.name} has no finite L1 norm, so that every error is infinite; choose another rho"
            )
        grid = _grid(rates, rho)
        return Target(grid, rho(grid), rho.tail)
    if horizon is None or not horizon > 0:
        raise ArgumentError("a rho given as a function needs horizon=: up to which time it is to be integrated")
    grid = _grid(rates, rho)
    values = torch.where(grid <= horizon, rho(grid), grid.new_zeros(()))
    return Target(grid, values, _numeric_tail(rho, horizon))


def _grid(rates: np.ndarray, rho: object) -> Float64[Tensor, " times"]:
    """0, then geometric from a thousandth of the fastest time constant to 1e6 times the slowest."""
    low, high = 1e-3 / max(float(rates.max()), 1.0), 1e6 / min(float(rates.min()), 1.0)
    points: list[np.ndarray] = [np.zeros(1), np.geomspace(low, high, int(PER_DECADE * math.log10(high / low)))]
    frequency = getattr(rho, "frequency", None)
    if frequency is not None:
        # 16 points in half a period until the oscillation is below rounding
        points.append(np.arange(0.0, 40 / rho.rate, math.pi / (16 * frequency)))  # type: ignore[attr-defined]
    support = getattr(rho, "support", None)
    if support is not None:
        points.append(np.array([support * (1 - 1e-12), support]))
    return torch.from_numpy(np.unique(np.concatenate(points)))


def _numeric_tail(rho: Callable[[Tensor], Tensor], horizon: float) -> Callable[[Tensor], Tensor]:
    """The integral of rho over [t, horizon] by Gauss-Legendre on geometric panels."""
    edges = torch.from_numpy(np.concatenate([[0.0], np.geomspace(1e-6 * min(1.0, horizon), horizon, 1500)]))
    x, weight = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(NODES))

    def integral(start: Tensor, stop: Tensor) -> Tensor:
        half = (stop - start) / 2
        nodes = start.unsqueeze(-1) + half.unsqueeze(-1) * (x + 1)
        return half * (rho(nodes) * weight).sum(-1)

    panels = integral(edges[:-1], edges[1:])
    after = torch.cat([panels.flip(0).cumsum(0).flip(0), panels.new_zeros(1)])

    def tail(t: Tensor) -> Tensor:
        inside = t.clamp(max=horizon)
        right = torch.searchsorted(edges, inside).clamp(max=len(edges) - 1)
        return integral(inside, edges[right]) + after[right]

    return tail


def l1_distance(
    target: Target, lam: Float64[Tensor, "draws modes"], c: Float64[Tensor, "draws modes"]
) -> Float64[Tensor, " draws"]:
    """The distance of each sum; inf where a mode with a weight does not decay. Differentiable in lam and c."""
    stable = ((lam < 0) | (c == 0)).all(-1)
    safe = torch.where(lam < 0, lam, torch.full_like(lam, -1.0))
    total = _stable_distance(target, safe, c)
    return torch.where(stable, total, torch.full_like(total, math.inf))


def _stable_distance(target: Target, lam: Tensor, c: Tensor) -> Tensor:
    with torch.no_grad():
        difference = target.values - torch.einsum("pm,pmt->pt", c, torch.exp(lam.unsqueeze(-1) * target.grid))
        positive = difference >= 0
        draw, panel = torch.nonzero(positive[:, 1:] != positive[:, :-1], as_tuple=True)
        a, b = difference[draw, panel], difference[draw, panel + 1]
        start, stop = target.grid[panel], target.grid[panel + 1]
        zero = start + (stop - start) * a / (a - b)
        after = torch.where(positive[draw, panel + 1], 2.0, -2.0).double()
        first = torch.where(positive[:, 0], 1.0, -1.0).double()
    origin = target.tail(target.grid[:1]) + (c / lam).sum(-1)
    at_zeros = target.tail(zero) + (c[draw] / lam[draw] * torch.exp(lam[draw] * zero.unsqueeze(-1))).sum(-1)
    # int |d| = s_0 D(0) + sum over zeros of 2 s D(zero), D the signed tail and s the sign after the zero
    return (first * origin).index_add(0, draw, after * at_zeros)
