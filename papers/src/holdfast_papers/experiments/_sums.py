"""Families of exponential sums by width, their perturbation errors and verdicts, as several experiments need them.

Two measures of E_m(beta). "exact": the functional norm, the integral of |rho - s| over [0, inf), worst case over the
perturbed weights. "sampled": the papers' picture, the largest |rho - s| at t = 1, ..., horizon, random draws in
place of the worst case. A sampled error cannot tell rates below 1 / horizon from 0: the exact one has no such end.

Two sets of weights that move. "recurrent weights": the setting in which StableSSM, Sec. 3.2, proves stability
("solely perturbing the recurrent weights"). "all weights": that of the definitions (iat, Def. 3.4; StableSSM, Def. 2.4),
in which W, U, b and c move, each within beta of its value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import laws, parameterizations
from holdfast.approximate import ExponentialSum, fit_exponential_sum
from holdfast.figures import Axis, Line, Panel
from holdfast.stability import (
    Ball,
    PerturbationCurve,
    Search,
    StabilityVerdict,
    assess_stability,
    kernel_perturbation_error,
    perturbation_error,
)
from holdfast.stability.perturbation._kernel_error import KernelScope
from holdfast_papers.experiments.base import Arrays, Config, Unit, Work, split
from holdfast_papers.pages import Cell
from holdfast_papers.results import Claim

TARGETS: dict[str, laws.AbstractLaw] = {
    "0.9^t": laws.Exponential(-math.log(0.9)),
    "(t+1)^-1.1": laws.PowerLaw(1.1),
    "(t+1)^-1.5": laws.PowerLaw(1.5),
}
POWERS = ("(t+1)^-1.1", "(t+1)^-1.5")
Key = tuple[Any, ...]  # values of the settings that a family shares
Family = Mapping[int, PerturbationCurve]
Families = Mapping[Key, Family]
Verdicts = Mapping[Key, StabilityVerdict]
Scope = Literal["recurrent weights", "all weights", "readout", "all weights, scaled readout"]
SCALED: Scope = "all weights, scaled readout"  # gamma of c_i = gamma_i |f(w_i)| / sqrt(m) moves instead of c
MAX_GROWTH = 2.0  # of |gamma|_2 from the narrowest to the widest model, for coefficients that stay bounded
SCOPES: dict[str, list[str]] = {"recurrent weights": ["w"], "all weights": ["w", "c"], "readout": ["c"]}
KERNEL_SCOPES: dict[str, KernelScope] = {"recurrent weights": "recurrent", "all weights": "all", SCALED: "all"}
FASTEST = 4.0  # of the geometric rates
SLOWEST = {
    "(t+1)^-1.1": 6.4e-9
}  # times 1/m^2, the slowest rate; 1 elsewhere. An eighth of this law's norm is after 1e9


def bounded_sum(rho: laws.AbstractLaw, m: int, slowest: float = 1.0) -> ExponentialSum:
    """Non-negative weights with the smallest L1 error on m rates, geometric on [slowest/m^2, 4]: what theorems assume.

    Rates that the fit gave no weight are left out: a perturbation of the weights would bring them in.
    """
    fitted = fit_exponential_sum(rho, rates=np.geomspace(slowest / m**2, FASTEST, m))
    mass = fitted.coefficients / fitted.rates
    used = mass > 1e-9 * mass.sum()
    return replace(fitted, rates=fitted.rates[used], coefficients=fitted.coefficients[used])


def least_squares_sum(rho: laws.AbstractLaw, m: int, spacing: float, horizon: int) -> ExponentialSum:
    """The papers' fit: any weights on m equally spaced rates, least squares at t = 1, ..., horizon (iat, App. D)."""
    t = np.arange(1.0, horizon + 1)
    rates = spacing * np.arange(1, m + 1)
    return fit_exponential_sum(np.asarray(rho(t)), method="least_squares", rates=rates, time=t)


class SampledKernel(nn.Module):
    """s(t) = sum_i c_i exp(f(w_i) t) at given times, as a module whose weights can be perturbed."""

    def __init__(self, fitted: ExponentialSum, parameterization: str) -> None:
        super().__init__()
        self.f = parameterizations.get(parameterization, time="continuous")
        self.w = nn.Parameter(self.f.inverse(-torch.from_numpy(fitted.rates)))
        self.c = nn.Parameter(torch.from_numpy(fitted.coefficients))

    def forward(self, t: Tensor) -> Tensor:
        """(batch, time, 1) to (batch, time, 1)."""
        return (torch.exp(t * self.f(self.w)) * self.c).sum(-1, keepdim=True)


