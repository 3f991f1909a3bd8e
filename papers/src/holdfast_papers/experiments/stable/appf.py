"""stable-appf: gradient steps converge at a fixed learning rate where the gradient is Lipschitz to the weight (App. F).

The paper's two functions, x^4 and x^2, and one mode e^{f(w)t} fitted to e^{-0.1t} in the L2 norm, whose loss and gradient are
known: L = 1/2a + 1/2b - 2/(a + b) with a = -f(w), b = 0.1. For a -> 0 its gradient is G_f(w)/2: |w| for "best", unbounded in
w for direct, exp and softplus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast import parameterizations
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

PARAMETERIZATIONS = ("direct", "exp", "softplus", "best")
TARGET = 0.1  # rate of the mode that is fitted
REACHED = 0.01  # relative distance of the rate that counts as converged
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[float], list[float]]]] = {
    # gradient, starting points for a learning rate; the paper's own is 1/(2 eta) + 1
    "x^4": (lambda x: 4 * x**3, lambda eta: [1 / (2 * eta) + 1]),
    "x^2": (lambda x: 2 * x, lambda eta: [1.0, 1 / (2 * eta) + 1, 1e6]),
}


def units(config: Config) -> list[Config]:
    """The two functions, and one per parameterization."""
    shared = {key: config[key] for key in ("learning_rates", "steps")}
    modes = {**shared, "starts": config["starts"]}
    return [*split(shared, function=FUNCTIONS), *split(modes, parameterization=PARAMETERIZATIONS)]


def run(config: Config, work: Work) -> Arrays:
    """Where gradient descent ends, for every learning rate and start."""
    return _function(config) if "function" in config else _mode(config, work)


def _function(config: Config) -> Arrays:
    gradient, starts = FUNCTIONS[config["function"]]
    ends = []
    for eta in config["learning_rates"]:
        x0 = torch.tensor(starts(eta), dtype=torch.float64)
        x = x0.clone()
        for _ in range(config["steps"]):
            x = x - eta * gradient(x)
        ends.append(float((x / x0).nan_to_num(torch.inf).abs().max()))
    return {"end": np.array(ends)}


def _mode(config: Config, work: Work) -> Arrays:
    f = parameterizations.get(config["parameterization"])
    rates = np.geomspace(1e-6, 0.5, config["starts"])  # short of 1, where the weight of exp is 0
    start = f.inverse(-torch.from_numpy(rates))
    ends = []
    for eta in work.steps(config["learning_rates"], "learning rates"):
        w = start.clone()
        for _ in range(config["steps"]):
            w = w - eta * _gradient(f, w)
        ends.append(-f(w).numpy())
    last = np.array(ends)
    ratio = (_gradient(f, start) / start).abs().numpy()  # the Lipschitz quotient of eq. 11, with w for lambda
    return {"rates": rates, "end": np.where(np.isfinite(last) & (last > 0), last, np.inf), "ratio": ratio}


def _gradient(f: parameterizations.AbstractParameterization, w: Tensor) -> Tensor:
    """dL/dw = -f'(w) dL/da with dL/da = -1/(2 a^2) + 2/(a + b)^2; where the mode is unstable the loss is infinite: NaN."""
    a = -f(w)
    slope = -f.derivative(w) * (2 / (a + TARGET) ** 2 - 0.5 / a**2)
    return torch.where(a > 0, slope, torch.nan)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """x^2 converges from everywhere and x^4 does not; so do best and the others."""
    functions = {u.config["function"]: u.arrays["end"] for u in units if "function" in u.config}
    modes = {u.config["parameterization"]: u.arrays for u in units if "parameterization" in u.config}
    rates = np.array(config["learning_rates"])
    reached = {name: np.abs(a["end"] - TARGET) < REACHED * TARGET for name, a in modes.items()}
    share = {name: float(r.mean()) for name, r in reached.items()}
    largest = {name: float(a["ratio"].max()) for name, a in modes.items()}
    claims = [
        Claim.decide(
            "x^4",
            "For any learning rate there is a start from which x^4 does not converge, 1/(2 eta) + 1",
            bool((functions["x^4"] > 1).all()),
            {f"|last| / |first|, eta = {eta:g}": float(e) for eta, e in zip(rates, functions["x^4"], strict=True)},
            otherwise="From that start it converges at some learning rate.",
            essential=True,
        ),
        Claim.decide(
            "x^2",
            "x^2 converges from every start for every learning rate up to 1/2",
            bool((functions["x^2"][rates <= 0.5] < 1e-6).all()),
            {f"|last| / |first|, eta = {eta:g}": float(e) for eta, e in zip(rates, functions["x^2"], strict=True)},
            otherwise="At some learning rate up to 1/2 it does not.",
            essential=True,
        ),
        Claim.decide(
            "best",
            "Fitting one mode, 'best', whose gradient is at most 3 |w|, converges from every start at every learning rate up "
            "to 1/2",
            bool(reached["best"][rates <= 0.5].all()) and largest["best"] <= 3,
            {
                "share of starts and learning rates that converge": share["best"],
                "largest |gradient| / |w|": largest["best"],
            },
            otherwise="Some start or learning rate does not converge.",
            essential=True,
        ),
        Claim.decide(
            "others",
            "Direct, exp and softplus, whose gradient is not Lipschitz to the weight, do not converge from slow modes",
            all(not reached[name][:, 0].any() and largest[name] > 1e3 for name in PARAMETERIZATIONS[:3]),
            {f"share that converges, {name}": share[name] for name in PARAMETERIZATIONS[:3]}
            | {f"largest |gradient| / |w|, {name}": largest[name] for name in PARAMETERIZATIONS[:3]},
            otherwise="One of them converges from the slowest start at some learning rate.",
            essential=True,
        ),
    ]
    rows = [
        (name, float(eta), float(r.mean()), float(a["rates"][r].min()) if r.any() else None)
        for name, a in modes.items()
        for eta, r in zip(rates, reached[name], strict=True)
    ]
    heads = ("parameterization", "learning rate", "share of starts that converge", "slowest start that converges")
    table = Table("modes", f"One mode fitted to e^(-{TARGET:g} t), {config['steps']} gradient steps.", heads, rows)
    notes = [
        "x^2 converges for every eta below 1, twice the paper's limit. The loss of the mode is the squared L2 distance of "
        "the two kernels; a mode counts as converged when its rate is within 1% of the target's.",
    ]
    return Conclusion(claims, [_figure(rates, modes)], [table], notes)


