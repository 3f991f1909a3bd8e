"""ssm-prop31: element-wise functions by two state-space layers without recurrence (Proposition 3.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import constructions
from holdfast_papers.constructions.sigmoids import WIDEST
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sin 3x": lambda x: np.sin(3 * x),
    "x^3 - x": lambda x: x**3 - x,
    "1 / (1 + 25 x^2)": lambda x: 1 / (1 + 25 * x**2),
    "|x|": np.abs,
    "max(sin 3x, 0)": lambda x: np.maximum(np.sin(3 * x), 0),
    "max(sin 9x, 0)": lambda x: np.maximum(np.sin(9 * x), 0),
}
LOW, HIGH = -1.0, 1.0


def run(config: Config, work: Work) -> Arrays:
    """A network for each eps: its measured error over the interval, and on sequences, at every step."""
    f = FUNCTIONS[config["function"]]
    rng = torch.Generator().manual_seed(0)
    x = LOW + (HIGH - LOW) * torch.rand(16, 64, 1, generator=rng, dtype=torch.float64)
    grid = torch.linspace(LOW, HIGH, 401, dtype=torch.float64)
    rows, curves = [], []
    for eps in work.steps(config["eps"], "networks"):
        built = constructions.elementwise(f, LOW, HIGH, tolerance=eps, activation="tanh")
        with torch.no_grad():
            y, _ = built.network(x)
            curves.append(built.network(grid.reshape(-1, 1, 1))[0].flatten().numpy())
        along = float(np.abs(y.numpy() - f(x.numpy())).max())
        rows.append((built.error, along, built.width, built.details["largest_weight"]))
    error, along, width, weight = np.array(rows).T
    return {"error": error, "along": along, "width": width, "weight": weight, "x": grid.numpy(), "y": np.array(curves)}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The error is below every eps, function by function."""
    arrays = {u.config["function"]: u.arrays for u in units}
    eps = np.array(config["eps"])
    claims = [_claim(name, a, eps) for name, a in arrays.items()]
    rows = [
        (name, float(e), float(a["error"][k]), float(a["along"][k]), int(a["width"][k]), float(a["weight"][k]))
        for name, a in arrays.items()
        for k, e in enumerate(eps)
    ]
    heads = ("function", "eps", "sup error on the interval", "sup error on sequences", "hidden units", "largest weight")
    table = Table(
        "networks",
        "One network for each function and eps, its errors and its size; both recurrent weights are 0.",
        heads,
        rows,
    )
    notes = [
        "The proposition gives no rate. With sigmoids at equal distances a kink costs units in proportion to its change of "
        "slope over eps; where they crowd at the bends of the function it costs far fewer. elementwise() takes whichever is "
        f"enough first and stops at {WIDEST} units. A function that is not within eps there is undecided.",
    ]
    return Conclusion(claims, [_errors(eps, arrays), _curves(config, arrays)], [table], notes)


def _claim(name: str, a: Arrays, eps: np.ndarray) -> Claim:
    """Met if every network is within its eps along sequences too; undecided where the construction ran out of sizes."""
    worst = np.maximum(a["error"], a["along"])
    stopped = bool((a["error"] > eps).any())
    k = int(np.argmax(worst / eps))
    return Claim.decide(
        name,
        f"For every eps there is a two-layer state-space model within eps of {name}, at every step",
        None if stopped else bool((worst <= eps).all()),
        {"largest error / eps": float((worst / eps).max()), "smallest eps": float(eps.min())},
        otherwise=f"At eps = {eps[k]:g} the smallest error is {worst[k]:.2g}, with {int(a['width'][k]):,} units."
        + (f" The construction stops at {WIDEST:,}; more would decide it." if stopped else ""),
        essential=True,
    )


def _errors(eps: np.ndarray, arrays: dict[str, Arrays]) -> Figure:
    x = Axis("eps", log=True)
    errors = [Line(name, eps, a["error"], colour=c, markers=True) for c, (name, a) in enumerate(arrays.items())]
    widths = [Line(name, eps, a["width"], colour=c, markers=True) for c, (name, a) in enumerate(arrays.items())]
    panels = [
        Panel(
            "Error", x, Axis("measured sup error", log=True), [*errors, Line("eps", eps, eps, colour=7, dash="dash")]
        ),
        Panel("Width", x, Axis("hidden units", log=True), widths),
    ]
    caption = "The measured error lies below eps; smooth functions need few units, kinks more."
    return Figure("errors", caption, panels)


def _curves(config: Config, arrays: dict[str, Arrays]) -> Figure:
    panels = []
    for name, a in arrays.items():
        lines = [Line("f", a["x"], FUNCTIONS[name](a["x"]), colour=7)]
        lines += [
            Line(f"eps = {e:g}", a["x"], a["y"][k], colour=k, dash="dash") for k, e in enumerate(config["eps"][:2])
        ]
        panels.append(Panel(name, Axis("input"), Axis("output"), lines))
    return Figure("functions", "The functions and their networks at the two largest eps.", panels, columns=3)


EXPERIMENT = Experiment(
    id="ssm-prop31",
    where="Proposition 3.1, Figure 2",
    title="Element-wise functions by two layers",
    summary="Two-layer state-space models without recurrence, sigmoids at equal distances or crowded where the function bends "
    "and a fitted readout, built for a sequence of tolerances and measured on the whole interval and along sequences.",
    presets=presets(
        {"functions": list(FUNCTIONS), "eps": [1e-1, 3e-2, 1e-2, 3e-3, 1e-3]},
        quick={"eps": [1e-1, 1e-2, 1e-3], "functions": ["sin 3x", "1 / (1 + 25 x^2)", "|x|"]},
    ),
    units=lambda config: split(drop(config, "functions"), function=config["functions"]),
    run=run,
    conclude=conclude,
    cost=lambda config: 1.0 * len(config["eps"]),
    version=3,
)
