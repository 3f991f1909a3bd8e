"""ssm-prop39: Volterra series by products of state-space kernels: one network for every T (Prop. 3.9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.figures import Axis, Dash, Figure, Line, Panel, Rule
from holdfast_papers import constructions
from holdfast_papers.constructions.volterra import measured_error
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

# order -> kernel as a function of the lags; the first has a heavy tail, the others die out exponentially
SERIES: dict[str, dict[int, Any]] = {
    "order 2, (1 + (a + b) / 4)^-4": {2: lambda a, b: (1 + (a + b) / 4) ** -4.0},
    "orders 0 to 2, Gaussian coupling": {
        0: 0.3,
        1: lambda a: np.exp(-a / 8),
        2: lambda a, b: np.exp(-(a + b) / 6 - ((a - b) / 6) ** 2) / 8,
    },
    "order 3, oscillating": {3: lambda a, b, c: 0.1 * np.exp(-(a + b + c) / 6) * np.cos((a + b + c) / 3)},
}


def run(config: Config, work: Work) -> Arrays:
    """A network for each eps, built once, and its error at every length."""
    kernels = SERIES[config["series"]]
    rows, errors = [], []
    for eps in work.steps(config["eps"], "networks"):
        built = constructions.volterra(kernels, config["built"], tolerance=eps, product=config["product"])
        assert built.bound is not None
        rows.append((built.bound, built.width, built.parameters))
        errors.append([measured_error(built.network, kernels, T) for T in config["lengths"]])
    bound, width, parameters = np.array(rows).T
    return {"error": np.array(errors), "bound": bound, "width": width, "parameters": parameters}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """One network is below eps at every T."""
    arrays = {(u.config["series"], u.config["product"]): u.arrays for u in units}
    eps, lengths, built = np.array(config["eps"]), config["lengths"], config["built"]
    excess = {key: float((a["bound"] / eps).max()) for key, a in arrays.items()}
    worst = {key: (a["error"] / eps[:, None]).max(0) for key, a in arrays.items()}
    claims = [
        Claim.decide(
            "every eps",
            "For every eps there is a state-space model within eps of the series, for inputs bounded by 1",
            max(excess.values()) <= 1,
            {f"largest bound / eps, {s}, {p} products": v for (s, p), v in excess.items()}
            | {"smallest eps": float(eps.min())},
            otherwise="The bound stays above eps for some series.",
            essential=True,
        ),
        Claim.decide(
            "one network",
            "The network does not depend on the sequence length T: one that was built once is within eps at every T",
            max(float(w.max()) for w in worst.values()) <= 1,
            {
                f"largest error / eps at T = {T}": max(float(w[k]) for w in worst.values())
                for k, T in enumerate(lengths)
            },
            otherwise=f"The networks were built from the first {built} lags of the kernels. Beyond, at some T, what is left "
            "of the kernel and of the modes adds up to more than eps.",
            essential=True,
        ),
    ]
    rows = [
        (s, p, float(e), float(a["bound"][k]), *map(float, a["error"][k]), int(a["width"][k]), int(a["parameters"][k]))
        for (s, p), a in arrays.items()
        for k, e in enumerate(eps)
    ]
    heads = ("series", "products", "eps", "bound", *(f"error, T = {T}" for T in lengths), "hidden units", "parameters")
    notes = [
        f"Each network is built once, from the first {built} lags of the kernels, and then run on sequences of every length. "
        "Up to T "
        f"= {built} the bound (over all inputs) is that of the table or less, since it sums over fewer lags. Products are "
        "exact multiplications of the layer's outputs, or squares and cubes by sigmoids (network: a pure state-space model).",
        "The error is the largest found at step T: inputs of random signs, each moved up the error's gradient.",
    ]
    table = Table("networks", "One network for each series and eps.", heads, rows)
    return Conclusion(claims, [_figure(config, arrays)], [table], notes)


def _figure(config: Config, arrays: dict[tuple[str, str], Arrays]) -> Figure:
    panels = []
    dashes: dict[str, Dash] = {"exact": "solid", "network": "dash"}
    for series in config["series"]:
        lines = []
        for k, e in enumerate(config["eps"]):
            for product in config["products"]:
                label = f"eps = {e:g}" + ("" if product == "exact" else ", sigmoids")
                errors = arrays[series, product]["error"][k]
                lines.append(Line(label, config["lengths"], errors, colour=k, dash=dashes[product], markers=True))
        rules = [Rule("", y=e) for e in config["eps"]]
        panels.append(
            Panel(series, Axis("sequence length T", log=True), Axis("error at step T", log=True), [*lines, *rules])
        )
    caption = (
        "Error of one network against the length of the sequence: it stays below its eps (horizontal lines) at every T."
    )
    return Figure("errors", caption, panels, columns=3)


EXPERIMENT = Experiment(
    id="ssm-prop39",
    where="Proposition 3.9, Figure 4",
    title="Volterra series by one network for every length",
    summary="Volterra series of order up to 3 built from one linear state-space layer and products, for a sequence of "
    "tolerances: bounds over all inputs, and errors of the same network on sequences of several lengths.",
    presets=presets(
        {
            "series": list(SERIES), "products": ["exact", "network"], "built": 1024, "lengths": [64, 256, 1024, 2048],
            "eps": [1e-1, 1e-2, 1e-3],
        },
        quick={"products": ["exact"], "built": 256, "lengths": [64, 256, 1024], "eps": [1e-1, 1e-2]},
    ),
    units=lambda config: split(
        drop(config, "series", "products"), series=config["series"], product=config["products"]
    ),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.5 + config["built"] / 50,
    version=2,
)  # fmt: skip