def _figure(rates: np.ndarray, modes: dict[str, Arrays]) -> Figure:
    panels = []
    for name, a in modes.items():
        shown = np.where(a["end"] > 1e7, np.inf, a["end"])
        lines = [
            Line(f"learning rate {eta:g}", a["rates"], shown[k], colour=k, legend=name == "best", markers=True)
            for k, eta in enumerate(rates)
        ]
        y = Axis("rate after the last step", log=True, limits=(1e-7, 1e7))
        panels.append(Panel(name, Axis("rate at the start", log=True), y, lines))
    caption = (
        f"One mode fitted to e^(-{TARGET:g} t) by gradient descent from rates of every size. Best ends at the target from "
        "everywhere; the others are thrown far away by their first step from a slow mode (triangles: beyond 1e7, or unstable)."
    )
    return Figure("modes", caption, panels)


EXPERIMENT = Experiment(
    id="stable-appf",
    where="Appendix F",
    title="Gradient steps converge where the gradient is Lipschitz to the weight",
    summary="Gradient descent at fixed learning rates on the paper's x^4 and x^2, and on one recurrent mode under four "
    "parameterizations, from starts of every size.",
    presets=presets(
        {"learning_rates": [0.01, 0.1, 0.5], "starts": 25, "steps": 5000}, quick={"starts": 7, "steps": 2000}
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 3e-4 * config["steps"],
)
