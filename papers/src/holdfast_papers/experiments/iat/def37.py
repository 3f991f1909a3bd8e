"""iat-def37: perturbation errors in the Sobolev norm of the theorem, which counts the output's slope too (Definition 3.7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast import laws
from holdfast.approximate import fit_exponential_sum
from holdfast.figures import Axis, Figure, Line, Panel, Rule
from holdfast.parameterizations import fit_constants, get
from holdfast.stability import PerturbationCurve, StabilityVerdict
from holdfast.stability._verdict import HARMLESS_SHARE
from holdfast.stability.perturbation._evaluate import get_metric
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

RHO, FASTEST = laws.PowerLaw(1.5), 4.0
METRICS = ("sup", "sobolev")
EXPECTED = {"direct": "unstable", "best": "stable"}


def units(config: Config) -> list[Config]:
    """One a metric, parameterization and width."""
    shared = {key: config[key] for key in ("length", "points", "signs")}
    return split(shared, metric=METRICS, parameterization=list(EXPECTED), m=config["widths"])


def run(config: Config, work: Work) -> Arrays:
    """E_m(beta) of a linear model on a constant and on random signs, when all recurrent weights move by beta either way.

    With coefficients that are not negative and a constant input that is the worst that they can do.
    """
    m = config["m"]
    fitted = fit_exponential_sum(RHO, m, "nonnegative", rates=np.geomspace(1 / m**2, FASTEST, m))
    f = fit_constants(get(config["parameterization"]), torch.from_numpy(-fitted.rates))
    x = _inputs(config["length"], config["signs"])
    target = _output(x, RHO.integral)
    metric = get_metric(config["metric"], 1.0)
    w, c = f.inverse(torch.from_numpy(-fitted.rates)), torch.from_numpy(fitted.coefficients)

    def error(weights: Tensor) -> float:
        rates = -f(weights)
        if not bool((rates > 0)[c != 0].all()):
            return np.inf
        return float(metric.of((_output(x, _integral(rates, c)) - target).unsqueeze(0)))

    radii = np.geomspace(1e-4, 2.0, config["points"])
    errors = [max(error(w + beta), error(w - beta)) for beta in work.steps(radii, "radii")]
    norm = float(metric.of(target.unsqueeze(0)))
    return {"radii": radii, "errors": np.array(errors), "centre": np.array(error(w)), "norm": np.array(norm)}


def _integral(rates: Tensor, c: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Of the model's kernel over an interval."""
    return lambda a, b: ((torch.exp(-torch.outer(a, rates)) - torch.exp(-torch.outer(b, rates))) / rates) @ c


def _inputs(length: int, signs: int) -> Tensor:
    """A constant, which is the worst input for an error of one sign, and random sequences of signs."""
    rng = torch.Generator().manual_seed(0)
    random = 2.0 * torch.randint(0, 2, (signs, length, 1), generator=rng) - 1
    return torch.cat([torch.ones(1, length, 1), random]).double()


def _output(x: Tensor, integral: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """y_k = sum_j (integral of the kernel over [j, j+1]) x_{k-j}: the functional for inputs that are held over steps of 1."""
    steps = x.shape[1]
    j = torch.arange(steps, dtype=torch.float64)
    spectra = torch.fft.rfft(x.squeeze(-1), 2 * steps) * torch.fft.rfft(integral(j, j + 1), 2 * steps)
    return torch.fft.irfft(spectra, 2 * steps)[:, :steps].unsqueeze(-1)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """In both norms direct weights lose their radius with m, and best ones keep it."""
    arrays = {(u.config["metric"], u.config["parameterization"], u.config["m"]): u.arrays for u in units}
    widths = config["widths"]
    verdicts = _sums.verdicts({(k, f): {m: _curve(arrays[k, f, m]) for m in widths} for k in METRICS for f in EXPECTED})
    pairs = [(arrays["sobolev", f, m]["errors"], arrays["sup", f, m]["errors"]) for f in EXPECTED for m in widths]
    least = min(float((a[np.isfinite(a)] / b[np.isfinite(a)]).min()) for a, b in pairs)
    claims = [
        Claim.decide(
            "larger",
            "The Sobolev norm of an error is at least its sup norm (eq. 11)",
            least >= 1,
            {"smallest Sobolev error / sup error": least},
            otherwise="Some error is smaller in the Sobolev norm.",
            essential=True,
        ),
        *(_verdict_claim(k, f, v) for (k, f), v in verdicts.items()),
    ]
    heads = ("norm", "parameterization", *_sums.HEADS)
    table = Table("radii", f"Linear models of {RHO.name}, recurrent weights moved.", heads, _sums.rows(verdicts))
    return Conclusion(claims, [_figure(config, arrays)], [table])


def _verdict_claim(metric: str, f: str, verdict: StabilityVerdict) -> Claim:
    names = {"sup": "sup norm", "sobolev": "Sobolev norm"}
    return _sums.claim(
        f"{f}, {metric}",
        f"In the {names[metric]} {f} weights {'lose' if EXPECTED[f] == 'unstable' else 'keep'} their radius as m grows: the "
        f"verdict is {EXPECTED[f]}",
        {f"{f}, {metric}": verdict},
        EXPECTED[f],
        essential=True,
    )


def _curve(a: Arrays) -> PerturbationCurve:
    return PerturbationCurve(a["radii"], a["errors"], centre=float(a["centre"]), target_norm=float(a["norm"]))


def _figure(config: Config, arrays: dict[tuple[str, str, int], Arrays]) -> Figure:
    panels = []
    for k in METRICS:
        for f in EXPECTED:
            lines = []
            for c, m in enumerate(config["widths"]):
                a = arrays[k, f, m]
                errors = np.where(a["errors"] > 1e3, np.inf, a["errors"])
                lines.append(Line(f"m = {m}", a["radii"], errors, colour=c, legend=(k, f) == ("sup", "direct")))
            level = Rule("", y=HARMLESS_SHARE * float(arrays[k, f, config["widths"][0]]["norm"]))
            y = Axis("error E_m(beta)", log=True, limits=(1e-2, 1e3))
            panels.append(Panel(f"{f}, {k} norm", Axis("perturbation beta", log=True), y, [*lines, level]))
    caption = (
        "Worst-case error against the size of the perturbation, in the sup norm and in the Sobolev norm of the theorem: direct "
        "weights break at smaller and smaller beta as m grows, best ones do not. Line: a quarter of the target's norm."
    )
    return Figure("errors", caption, panels)


EXPERIMENT = Experiment(
    id="iat-def37",
    where="Definition 3.7, eq. 11",
    title="Perturbation errors in the Sobolev norm",
    summary="Linear models with direct and best weights fitted to a power law: worst-case perturbation errors in the sup "
    "norm and in the Sobolev norm, which adds the slope of the output.",
    presets=presets(
        {"widths": [6, 8, 12, 16], "length": 4000, "points": 40, "signs": 4},
        quick={"widths": [6, 8, 12, 16], "length": 2000, "points": 16, "signs": 2},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.02 * config["points"],
)
