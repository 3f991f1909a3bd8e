"""iat-def38: which activations the theorem is about (Definition 3.8)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.stability import classify_activation
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh, "hardtanh": functional.hardtanh, "2 tanh(z/3)": lambda z: 2 * torch.tanh(z / 3),
    "sigmoid": torch.sigmoid, "sigmoid - 1/2": lambda z: torch.sigmoid(z) - 0.5, "relu": torch.relu,
    "softsign": functional.softsign, "erf": torch.erf, "arctan": torch.atan, "gelu": functional.gelu,
    "identity": lambda z: 1.0 * z,
}  # fmt: skip
KINDS = ("neither", "A0", "A1")


def run(config: Config, work: Work) -> Arrays:
    """The class of each activation, with its constants."""
    rows = []
    for name in work.steps(config["activations"], "activations"):
        c = classify_activation(ACTIVATIONS[name])
        rows.append((KINDS.index(c.kind), c.slope, c.a, c.b, c.reach, c.bounded, c.monotone, c.lipschitz, c.admitted))
    z = torch.linspace(-4, 4, 401, dtype=torch.float64)
    return {
        "found": np.array(rows, dtype=float),
        "z": z.numpy(),
        "y": np.stack([ACTIVATIONS[n](z) for n in config["activations"]]),
    }


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """tanh and hardtanh are in, with the paper's constants; many in common use are not."""
    a = units[0].arrays
    found = dict(zip(config["activations"], a["found"], strict=True))
    tanh, hard = found["tanh"], found["hardtanh"]
    outside = [name for name, row in found.items() if not row[8]]
    claims = [
        Claim.decide(
            "tanh",
            "tanh is of class A1 with a = b = 1 and Z0 = inf",
            bool(
                tanh[0] == 2 and abs(tanh[2] - 1) < 1e-9 and abs(tanh[3] - 1) < 1e-9 and math.isinf(tanh[4]) and tanh[8]
            ),
            {"a": float(tanh[2]), "b": float(tanh[3]), "Z0": float(tanh[4])},
            paper={"a": 1.0, "b": 1.0, "Z0": math.inf},
            otherwise="Its slope differs from 1 - tanh^2, or it is not admitted.",
            essential=True,
        ),
        Claim.decide(
            "hardtanh",
            "hardtanh is of class A0, linear up to Z0 = 1",
            bool(hard[0] == 1 and abs(hard[4] - 1) < 0.011 and hard[8]),  # points are 0.01 apart
            {"c_sigma": float(hard[1]), "Z0": float(hard[4])},
            paper={"c_sigma": 1.0, "Z0": 1.0},
            otherwise="It is not linear up to 1, or not admitted.",
            essential=True,
        ),
        Claim.decide(
            "others",
            "Other activations in common use are of the two classes too",
            not outside,
            {f"{name} admitted": float(row[8]) for name, row in found.items()},
            otherwise=f"Not {', '.join(outside)}: relu, gelu and the identity are not bounded, the sigmoid is not 0 at 0, "
            "and softsign, erf and arctan are bent in another way than sigma' = a - b sigma^2.",
        ),
    ]
    rows = [
        (name, KINDS[int(r[0])], float(r[1]), *(None if math.isnan(v) else float(v) for v in r[2:4]), float(r[4]),
         *("yes" if v else "no" for v in r[5:7]), float(r[7]), "yes" if r[8] else "no")
        for name, r in found.items()
    ]  # fmt: skip
    heads = ("activation", "class", "slope at 0", "a", "b", "Z0", "bounded", "monotone", "largest slope", "admitted")
    table = Table("activations", "Activations by Def. 3.8.", heads, rows)
    return Conclusion(claims, [_figure(config, a)], [table])


def _figure(config: Config, a: Arrays) -> Figure:
    panels = []
    for title, admitted in (("Admitted", True), ("Not admitted", False)):
        names = [n for n, row in zip(config["activations"], a["found"], strict=True) if bool(row[8]) == admitted]
        lines = [Line(n, a["z"], a["y"][config["activations"].index(n)], colour=k) for k, n in enumerate(names)]
        panels.append(Panel(title, Axis("z"), Axis("activation", limits=(-2.1, 2.1)), lines))
    caption = "Activations that Theorem 3.9 is about (bounded, monotone, linear or tanh-like around 0), and others."
    return Figure("activations", caption, panels)


EXPERIMENT = Experiment(
    id="iat-def38",
    where="Definition 3.8",
    title="Which activations the theorem is about",
    summary="Common activations tested for the two classes of the definition: linear around 0, or sigma' = a - b sigma^2 "
    "around 0, and bounded, monotone and Lipschitz.",
    presets=presets({"activations": list(ACTIVATIONS)}),
    run=run,
    conclude=conclude,
)
