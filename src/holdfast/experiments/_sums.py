"""Families of exponential sums by width, their perturbation errors and verdicts, as several experiments need them.

Two measures of E_m(beta). "exact": the functional norm, the integral of |rho - s| over [0, inf), worst case over the
recurrent weights. "sampled": the papers' picture, the largest |rho - s| at t = 1, ..., horizon, random draws in
place of the worst case. A sampled error cannot tell rates below 1 / horizon from 0, so that the exact one decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import laws, parameterizations
from holdfast.approximate import ExponentialSum, fit_exponential_sum
from holdfast.experiments.base import Arrays, Config, Unit
from holdfast.figures import Axis, Cell, Line, Panel
from holdfast.stability import (
    PerturbationCurve,
    StabilityVerdict,
    assess_stability,
    kernel_perturbation_error,
    perturbation_error,
)

TARGETS: dict[str, laws.AbstractLaw] = {
    "0.9^t": laws.Exponential(-math.log(0.9)),
    "(t+1)^-1.1": laws.PowerLaw(1.1),
    "(t+1)^-1.5": laws.PowerLaw(1.5),
}
POWERS = ("(t+1)^-1.1", "(t+1)^-1.5")
Key = tuple[Any, ...]  # values of the settings that a family shares
Families = Mapping[Key, Mapping[int, PerturbationCurve]]
Verdicts = Mapping[Key, StabilityVerdict]
SCOPES = {"recurrent weights": ["w"], "all weights": ["w", "c"]}
FASTEST = 4.0  # of the geometric rates, which begin at 1/m^2


def bounded_sum(rho: laws.AbstractLaw, m: int) -> ExponentialSum:
    """Non-negative weights with the smallest L1 error on m rates, geometric on [1/m^2, 4]: what the theorems are about."""
    return fit_exponential_sum(rho, m, "nonnegative", rates=np.geomspace(1 / m**2, FASTEST, m))


def least_squares_sum(rho: laws.AbstractLaw, m: int, spacing: float, horizon: int) -> ExponentialSum:
    """The papers' fit: any weights on m equally spaced rates, least squares at t = 1, ..., horizon (iat, App. D)."""
    t = np.arange(1.0, horizon + 1)
    rates = spacing * np.arange(1, m + 1)
    return fit_exponential_sum(np.asarray(rho(t)), method="least_squares", rates=rates, time=t)


class SampledKernel(nn.Module):
    """s(t) = sum_i c_i exp(f(w_i) t) at given times, as a module whose weights can be perturbed.

    Rates of the grid that the fit gave no weight are left out: a perturbation of c would bring them in.
    """

    def __init__(self, found: ExponentialSum, parameterization: str) -> None:
        super().__init__()
        used = found.coefficients != 0
        lam = -torch.from_numpy(found.rates[used])
        self.f = parameterizations.get(parameterization, time="continuous")
        self.w = nn.Parameter(self.f.inverse(lam))
        self.c = nn.Parameter(torch.from_numpy(found.coefficients[used]))

    def forward(self, t: Tensor) -> Tensor:
        """(batch, time, 1) to (batch, time, 1)."""
        return (torch.exp(t * self.f(self.w)) * self.c).sum(-1, keepdim=True)


def radii(config: Config) -> np.ndarray:
    """smallest 2^(k/per) for k = 0, ..., per doublings."""
    per = config.get("per_doubling", 1)
    return config["smallest"] * 2.0 ** (np.arange(per * config["doublings"] + 1) / per)


def exact_settings(config: Config) -> dict[str, Any]:
    """What the units of the exact norm depend on: the paper's radii, as far as a few, with more between them."""
    return {
        "part": "exact",
        "smallest": config["smallest"],
        "doublings": config["exact_doublings"],
        "per_doubling": config["exact_per_doubling"],
        "draws": config["draws"],
    }


def exact_error(config: Config) -> Arrays:
    """E_m(beta) in the functional norm for the unit's target, m and parameterization; recurrent weights, worst case."""
    rho = TARGETS[config["target"]]
    found = bounded_sum(rho, config["m"])
    f = config["parameterization"]
    curve = kernel_perturbation_error(found, rho, radii(config), parameterization=f, draws=config["draws"])
    return as_arrays(curve, found)


