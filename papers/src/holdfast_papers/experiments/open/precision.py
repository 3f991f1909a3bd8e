"""open-precision: what storing a recurrent weight in float32 or bfloat16 does to the mode that it stands for.

The criteria. Stored weights, discrete time, 1 - lam from 1e-1 to 1e-8: direct is lost (lam rounds to 1) below 3e-8 (2^-25)
in float32 and below 2e-3 (2^-9) in bfloat16 and nowhere above; best stays within 0.5% and exp within 7% of the rate in
bfloat16, both within 1% in float32. A second claim, on the multiplier: where lam itself is rounded, as by a kernel that keeps
it in that format, every parameterization is lost where direct is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.figures import Axis, Figure, Line, Panel, Rule
from holdfast.parameterizations import get
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets
from holdfast_papers.pages import Cell, Table
from holdfast_papers.results import Claim

FORMATS: dict[str, torch.dtype] = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
LOST_BELOW = {
    "float32": 2.0**-25,
    "bfloat16": 2.0**-9,
}  # 3e-8 and 2e-3: half of the distance from 1 to the number before
WITHIN = {("best", "bfloat16"): 0.005, ("exp", "bfloat16"): 0.07, ("best", "float32"): 0.01, ("exp", "float32"): 0.01}
NAMES = ("direct", "exp", "softplus", "best")


def run(config: Config, work: Work) -> Arrays:
    """Relative errors of the rate 1 - lam, by parameterization and format: of a stored weight, and of a rounded multiplier."""
    rates = torch.logspace(-1, -config["decades"], config["points"], dtype=torch.float64)
    found: dict[str, np.ndarray] = {"rates": rates.numpy()}
    for name in NAMES:
        f = get(name, time="discrete")
        w = _weights(name, rates)
        for kind, dtype in FORMATS.items():
            stored = f.margin(w.to(dtype).double())
            multiplier = 1 - (1 - f.margin(w)).to(dtype).double()
            for what, margin in (("stored", stored), ("multiplier", multiplier)):
                found[f"{what}.{name}.{kind}"] = ((margin - rates) / rates).numpy()
    return found


def _weights(name: str, rates: Tensor) -> Tensor:
    """The free weights in float64: f^-1(1 - rate) loses digits of the rate, so that it is solved for the margin itself."""
    if name == "direct":
        return 1 - rates
    if name == "best":
        return torch.sqrt(1 / rates - 1)  # 1 / (w^2 + 1) = rate
    if name == "exp":
        return torch.log(-torch.log1p(-rates))  # 1 - exp(-e^w) = rate
    return torch.log(rates) - torch.log1p(-rates)  # softplus: e^w / (1 + e^w) = rate


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Which modes each format loses."""
    a = units[0].arrays
    rates = a["rates"]
    claims = [*(_lost(a, kind) for kind in LOST_BELOW), *(_kept(a, *key) for key in WITHIN), _multiplier(a)]
    rows: list[tuple[Cell, ...]] = [
        (name, kind, *(_shown(a[f"stored.{name}.{kind}"], rates, at) for at in (1e-2, 1e-4, 1e-6, 1e-8)))
        for name in NAMES
        for kind in FORMATS
    ]
    heads = ("parameterization", "format", *(f"rate {at:g}" for at in (1e-2, 1e-4, 1e-6, 1e-8)))
    table = Table("errors", "Relative error of the rate 1 - lam of a stored weight; -1: the rate is 0.", heads, rows)
    notes = [
        "A weight is rounded to the format and f is computed from it in float64: what is lost is lost by storing. A mode whose "
        "rate comes back as 0 never forgets. A kernel that keeps lam itself in the format loses the same modes whatever f is.",
    ]
    return Conclusion(claims, [_figure(a)], [table], notes)


def _shown(errors: np.ndarray, rates: np.ndarray, at: float) -> float:
    return float(errors[int(np.argmin(np.abs(np.log(rates / at))))])


def _lost(a: Arrays, kind: str) -> Claim:
    rates, gone = a["rates"], a[f"stored.direct.{kind}"] == -1
    limit = LOST_BELOW[kind]
    return Claim.decide(
        f"direct, {kind}",
        f"Stored in {kind}, direct weights lose every mode with 1 - lam below {limit:.2g} (lam rounds to 1) and none above",
        bool(gone[rates < limit].all() and not gone[rates > limit].any() and (rates < limit).any()),
        {"largest rate that is lost": float(rates[gone].max(initial=0.0)), "smallest that is kept": float(rates[~gone].min())},
        otherwise="The rates that are lost begin elsewhere.",
        essential=True,
    )  # fmt: skip


def _kept(a: Arrays, name: str, kind: str) -> Claim:
    worst, bound = float(np.abs(a[f"stored.{name}.{kind}"]).max()), WITHIN[name, kind]
    return Claim.decide(
        f"{name}, {kind}",
        f"Stored in {kind}, {name} keeps the rate of every mode from 0.1 to 1e-8 within {bound:.1%}",
        worst < bound,
        {"largest relative error": worst},
        otherwise=f"The largest error is {worst:.2%}.",
        essential=True,
    )


def _multiplier(a: Arrays) -> Claim:
    same = {
        (name, kind): bool(((a[f"multiplier.{name}.{kind}"] == -1) == (a[f"stored.direct.{kind}"] == -1)).all())
        for kind in LOST_BELOW
        for name in NAMES
    }
    worst = {
        f"largest error at 1e-2, {n}, bfloat16": abs(_shown(a[f"multiplier.{n}.bfloat16"], a["rates"], 1e-2))
        for n in NAMES
    }
    return Claim.decide(
        "multiplier",
        "Where the multiplier lam itself is rounded, every parameterization loses the modes that direct loses",
        all(same.values()),
        worst,
        otherwise=f"Not so for {', '.join(f'{n} in {k}' for (n, k), ok in same.items() if not ok)}.",
    )  # fmt: skip


def _figure(a: Mapping[str, np.ndarray]) -> Figure:
    panels: list[Panel] = []
    for what, title in (("stored", "stored weight"), ("multiplier", "rounded multiplier")):
        for kind in ("float32", "bfloat16"):
            lines = [
                Line(
                    name, a["rates"], np.maximum(np.abs(a[f"{what}.{name}.{kind}"]), 1e-12), colour=k, legend=not panels
                )
                for k, name in enumerate(NAMES)
            ]
            panels.append(
                Panel(
                    f"{title}, {kind}", Axis("rate 1 - lam", log=True), Axis("relative error", log=True),
                    [*lines, Rule("lost", y=1.0)],
                )
            )  # fmt: skip
    caption = (
        "How far a mode's rate is off once its weight, or its multiplier, is rounded; at 1 the mode never forgets."
    )
    return Figure("precision", caption, panels)


EXPERIMENT = Experiment(
    id="open-precision",
    where="Open question",
    title="Recurrent weights in finite precision",
    summary="Weights of modes with 1 - lam from 0.1 to 1e-8 are rounded to float64, float32 and bfloat16 under four "
    "parameterizations, and the rates that they then stand for are compared.",
    presets=presets({"decades": 8, "points": 701}, quick={"points": 141}),
    run=run,
    conclude=conclude,
)