def radii(config: Config) -> np.ndarray:
    """smallest 2^(k/per) for k = 0, ..., per doublings."""
    per = config.get("per_doubling", 1)
    return config["smallest"] * 2.0 ** (np.arange(per * config["doublings"] + 1) / per)


def exact_units(
    config: Config, targets: Sequence[str], parameterizations: Sequence[str], scopes: Sequence[Scope]
) -> list[Config]:
    """A unit of the exact norm for each target, parameterization, scope and width.

    (t+1)^-1.1 is approximated in this norm from m = 16 on, by rates over ten decades, and has widths of its own. Direct
    weights, and a readout, break near the slowest rate, so that their radii are in units of it.
    """
    units = []
    for target, f, scope in itertools.product(targets, parameterizations, scopes):
        unit = SLOWEST.get(target, 1.0) if f == "direct" or scope == "all weights" else 1.0
        shared = {
            "part": "exact", "target": target, "parameterization": f, "scope": scope, "draws": config["draws"],
            "smallest": config["exact_smallest"] * unit, "doublings": config["exact_doublings"],
            "per_doubling": config["exact_per_doubling"],
        }  # fmt: skip
        units += split(shared, m=config["slow_widths" if target in SLOWEST else "widths"])
    return units


def exact_cost(config: Config) -> float:
    """Seconds of a unit of the exact norm, roughly: a readout that moves too is searched by ascent."""
    return (0.3 if config["scope"] == "recurrent weights" else 1.0) * float(config["m"])


def run(config: Config, work: Work) -> Arrays:
    """One curve E_m(beta), exact or sampled as the unit's `part` says."""
    return exact_error(config) if config["part"] == "exact" else sampled_error(config)


def cost(config: Config) -> float:
    """Seconds of a unit of `run`, roughly."""
    return exact_cost(config) if config["part"] == "exact" else 0.5


def parts(units: Iterable[Unit], part: str, *names: str) -> dict[Key, dict[int, PerturbationCurve]]:
    """As `families`, of the units of one `part`."""
    return families((u for u in units if u.config["part"] == part), *names)


def exact_error(config: Config) -> Arrays:
    """E_m(beta) in the functional norm for the unit's target, m, parameterization and scope; worst case."""
    rho = TARGETS[config["target"]]
    fitted = bounded_sum(rho, config["m"], SLOWEST.get(config["target"], 1.0))
    curve = kernel_perturbation_error(
        fitted, rho, radii(config), parameterization=config["parameterization"], scope=KERNEL_SCOPES[config["scope"]],
        search=Search("modes", draws=config["draws"], restarts=1, steps=5),
        readout="scaled" if config["scope"] == SCALED else "plain",
    )  # fmt: skip
    return as_arrays(curve, fitted)


def sampled_error(config: Config) -> Arrays:
    """E_m(beta) at t = 1, ..., horizon for the unit's target, m, fit, parameterization and scope; random draws.

    Every number in scope moves by at most beta, drawn uniformly.
    """
    rho, m, horizon = TARGETS[config["target"]], config["m"], config["horizon"]
    bounded = config["fit"] == "bounded"
    fitted = bounded_sum(rho, m) if bounded else least_squares_sum(rho, m, config["spacing"], horizon)
    t = torch.arange(1.0, horizon + 1, dtype=torch.float64).reshape(1, -1, 1)
    model = SampledKernel(fitted, config["parameterization"])
    scope = SCOPES[config["scope"]]
    curve = perturbation_error(
        model, t, rho(t), radii(config), norm=Ball("max-abs", scope), search=Search(draws=config["draws"], seed=m)
    )
    return as_arrays(curve, fitted)


def as_arrays(curve: PerturbationCurve, fitted: ExponentialSum) -> Arrays:
    """What a unit keeps of a curve and of the sum that was perturbed."""
    return {**curve_arrays(curve), "rates": fitted.rates, "coefficients": fitted.coefficients}


