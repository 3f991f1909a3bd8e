"""open-volterra: a nonlinear target, an order-2 Volterra series, under stable and direct recurrent weights.

y(t) = (int rho(s) x(t - s) ds)^2, approximated by the square of a sum of exponentials with non-negative coefficients. The norm
of an error is the sup over all inputs up to 1: of (rho * x)^2 - (s * x)^2 = (a * x)(b * x) with a = rho - s and b = rho + s.
|A B| = min over c of (c |A| + |B| / c)^2 / 4, so that min over c of max(|c a + b / c|_1, |c a - b / c|_1)^2 / 4 bounds it from
above, and the signs of that kernel are an input that bounds it from below, improved by a few steps of x = sign(B a + A b).
Errors are the lower bound; how far the upper one lies above E(0) is among the numbers.

The criterion: recurrent weights perturbed, radii by bisection, verdicts by the rule of `assess_stability`: with
rho = (1+t)^-1.5 direct is unstable, exp and softplus are stable; with 0.9^t all are stable. Each on its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from holdfast import parameterizations
from holdfast.figures import Figure
from holdfast.stability import assess_stability
from holdfast.stability._verdict import HARMLESS_SHARE
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.iat import _sup
from holdfast_papers.pages import Table

TARGETS = {"(t+1)^-1.5": "unstable", "0.9^t": "stable"}  # the verdict that is expected with direct weights
NAMES = ("direct", "exp", "softplus")
ADVERBS = {"stable": "stably", "unstable": "unstably"}
PER_DECADE = 60
LONGEST = 1e9  # time that integrals go to; 6e-5 of the norm of (1+t)^-1.5 lies behind it
SCALES = np.geomspace(1e-2, 1e2, 49)  # of c: the upper bound is within 1% of its least
POLISH = 4  # steps that improve an input


def grid(fastest: float) -> tuple[np.ndarray, np.ndarray]:
    """Times, 0 and then geometric, and the weights of the trapezoidal rule on them."""
    first = 1e-3 / fastest
    t = np.concatenate([[0.0], np.geomspace(first, LONGEST, int(PER_DECADE * math.log10(LONGEST / first)))])
    gaps = np.diff(t)
    return t, np.concatenate([[gaps[0] / 2], (gaps[1:] + gaps[:-1]) / 2, [gaps[-1] / 2]])


def product_norm(a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Lower and upper bound of sup |A(x) B(x)| over |x| <= 1, A and B the functionals of kernels a and b.

    Args:
        a: kernel at the times of a grid.
        b: the other kernel.
        weights: of the quadrature.
    """
    kernels = np.concatenate([np.outer(SCALES, a) + sign * np.outer(1 / SCALES, b) for sign in (1, -1)])
    sizes = (np.abs(kernels) @ weights).reshape(2, -1)
    upper = float(sizes.max(0).min()) ** 2 / 4
    x = np.sign(kernels) * weights
    lower = 0.0
    for _ in range(POLISH):
        A, B = x @ a, x @ b
        lower = max(lower, float(np.abs(A * B).max()))
        x = np.sign(np.outer(B, a) + np.outer(A, b)) * weights  # the gradient of A B
    return lower, upper


def units(config: Config) -> list[Config]:
    """One curve a target, parameterization and width."""
    shared = {name: config[name] for name in ("draws", "least", "most")}
    return split(shared, target=TARGETS, parameterization=NAMES, m=config["widths"])


def run(config: Config, work: Work) -> Arrays:
    """E_m(beta) at the points of a bisection: every mode to either end, each alone, and random draws."""
    rho, m = _sums.TARGETS[config["target"]], config["m"]
    fitted = _sums.bounded_sum(rho, m)
    f = parameterizations.get(config["parameterization"], time="continuous")
    w = f.inverse(-torch.from_numpy(fitted.rates))
    t, weights = grid(float(fitted.rates.max()))
    values = np.asarray(rho(t))

    def errors(moves: np.ndarray) -> np.ndarray:
        """Lower and upper bounds of the largest error over perturbations (perturbations, modes)."""
        lam = f(w + torch.from_numpy(moves)).numpy()
        if (lam >= 0).any():
            return np.array([math.inf, math.inf])
        found = [values - np.exp(np.outer(t, one)) @ fitted.coefficients for one in lam]
        return np.max([product_norm(a, 2 * values - a, weights) for a in found], 0)

    unit = _directions(len(w), config["draws"], seed=m)
    centre = errors(np.zeros((1, len(w))))
    norm = float(weights @ np.abs(values)) ** 2
    found = _sup.bisected(
        lambda beta: float(errors(beta * unit)[0]), HARMLESS_SHARE * norm, config["least"], config["most"]
    )
    return {**_sup._arrays("sup", found, float(centre[0]), norm), "gap": np.array(centre[1] / centre[0] - 1)}


def _directions(modes: int, draws: int, seed: int) -> np.ndarray:
    """All modes up and down, each mode alone up and down, and random points of the box."""
    eye = np.eye(modes)
    random = np.random.default_rng(seed).uniform(-1, 1, (draws, modes))
    return np.concatenate([np.ones((1, modes)), -np.ones((1, modes)), eye, -eye, random])


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Direct loses its radius on the power law, the others do not."""
    groups = {
        (t, f): [u for u in units if (u.config["target"], u.config["parameterization"]) == (t, f)]
        for t in TARGETS
        for f in NAMES
    }
    curves = {key: _sup.family(found) for key, found in groups.items()}
    verdicts = {key: assess_stability(found) for key, found in curves.items()}
    gap = max(float(u.arrays["gap"]) for u in units)
    claims = [
        _sums.claim(
            f"{t}, {f}",
            f"The square of the functional of {t} is approximated {ADVERBS[wanted]} with {f} weights",
            {f: verdicts[t, f]},
            wanted,
            more={"upper / lower bound of E(0), less 1": gap},
            essential=True,
        )
        for t, expected in TARGETS.items()
        for f in NAMES
        for wanted in [expected if f == "direct" else "stable"]
    ]
    tables = [Table("verdicts", "Radii by width.", ("target", "parameterization", *_sums.HEADS), _sums.rows(verdicts))]
    notes = [
        "Recurrent weights alone move, as in StableSSM, Thm 3.3. The worst perturbation is searched over all modes at either "
        f"end, each mode alone, and {config['draws']} random points; the sup over inputs is bounded from both sides.",
        "An order-2 series of rank 1 with equal factors; a sum of such terms has the sum of their errors as a bound.",
    ]
    figure = Figure(
        "perturbation",
        "One line for each width: the error of the squared functional when the recurrent weights move by up to beta.",
        _sums.panels(curves, (1e-3, 1e2)),
        columns=3,
    )
    return Conclusion(claims, [figure], tables, notes)


EXPERIMENT = Experiment(
    id="open-volterra",
    where="Open question (StableSSM, Sec. 5)",
    title="An order-2 Volterra series under stable parameterizations",
    summary="The square of a linear functional with polynomial or exponential memory is approximated by squares of sums of "
    "exponentials, whose recurrent weights, direct or through exp and softplus, are perturbed.",
    presets=presets(
        {"widths": [12, 16, 20, 24, 32, 40], "draws": 30, "least": 1e-6, "most": 3.0},
        quick={"widths": [12, 16, 20, 24], "draws": 1},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1 * (2 * config["m"] + config["draws"]),
)
