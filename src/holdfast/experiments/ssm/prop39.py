"""ssm-prop39: Volterra series by products of state-space kernels, at a width that does not depend on T (Prop. 3.9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast import approximate
from holdfast.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast.figures import Axis, Figure, Line, Panel, Table
from holdfast.results import Claim

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
FLAT = 0.1  # exponent of the width in T that counts as none: 16 times the length, at most a third more units


def run(config: Config, work: Work) -> Arrays:
    """A network for each eps."""
    rows = []
    for eps in work.steps(config["eps"], "networks"):
        built = approximate.volterra(
            SERIES[config["series"]], config["length"], tolerance=eps, product=config["product"]
        )
        assert built.bound is not None
        rows.append((built.error, built.bound, built.width, built.parameters))
    error, bound, width, parameters = np.array(rows).T
    return {"error": error, "bound": bound, "width": width, "parameters": parameters}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Below every eps, with a width that stays when T grows."""
    found = {(u.config["series"], u.config["product"], u.config["length"]): u.arrays for u in units}
    eps, lengths = np.array(config["eps"]), np.array(config["lengths"])
    excess = {key: float((np.maximum(a["error"], a["bound"]) / eps).max()) for key, a in found.items()}
    cases = [(s, p) for s in config["series"] for p in config["products"]]
    slopes = {
        case: max(
            float(np.polyfit(np.log(lengths), np.log([found[(*case, t)]["width"][k] for t in lengths]), 1)[0])
            for k in range(len(eps))
        )
        for case in cases
    }
    claims = [
        Claim.decide(
            "every eps",
            "For every eps there is a state-space model within eps of the series, for inputs bounded by 1",
            max(excess.values()) <= 1,
            {f"largest error / eps, {s}": max(v for (n, *_), v in excess.items() if n == s) for s in config["series"]}
            | {"smallest eps": float(eps.min())},
            otherwise="The bound or the measured error stays above eps for some series.",
            essential=True,
        ),
        Claim.decide(
            "width",
            "The number of neurons does not depend on the sequence length T",
            max(slopes.values()) < FLAT,
            {f"exponent of the width in T, {s}, {p} products": v for (s, p), v in slopes.items()},
            paper={f"exponent of the width in T, {s}, {p} products": 0.0 for s, p in slopes},
            otherwise=f"From T = {lengths[0]} to {lengths[-1]} some width grows faster than T^{FLAT:g}.",
            essential=True,
        ),
    ]
    rows = [
        (s, p, t, float(e), float(a["error"][k]), float(a["bound"][k]), int(a["width"][k]), int(a["parameters"][k]))
        for (s, p, t), a in found.items()
        for k, e in enumerate(eps)
    ]
    heads = ("series", "products", "T", "eps", "error", "bound", "hidden units", "parameters")
    notes = [
        "A heavy-tailed kernel has mass beyond any T: a longer horizon asks for a slower mode, one for each factor by which T "
        "grows; kernels that have died out within the shortest T give the same network for all. Products are exact "
        "multiplications of the layer's outputs, or squares and cubes by sigmoids (network: a pure state-space model).",
    ]
    table = Table("networks", "One network for each series, length and eps.", heads, rows)
    return Conclusion(claims, [_figure(config, found)], [table], notes)


def _figure(config: Config, found: dict[tuple[str, str, int], Arrays]) -> Figure:
    panels = []
    for series in config["series"]:
        lines = []
        for k, e in enumerate(config["eps"]):
            for product, dash in (("exact", "solid"), ("network", "dash")):
                if product in config["products"]:
                    widths = [found[series, product, t]["width"][k] for t in config["lengths"]]
                    label = f"eps = {e:g}" + ("" if product == "exact" else ", sigmoids")
                    lines.append(Line(label, config["lengths"], widths, colour=k, dash=dash, markers=True))  # type: ignore[arg-type]
        panels.append(
            Panel(series, Axis("sequence length T", log=True), Axis("hidden units", log=True, limits=(1, 200)), lines)
        )
    caption = "Hidden units against the sequence length: level lines, higher for a smaller eps."
    return Figure("width", caption, panels, columns=3)


EXPERIMENT = Experiment(
    id="ssm-prop39",
    where="Proposition 3.9, Figure 4",
    title="Volterra series at a width independent of the length",
    summary="Volterra series of order up to 3 built from one linear state-space layer and products, for a sequence of "
    "tolerances and lengths; bounds over all inputs and errors measured on the networks.",
    presets=presets(
        {
            "series": list(SERIES), "products": ["exact", "network"], "lengths": [64, 256, 1024],
            "eps": [1e-1, 1e-2, 1e-3],
        },
        quick={"products": ["exact"], "eps": [1e-1, 1e-2]},
    ),
    units=lambda config: split(
        drop(config, "series", "products", "lengths"),
        series=config["series"], product=config["products"], length=config["lengths"],
    ),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.5 + config["length"] / 300,
)  # fmt: skip