def curve_arrays(curve: PerturbationCurve) -> Arrays:
    """What a unit keeps of a curve."""
    assert curve.target_norm is not None
    return {
        "radii": curve.radii,
        "errors": curve.errors,
        "centre": np.array(curve.at_zero),
        "target_norm": np.array(curve.target_norm),
    }


def families(units: Iterable[Unit], *names: str) -> dict[Key, dict[int, PerturbationCurve]]:
    """The curves by width, for each combination of the settings `names`."""
    curves: dict[Key, dict[int, PerturbationCurve]] = {}
    for unit in units:
        a = unit.arrays
        curve = PerturbationCurve(
            a["radii"], a["errors"], centre=float(a["centre"]), target_norm=float(a["target_norm"])
        )
        curves.setdefault(tuple(unit.config[n] for n in names), {})[unit.config["m"]] = curve
    return curves


def verdicts(found: Families) -> dict[Key, StabilityVerdict]:
    """assess_stability of each family: the level is a quarter of the target's norm."""
    return {key: assess_stability(curves) for key, curves in found.items()}


def bounded_claim(name: str, units: Iterable[Unit]) -> Claim:
    """The claim that scaled readouts need no growing weights; plain ones amplify a change by |1/r|_2 beside it.

    Args:
        name: of the claim.
        units: those of the exact norm with scaled readouts.
    """
    norms, plain = {}, {}
    for unit in units:
        rates, c = unit.arrays["rates"], unit.arrays["coefficients"]
        key = f"{unit.config['target']}, m = {unit.config['m']}"
        norms[key] = float(np.sqrt(len(c)) * np.linalg.norm(c / rates))
        plain[key] = float(np.linalg.norm(1 / rates))
    targets = sorted({key.split(",")[0] for key in norms})
    growth = {t: _growth(norms, t) for t in targets}
    measured = {f"growth of |gamma|_2, {t}": g for t, g in growth.items()}
    measured |= {f"|gamma|_2, {key}": value for key, value in norms.items()}
    measured |= {f"|1/r|_2, {key}": value for key, value in plain.items()}
    return Claim.decide(
        name,
        f"The weights gamma of scaled readouts stay bounded: |gamma|_2 grows at most {MAX_GROWTH:g} times from the narrowest "
        "to the widest model",
        max(growth.values()) <= MAX_GROWTH if growth else None,
        measured,
        otherwise="The masses c / r of few modes hold most of the kernel, so that sqrt(m) |c / r|_2 grows.",
    )


def _growth(norms: Mapping[str, float], target: str) -> float:
    """The norm of the widest model over that of the narrowest."""
    by_width = {int(key.rpartition(" ")[2]): v for key, v in norms.items() if key.split(",")[0] == target}
    return by_width[max(by_width)] / by_width[min(by_width)]


def decided(*expected: tuple[StabilityVerdict, str]) -> bool | None:
    """Whether every verdict is the expected one; None where one is open and none is the opposite."""
    pairs = [(verdict.verdict, wanted) for verdict, wanted in expected]
    if any(found != wanted and found in ("stable", "unstable") for found, wanted in pairs):
        return False
    return True if all(found == wanted for found, wanted in pairs) else None


def claim(
    name: str, statement: str, verdicts: Mapping[str, StabilityVerdict], expected: str, *, named: bool = False,
    more: Mapping[str, float] | None = None, paper: Mapping[str, float] | None = None, reason: str = "",
    essential: bool = False,
) -> Claim:  # fmt: skip
    """The claim that every verdict is the expected one.

    Args:
        name: of the claim.
        statement: of the claim.
        verdicts: by what they are of.
        expected: "stable" or "unstable".
        named: name the numbers by what their verdict is of.
        more: numbers beside those of the verdicts.
        paper: the paper's numbers.
        reason: behind the verdicts' own reasons, where it is not met.
        essential: as in `Claim`.
    """
    measured = {k: x for of, v in verdicts.items() for k, x in numbers(v, f"{of}: " if named else "").items()}
    return Claim.decide(
        name,
        statement,
        decided(*((v, expected) for v in verdicts.values())),
        measured | dict(more or {}),
        paper=paper,
        otherwise=why(verdicts) + reason,
        essential=essential,
    )


