"""kernel_perturbation_error: the L1 form of the perturbation error for a linear functional.

The integral of |rho - sum_i c_i e^{lam_i t}| over [0, inf) comes from exact antiderivatives: between two zeros of the
difference it is the difference of signed tails, c e^{lam t} / lam of a mode and the law's own tail of rho. A zero is
placed by linear interpolation on a geometric grid; the error is quadratic in its place, about 1e-8 of the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from holdfast._arguments import as_generator, checked
from holdfast.errors import ArgumentError
from holdfast.laws import AbstractLaw
from holdfast.nn._initial_weights import ReadOut
from holdfast.parameterizations import AbstractParameterization, fit_constants, get
from holdfast.stability.perturbation._balls import BallNorm, PerturbedWeight, ball_of
from holdfast.stability.perturbation._curve import PerturbationCurve, as_radii
from holdfast.stability.perturbation._evaluate import AbstractEvaluator, Stacked
from holdfast.stability.perturbation._options import Search, SearchName, SearchProblem, as_search
from holdfast.stability.perturbation._search import centre_error, run_search

KernelScope = Literal["recurrent", "all", "coefficients"]
SCOPES: dict[str, tuple[str, ...]] = {"recurrent": ("w",), "all": ("w", "c"), "coefficients": ("c",)}
POINTS_PER_DECADE = 60  # grid points: neighbours differ by 4%
PANEL_NODES = 8  # of the Gauss-Legendre rule on a panel


@runtime_checkable
class Sum(Protocol):
    """Anything with rates and coefficients: holdfast.ExponentialSum, laws.ExponentialMixture."""

    @property
    def rates(self) -> Sequence[float] | np.ndarray: ...

    @property
    def coefficients(self) -> Sequence[float] | np.ndarray: ...


class KernelDistance(AbstractEvaluator):
    """L1 distance between rho and sum_i c_i e^{f(w_i) t}, for perturbed w and c.

    With `scaled`, c holds gamma of c_i = gamma_i |f(w_i)| / sqrt(m).
    """

    how = "closed form"

    def __init__(
        self, f: AbstractParameterization, w: Tensor, c: Tensor, target: KernelTarget, limit: float, *, scaled: bool
    ) -> None:
        super().__init__(limit)
        self.f, self.w, self.c, self.target, self.scaled = f, w, c, target, scaled

    @property
    def bytes_each(self) -> float:
        return 8.0 * 2 * len(self.w) * len(self.target.grid)

    def _errors(self, stacked: Stacked) -> Float[Tensor, " draws"]:
        draws = len(next(iter(stacked.values())))
        w = stacked.get("w", self.w.expand(draws, -1))
        c = stacked.get("c", self.c.expand(draws, -1))
        lam = self.f(w)
        return l1_distance(self.target, lam, c * lam.abs() / math.sqrt(lam.shape[-1]) if self.scaled else c)


@checked
def kernel_perturbation_error(
    sum: Sum,
    rho: AbstractLaw | Callable[[Tensor], Tensor],
    radii: Sequence[float] | np.ndarray | Tensor,
    *,
    parameterization: str | AbstractParameterization = "direct",
    scope: KernelScope = "recurrent",
    norm: BallNorm = "spectral",
    search: SearchName | Search = "modes",
    horizon: float | None = None,
    readout: ReadOut = "plain",
) -> PerturbationCurve:
    """E(beta) of a sum of exponentials in the L1 norm of its kernel, from below and from above.

    E(beta) = sup of int_0^inf |rho(t) - sum_i c~_i e^{f(w~_i) t}| dt over |w~ - w| <= beta. For a linear functional
    with kernel rho this integral is the functional sup norm of the error (iat, Sec. 2; StableSSM, eq. 58). It is inf
    where a mode that has a weight stops decaying. Each integral is exact to about 1e-8 of the norm of rho. The sup is
    searched, so that `errors` are lower bounds; `upper` holds E(0) + sum_i |c_i| |1/f(w~_i) - 1/f(w_i)| at the worse end
    of each mode, and no perturbation exceeds it: two exponentials lie that far apart, and the triangle inequality adds
    them up. Where both agree, as for one mode or errors of one sign, the error is known.

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
        search: "random", "adversarial" or "modes", or a `Search`, as in `perturbation_error`.
        horizon: time up to which a rho given as a function is integrated; it is taken as 0 after.
        readout: "scaled" moves gamma of c_i = gamma_i |f(w_i)| / sqrt(m) instead of c, as layers with that readout do.

    Returns:
        a PerturbationCurve: `errors` from below, `upper` from above, one per radius.

    Raises:
        ArgumentError: radii that do not increase, or a function `rho` without `horizon`.

    Example:
        >>> import holdfast
        >>> rho = holdfast.laws.Exponential(0.5)
        >>> found = holdfast.fit_exponential_sum(rho, order=4)
        >>> curve = holdfast.kernel_perturbation_error(found, rho, [0.01, 0.1], parameterization="exp")
        >>> bool((curve.errors <= curve.upper).all())
        True
    """
    betas = as_radii(radii)
    search = _kernel_search(as_search(search), scope)
    rates, coefficients = read_sum(sum)
    lam = torch.from_numpy(-rates)
    # a rate outside the range of f has no w: the constants move, as `stabilize` does
    f = fit_constants(get(parameterization, time="continuous"), lam)
    scaled = readout == "scaled"
    c = torch.from_numpy(coefficients)
    values = {"w": f.inverse(lam), "c": c * math.sqrt(len(c)) / lam.abs() if scaled else c}
    target = target_of(rho, rates, horizon)
    evaluator = KernelDistance(f, values["w"], values["c"], target, search.memory_limit, scaled=scaled)
    balls = {name: ball_of(norm, values[name].shape, diagonal=name == "w") for name in SCOPES[scope]}
    weights = [PerturbedWeight(name, values[name], ball, f if name == "w" else None) for name, ball in balls.items()]
    centre = centre_error(evaluator, weights)
    problem = SearchProblem(weights, betas, evaluator, search.progress)
    worst = run_search(problem, search, centre, as_generator(search.seed))
    zero = lam[None], 0 * values["c"][None]
    upper = np.array([centre + _largest_move(evaluator, weights, float(beta)) for beta in betas])
    return PerturbationCurve(
        radii=betas,
        errors=worst.errors,
        centre=centre,
        draws=worst.draws,
        metric="L1 of the kernel",
        norm=norm,
        ball=search.where,
        search=search.method,
        scope=SCOPES[scope],
        method=evaluator.how,
        reason=f"a sum of {len(rates)} exponentials through {f!r}",
        running_maximum=search.running_maximum,
        target_norm=rho.norm if isinstance(rho, AbstractLaw) else float(l1_distance(target, *zero)),
        held_by_horizon=getattr(sum, "held_by_horizon", None),
        upper=np.maximum(upper, worst.errors),
    )


def _kernel_search(search: Search, scope: KernelScope) -> Search:
    """The search as it runs on a kernel, where coefficients have no modes to go to the ends of."""
    if search.evaluation != "auto":
        raise ArgumentError(f"evaluation is for models, got {search.evaluation!r} for a kernel; leave it out")
    if search.method == "modes" and scope == "coefficients":
        # the error is convex in c: ascent along the steepest direction cannot get stuck low
        return replace(search, method="adversarial")
    return search


def _largest_move(distance: KernelDistance, weights: Sequence[PerturbedWeight], beta: float) -> float:
    """How far the sum can move in L1: sum_i |c_i| |1/lam~_i - 1/lam_i|, and what the coefficients add."""
    balls = {w.name: w.ball for w in weights}
    w, c = distance.w, distance.c
    constant = -1 / distance.f(w)
    slow, fast = constant, constant
    if "w" in balls:
        # a ball of any norm lies in that of max-abs; f may turn at w = 0, as best does
        tries = torch.stack([w - beta, w + beta, w + (-w).clamp(-beta, beta)])
        lam = distance.f(tries)
        ends = torch.where(lam < 0, -1 / lam, torch.full_like(lam, math.inf))
        slow, fast = ends.amax(0), ends.amin(0)
    if distance.scaled:
        apart = torch.maximum(_normal_distance(slow / constant), _normal_distance(constant / fast))
        added = beta * (math.sqrt(len(c)) if "c" in balls and balls["c"].name == "max-abs" else 1.0)
        return float((c.abs() * apart).sum() / math.sqrt(len(c))) + (added if "c" in balls else 0.0)
    apart = torch.maximum(slow - constant, constant - fast)
    moved = torch.where(c == 0, torch.zeros_like(c), c.abs() * apart).sum()
    if "c" in balls:
        # sup of sum_i |d_i| T_i over the ball of d: the dual norm of the slow time constants T
        moved = moved + beta * torch.linalg.vector_norm(slow, 1 if balls["c"].name == "max-abs" else 2)
    return float(moved)


def _normal_distance(ratio: Tensor) -> Tensor:
    """int |r e^{-rt} - r' e^{-r't}| dt of rates whose ratio is `ratio` >= 1: 0.74 (ratio - 1) for small moves, at most 2."""
    gap = (ratio - 1).clamp(min=1e-12)
    log = torch.log1p(gap)
    exact = 2 * (torch.exp(-log / gap) - torch.exp(-log * ratio / gap))
    return torch.where(torch.isfinite(ratio), exact, torch.full_like(ratio, 2.0))


def read_sum(sum: Sum) -> tuple[np.ndarray, np.ndarray]:
    """Real rates above 0 and their coefficients, as float64."""
    try:
        rates, coefficients = np.asarray(sum.rates), np.asarray(sum.coefficients)
    except AttributeError:
        raise ArgumentError(
            f"expected a sum with rates and coefficients, such as ExponentialSum; got {type(sum).__name__}"
        ) from None
    if np.iscomplexobj(rates) or np.iscomplexobj(coefficients):
        if np.abs(np.imag(rates)).max() > 0 or np.abs(np.imag(coefficients)).max() > 0:
            raise ArgumentError(
                "the L1 error needs real rates and coefficients, got complex ones; fit the sum with method='nonnegative'"
            )
        rates, coefficients = rates.real, coefficients.real
    rates, coefficients = rates.astype(np.float64), coefficients.astype(np.float64)
    if rates.ndim != 1 or rates.shape != coefficients.shape or len(rates) == 0:
        raise ArgumentError(
            f"expected as many coefficients as rates and at least one, got rates of shape {rates.shape} and coefficients of "
            f"shape {coefficients.shape}"
        )
    if not (np.isfinite(rates).all() and (rates > 0).all() and np.isfinite(coefficients).all()):
        raise ArgumentError(f"expected finite rates above 0 and finite coefficients; got {rates}, {coefficients}")
    return rates, coefficients


@dataclass(frozen=True, eq=False)
class KernelTarget:
    """rho on the grid with its signed tail anywhere."""

    grid: Float64[Tensor, " times"]
    values: Float64[Tensor, " times"]
    tail: Callable[[Tensor], Tensor]


def target_of(
    rho: AbstractLaw | Callable[[Tensor], Tensor], rates: Float64[np.ndarray, " modes"], horizon: float | None
) -> KernelTarget:
    """A law with its exact tail, or a function of tensors of times, integrated up to `horizon` and taken as 0 after."""
    if isinstance(rho, AbstractLaw):
        if horizon is not None:
            raise ArgumentError(
                "horizon is for rho given as a function, got a law, which is integrated exactly; leave it out"
            )
        if not rho.integrable:
            raise ArgumentError(
                f"rho must have a finite L1 norm, got {rho.name}, for which every error is infinite; choose another rho"
            )
        grid = _grid(rates, rho)
        return KernelTarget(grid, rho(grid), rho.tail)
    if horizon is None or not horizon > 0:
        raise ArgumentError(
            f"rho given as a function needs horizon=, the time up to which it is integrated, above 0; got {horizon}"
        )
    grid = _grid(rates, rho)
    # past its horizon a function says nothing, and counts as 0 there
    values = torch.where(grid <= horizon, rho(grid), grid.new_zeros(()))
    return KernelTarget(grid, values, _numeric_tail(rho, horizon))


def _grid(rates: np.ndarray, rho: object) -> Float64[Tensor, " times"]:
    """0, then geometric from a thousandth of the fastest time constant to 1e6 times the slowest."""
    # a law changes over times of order 1: the grid covers these and the modes
    low, high = 1e-3 / max(float(rates.max()), 1.0), 1e6 / min(float(rates.min()), 1.0)
    points: list[np.ndarray] = [np.zeros(1), np.geomspace(low, high, int(POINTS_PER_DECADE * math.log10(high / low)))]
    frequency = getattr(rho, "frequency", None)
    if frequency is not None:
        # 16 points in half a period until the oscillation is below rounding
        points.append(np.arange(0.0, 40 / rho.rate, math.pi / (16 * frequency)))  # type: ignore[attr-defined]
    support = getattr(rho, "support", None)
    if support is not None:
        # both sides of the jump, or it would be spread over a panel
        points.append(np.array([support * (1 - 1e-12), support]))
    return torch.from_numpy(np.unique(np.concatenate(points)))


def _numeric_tail(rho: Callable[[Tensor], Tensor], horizon: float) -> Callable[[Tensor], Tensor]:
    """The integral of rho over [t, horizon] by Gauss-Legendre on geometric panels."""
    edges = torch.from_numpy(np.concatenate([[0.0], np.geomspace(1e-6 * min(1.0, horizon), horizon, 1500)]))
    x, weight = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(PANEL_NODES))

    def integral(start: Tensor, stop: Tensor) -> Tensor:
        half = (stop - start) / 2
        nodes = start.unsqueeze(-1) + half.unsqueeze(-1) * (x + 1)
        return half * (rho(nodes) * weight).sum(-1)

    # from the end: the tail at each edge is the sum of all panels after it
    panels = integral(edges[:-1], edges[1:])
    after = torch.cat([panels.flip(0).cumsum(0).flip(0), panels.new_zeros(1)])

    def tail(t: Tensor) -> Tensor:
        inside = t.clamp(max=horizon)
        right = torch.searchsorted(edges, inside).clamp(max=len(edges) - 1)
        return integral(inside, edges[right]) + after[right]

    return tail


def l1_distance(
    target: KernelTarget, lam: Float64[Tensor, "draws modes"], c: Float64[Tensor, "draws modes"]
) -> Float64[Tensor, " draws"]:
    """The distance of each sum; inf where a mode with a weight does not decay. Differentiable in lam and c."""
    # a mode without a weight adds nothing, growing or not
    stable = ((lam < 0) | (c == 0)).all(-1)
    # a place to compute at: the value is dropped, and no NaN gets into the gradient
    safe = torch.where(lam < 0, lam, torch.full_like(lam, -1.0))
    total = _stable_distance(target, safe, c)
    return torch.where(stable, total, torch.full_like(total, math.inf))


def _stable_distance(target: KernelTarget, lam: Tensor, c: Tensor) -> Tensor:
    # the zeros need no gradient: the integrand is 0 there, so that moving them changes nothing to first order
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
