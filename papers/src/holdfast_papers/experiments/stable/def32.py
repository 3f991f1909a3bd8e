"""stable-def32: the modulus g(beta) of Def. 3.2, searched and in closed form; "direct" has none.

f is a stable reparameterization when sup_w |f(w)| sup_{|v-w| <= beta} int_0^inf |e^{f(v)t} - e^{f(w)t}| dt <= g(beta) with a
continuous g and g(0) = 0. The paper's eq. 75 leaves w in g for "best"; the exact modulus has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from holdfast import parameterizations
from holdfast.figures import Axis, Figure, Line, Panel, Points
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

NAMES = {
    "continuous": ("direct", "relu", "exp", "softplus", "best"),
    "discrete": ("direct", "relu", "exp", "softplus", "tanh", "best", "best (b = 0.5)"),
}
PAPER = ("discrete", "best (b = 0.5)")
EXACT = ("exp", "softplus", "best")  # continuous time: g in closed form


def units(config: Config) -> list[Config]:
    """One a parameterization."""
    rest = drop(config, "times")
    return [{**rest, "time": time, "name": name} for time in config["times"] for name in NAMES[time]]


def run(config: Config, work: Work) -> Arrays:
    """The modulus as the library gives it, and the sup searched over weights and perturbations, for a range of beta."""
    name, printed, _ = config["name"].partition(" (b = 0.5)")
    f = parameterizations.get(name, time=config["time"], **({"b": 0.5} if printed else {}))
    beta = np.geomspace(config["smallest"], config["largest"], config["points"])
    stated, searched = [], []
    for b in work.steps(beta, "perturbations"):
        stated.append(f.modulus(float(b)))
        searched.append(parameterizations.numerical_modulus(f, config["time"], float(b)))
    return {"beta": beta, "stated": np.array(stated), "searched": np.array(searched)}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """What is measured stays below the bound; the closed forms are attained; direct and b = 0.5 have no bound."""
    arrays = {(u.config["time"], u.config["name"]): u.arrays for u in units}
    excess = max(_excess(a) for a in arrays.values())
    exact = [arrays["continuous", name] for name in EXACT if ("continuous", name) in arrays]
    gap = max(float(np.abs(a["searched"] / a["stated"] - 1).max()) for a in exact)
    direct = [a["searched"] for (_, name), a in arrays.items() if name == "direct"]
    first = {name: arrays["continuous", name] for name in EXACT}
    slopes = {
        f"g(beta)/beta at beta = {a['beta'][0]:.2g}, {n}": float(a["stated"][0] / a["beta"][0])
        for n, a in first.items()
    }
    claims = [
        Claim.decide(
            "bound",
            "The measured change of a mode stays below g(beta) for every parameterization that has one",
            # the search resolves modes down to a margin of 1e-9 from the boundary, where float64 holds 2e-7 of it
            excess <= 1e-6,
            {"largest excess over the bound": excess, "closed form against search": gap},
            otherwise="A weight and a perturbation were found whose change exceeds the stated modulus.",
            essential=True,
        ),
        Claim.decide(
            "direct",
            "The direct parameterization has no modulus: an arbitrarily small perturbation makes some mode unstable",
            all(bool(np.isinf(values).all()) for values in direct),
            {"smallest modulus found": float(min(values.min() for values in direct))},
            paper={"smallest modulus found": math.inf},
            otherwise="A finite modulus was found for the direct parameterization.",
            essential=True,
        ),
        Claim.decide(
            "continuous at 0",
            "g(beta) goes to 0 with beta for exp, softplus and best",
            all(float(a["stated"][0]) < 2.5 * float(a["beta"][0]) for a in exact),
            slopes,
            paper={},
            otherwise="A modulus does not vanish with the perturbation.",
            essential=True,
        ),
    ]
    if PAPER in arrays:
        claims.append(_papers_choice(arrays[PAPER]))
    notes = [
        "Best (a = 1, b = 0.5): g = (a beta / 2b)(beta + sqrt(beta^2 + 4b/a)); the paper's eq. 75 leaves w in g. Relu "
        "is 0, so unstable, on half the line: it has no modulus. Infinite values are triangles at the upper edge.",
    ]
    return Conclusion(claims, [_figure(arrays)], [_table(arrays)], notes)


def _papers_choice(a: Arrays) -> Claim:
    return Claim.decide(
        "discrete best, b = 0.5",
        "The paper's discrete best, 1 - 1/(w^2 + 0.5), is a stable reparameterization (Sec. 3.3)",
        bool(
            np.isfinite(a["searched"]).all() and (a["searched"] <= a["stated"]).all() and np.isfinite(a["stated"]).all()
        ),
        {
            f"searched at beta = {b:.2g}": float(g)
            for b, g in zip(a["beta"][[0, -1]], a["searched"][[0, -1]], strict=True)
        },
        otherwise="f(0) = -1 lies on the boundary: a weight within beta of 0 can be moved onto it, and its powers are not "
        "summable. With b = 1 f stays in [0, 1) and the modulus is that of continuous time.",
        essential=True,
    )


def _excess(arrays: Arrays) -> float:
    finite = np.isfinite(arrays["stated"])
    stated = arrays["stated"][finite]
    over = (arrays["searched"][finite] - stated) / (1 + stated)
    return float(over.max()) if finite.any() else -math.inf


def _figure(found: dict[tuple[str, str], Arrays]) -> Figure:
    slots = {"direct": 6, "relu": 0, "exp": 1, "softplus": 2, "best": 3, "tanh": 4, PAPER[1]: 5}
    panels = []
    for time in dict.fromkeys(time for time, _ in found):
        layers: list[Line | Points] = []
        for (kind, name), arrays in found.items():
            if kind == time:
                layers.append(Line(name, arrays["beta"], arrays["stated"], colour=slots[name]))
                if np.isfinite(arrays["searched"]).any():
                    label = f"{name}, searched"
                    layers.append(Points(label, arrays["beta"], arrays["searched"], colour=slots[name], legend=False))
        panels.append(Panel(f"{time.capitalize()} time", Axis("beta", log=True), Axis("g(beta)", log=True), layers))
    caption = (
        "The modulus g(beta): lines as stated, points by search over all weights. Direct, relu and the discrete best "
        "with b = 0.5 have none."
    )
    return Figure("moduli", caption, panels)


def _table(arrays: dict[tuple[str, str], Arrays]) -> Table:
    rows = [
        (time, name, float(a["beta"][k]), float(a["stated"][k]), float(a["searched"][k]))
        for (time, name), a in arrays.items()
        for k in (0, len(a["beta"]) // 2, len(a["beta"]) - 1)
    ]
    return Table(
        "moduli", "Moduli, stated and searched.", ("time", "parameterization", "beta", "stated", "searched"), rows
    )


EXPERIMENT = Experiment(
    id="stable-def32",
    where="Definition 3.2",
    title="Which reparameterizations are stable, and how much",
    summary="The modulus of stability g(beta) of every parameterization: the library's value against a search for the "
    "worst weight and perturbation.",
    presets=presets(
        {"times": ["continuous", "discrete"], "smallest": 1e-3, "largest": 2.0, "points": 25}, quick={"points": 7}
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.15 * config["points"],
)