def why(verdicts: Mapping[str, StabilityVerdict]) -> str:
    """The verdicts and their reasons, in words."""
    return "; ".join(f"{name}: {v.verdict}, {v.explanation}" for name, v in verdicts.items()) + "."


def numbers(verdict: StabilityVerdict, prefix: str = "") -> dict[str, float]:
    """The numbers that decide a verdict."""
    close = np.flatnonzero(verdict.approximates)
    found = {f"{prefix}widths that approximate": float(len(close))}
    if verdict.verdict == "no approximation":
        return found | {
            f"{prefix}smallest error at beta = 0 / norm": float(
                (verdict.centres / verdict.levels).min() * verdict.level
            )
        }
    ends = {f"{prefix}radius at m = {verdict.widths[i]:g}": float(verdict.radii[i]) for i in close[[0, -1]]}
    low, high = verdict.interval
    return {
        f"{prefix}slope of log radius": verdict.slope,
        f"{prefix}slope, lower end": low,
        f"{prefix}slope, upper end": high,
        **ends,
        **found,
    }


def rows(verdicts: Verdicts) -> list[Sequence[Cell]]:
    """A row for each verdict, under HEADS after the settings' names."""
    return [
        (
            *key,
            v.verdict,
            *(("", "") if math.isnan(v.slope) else (float(v.slope), f"[{v.interval[0]:.2f}, {v.interval[1]:.2f}]")),
            ", ".join(
                f"{m:g}: {sign(kind)}{r:.2g}" if close else f"{m:g}: no approximation"
                for m, r, kind, close in zip(v.widths, v.radii, v.censored, v.approximates, strict=True)
            ),
        )
        for key, v in verdicts.items()
    ]


# paper and quick presets of experiments on linear RNNs
LINEAR: Config = {
    "widths": [4, 6, 8, 12, 16, 24, 32], "slow_widths": [12, 16, 20, 24, 32, 40],
    "sampled_widths": [2, 3, 4, 5, 6, 8, 10, 12, 14], "smallest": 5e-4, "doublings": 20,
    "exact_smallest": 2e-4, "exact_doublings": 13, "exact_per_doubling": 3, "draws": 10, "sampled_draws": 10, "horizon": 100,
}  # fmt: skip
LINEAR_QUICK: Config = {
    "widths": [6, 8, 11, 15], "slow_widths": [16, 20, 25, 32],
    "exact_smallest": 4e-4, "exact_doublings": 10, "exact_per_doubling": 2,
}  # fmt: skip
SAMPLED_DRAWS = 600  # at the standard preset: of the papers' 10 or 30 the largest scatters too much to tell a slope
HEADS = ("verdict", "slope of log radius in log m", "interval", "radius by m")


def sign(censored: str) -> str:
    """How a radius beyond the tested ones is written."""
    return {"at least": ">= ", "at most": "<= "}.get(censored, "")


def panel(
    title: str, curves: Mapping[int, PerturbationCurve], limits: tuple[float, float], legend: bool = True
) -> Panel:
    """E_m(beta) against beta, a line per width."""
    lines = [
        # what is above the panel is drawn as infinite: a triangle at its upper edge
        Line(
            f"m = {m}", c.radii, np.where(c.errors > limits[1], np.inf, c.errors), colour=k, legend=legend, markers=True
        )
        for k, (m, c) in enumerate(sorted(curves.items()))
    ]
    return Panel(title, Axis("perturbation beta", log=True), Axis("error E_m(beta)", log=True, limits=limits), lines)


def panels(
    shown: Families, limits: tuple[float, float], title: Callable[..., str] = lambda *key: ", ".join(map(str, key))
) -> list[Panel]:
    """A panel for each family, called by its key; the first has the legend."""
    return [panel(title(*key), curves, limits, legend=k == 0) for k, (key, curves) in enumerate(shown.items())]


def rises(curves: Mapping[int, PerturbationCurve], largest: float) -> float:
    """How far a wider model's error exceeds a narrower one's, as a ratio: the largest over beta <= `largest`."""
    ordered = [curves[m] for m in sorted(curves)]
    keep = ordered[0].radii <= largest
    ratios = [wide.errors[keep] / narrow.errors[keep] for narrow, wide in itertools.pairwise(ordered)]
    return float(np.max(ratios))