def sampled_error(config: Config) -> Arrays:
    """E_m(beta) at t = 1, ..., horizon for the unit's target, m, fit, parameterization and scope; random draws.

    Every number in scope moves by at most beta, drawn uniformly.
    """
    rho, m, horizon = TARGETS[config["target"]], config["m"], config["horizon"]
    bounded = config["fit"] == "bounded"
    found = bounded_sum(rho, m) if bounded else least_squares_sum(rho, m, config["spacing"], horizon)
    t = torch.arange(1.0, horizon + 1, dtype=torch.float64).reshape(1, -1, 1)
    model = SampledKernel(found, config["parameterization"])
    scope = SCOPES[config["scope"]]
    curve = perturbation_error(
        model, t, rho(t), radii(config), norm="max-abs", scope=scope, draws=config["draws"], seed=m
    )
    return as_arrays(curve, found)


def as_arrays(curve: PerturbationCurve, found: ExponentialSum) -> Arrays:
    """What a unit keeps of a curve and of the sum that was perturbed."""
    return {
        "radii": curve.radii,
        "errors": curve.errors,
        "centre": np.array(curve.at_zero),
        "rates": found.rates,
        "coefficients": found.coefficients,
    }


def families(units: Iterable[Unit], *names: str) -> dict[Key, dict[int, PerturbationCurve]]:
    """The curves by width, for each combination of the settings `names`."""
    found: dict[Key, dict[int, PerturbationCurve]] = {}
    for unit in units:
        a = unit.arrays
        curve = PerturbationCurve(a["radii"], a["errors"], centre=float(a["centre"]))
        found.setdefault(tuple(unit.config[n] for n in names), {})[unit.config["m"]] = curve
    return found


def verdicts(found: Families) -> dict[Key, StabilityVerdict]:
    """assess_stability of each family, at its own default level."""
    return {key: assess_stability(curves) for key, curves in found.items()}


def numbers(verdict: StabilityVerdict, prefix: str = "") -> dict[str, float]:
    """The numbers that decide a verdict."""
    first, last = verdict.widths[[0, -1]]
    return {
        f"{prefix}slope of log radius": verdict.slope,
        f"{prefix}slope, lower end": verdict.interval[0],
        f"{prefix}slope, upper end": verdict.interval[1],
        f"{prefix}radius at m = {first:g}": float(verdict.radii[0]),
        f"{prefix}radius at m = {last:g}": float(verdict.radii[-1]),
    }


def rows(found: Verdicts) -> list[Sequence[Cell]]:
    """A row for each verdict, under HEADS after the settings' names."""
    return [
        (
            *key,
            v.verdict,
            float(v.slope),
            f"[{v.interval[0]:.2f}, {v.interval[1]:.2f}]",
            ", ".join(f"{m:g}: {sign(kind)}{r:.2g}" for m, r, kind in zip(v.widths, v.radii, v.censored, strict=True)),
        )
        for key, v in found.items()
    ]


HEADS = ("verdict", "slope of log radius in log m", "interval", "radius by m")


def sign(censored: str) -> str:
    """How a radius beyond the tested ones is written."""
    return {"at least": ">= ", "at most": "<= "}.get(censored, "")


def panel(
    title: str, curves: Mapping[int, PerturbationCurve], limits: tuple[float, float], legend: bool = True
) -> Panel:
    """E_m(beta) against beta, a line a width."""
    lines = [
        # what is above the panel is drawn as infinite: a triangle at its upper edge
        Line(
            f"m = {m}", c.radii, np.where(c.errors > limits[1], np.inf, c.errors), colour=k, legend=legend, markers=True
        )
        for k, (m, c) in enumerate(sorted(curves.items()))
    ]
    return Panel(title, Axis("perturbation beta", log=True), Axis("error E_m(beta)", log=True, limits=limits), lines)


def rises(curves: Mapping[int, PerturbationCurve], largest: float) -> float:
    """How far a wider model's error exceeds a narrower one's, as a ratio: the largest over beta <= `largest`."""
    ordered = [curves[m] for m in sorted(curves)]
    keep = ordered[0].radii <= largest
    ratios = [wide.errors[keep] / narrow.errors[keep] for narrow, wide in itertools.pairwise(ordered)]
    return float(np.max(ratios))
