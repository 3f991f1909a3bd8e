"""linrec-fig6: condition number of Omega'Omega, Omega = V Psi, for inputs sparse in P basis functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from holdfast import reconstruct
from holdfast.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast.figures import Axis, Figure, Line, Panel, Table
from holdfast.results import Claim

BASES = {"haar": reconstruct.haar_basis, "fourier": reconstruct.fourier_basis}
SLACK = 0.3  # in log10: what the median of a few draws may scatter


def run(config: Config, work: Work) -> Arrays:
    """log10 of the condition number, (seed, N, P); inf where N < P or rounding hides the smallest singular value."""
    table = np.full((config["seeds"], len(config["modes"]), len(config["functions"])), math.inf)
    basis = BASES[config["basis"]](config["length"], max(config["functions"]))
    for s in work.steps(range(config["seeds"]), "draws"):
        for i, modes in enumerate(config["modes"]):
            lam = reconstruct.ring_eigenvalues(modes, config["r_min"], seed=s)
            V = reconstruct.vandermonde(lam, config["length"])
            omega = torch.complex(V.real @ basis, V.imag @ basis)
            for j, count in enumerate(config["functions"]):
                solve = reconstruct.make_decoder(omega[:, :count], form="complex", cut=None, ridge=0.0)
                if solve.rank == count:
                    table[s, i, j] = math.log10(solve.condition)
    return {"condition": table}


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """It falls with N, with fewer functions and with thinner rings."""
    cells = {(u.config["basis"], u.config["r_min"]): np.median(u.arrays["condition"], axis=0) for u in units}
    modes, functions, rings = config["modes"], config["functions"], config["r_min"]
    haar = np.stack([cells["haar", r] for r in rings])  # (ring, N, P)
    where = {"N": 1, "P": 2, "r_min": 0}
    names = {"N": "grows", "P": "falls", "r_min": "comes near 1"}
    claims = []
    for name, axis in where.items():
        steps = _steps(haar, axis) * (-1 if name == "P" else 1)
        down = float((steps <= SLACK).mean())
        ends = _steps(haar.take([0, -1], axis), axis) * (-1 if name == "P" else 1)
        claims.append(
            Claim.decide(
                name,
                f"The condition number of Omega'Omega falls as {name} {names[name]}",
                down == 1.0 and float(np.median(ends)) < 0,
                {
                    "share of steps that fall": down,
                    "largest rise, log10": float(max(steps.max(), 0.0)),
                    "median change from end to end, log10": float(np.median(ends)),
                },
                paper={"share of steps that fall": 1.0},
                otherwise=f"Of all neighbouring pairs {1 - down:.0%} rise by more than {SLACK:g} in log10, the scatter of "
                "a median over few draws.",
                essential=True,
            )
        )
    rows = [(b, r, n, p, float(c[i, j])) for (b, r), c in cells.items() for i, n in enumerate(modes)
            for j, p in enumerate(functions)]  # fmt: skip
    heads = ("basis", "r_min", "N", "P", "log10 of the condition")
    table = Table("conditions", "Median over the draws; inf: rank deficient, or beyond rounding.", heads, rows)
    notes = [
        "The paper does not name the basis of this figure; Haar decides, Fourier is shown beside it. Pairs of which either "
        "is beyond rounding (above about 1e26) are not compared unless the step makes it so."
    ]
    return Conclusion(claims, [_figure(config, cells, basis) for basis in config["bases"]], [table], notes)


def _steps(values: np.ndarray, axis: int) -> np.ndarray:
    """Differences of neighbours; those between two infinite values are left out."""
    size = values.shape[axis]
    a, b = values.take(range(size - 1), axis), values.take(range(1, size), axis)
    known = np.isfinite(a) | np.isfinite(b)
    return b[known] - a[known]


def _figure(config: Config, cells: dict[tuple[str, float], np.ndarray], basis: str) -> Figure:
    panels = []
    for r in config["r_min"]:
        lines = [
            Line(f"P = {p}", config["modes"], cells[basis, r][:, j], colour=j, markers=True)
            for j, p in enumerate(config["functions"])
        ]
        axes = Axis("number of modes N", log=True), Axis("log10 of the condition", limits=(0, 30))
        panels.append(Panel(f"ring ({r:g}, 1)", *axes, lines))
    caption = (
        f"Condition number of Omega'Omega for P {basis.capitalize()} functions of length {config['length']}: it falls with "
        "more modes, fewer functions and a thinner ring. Triangles: singular, or beyond rounding."
    )
    return Figure(basis, caption, panels)


EXPERIMENT = Experiment(
    id="linrec-fig6",
    where="Figure 6",
    title="Conditioning of sparse reconstruction",
    summary="Condition number of Omega'Omega with Omega = V Psi for sequences of length 512 sparse in P basis functions, "
    "over state sizes, numbers of functions and rings.",
    presets=presets(
        {
            "bases": ["haar", "fourier"], "length": 512, "seeds": 10, "r_min": [0.9, 0.95, 0.99, 0.999],
            "modes": [16, 32, 64, 128, 256, 512], "functions": [4, 8, 16, 32, 64, 128],
        },
        quick={"bases": ["haar"], "r_min": [0.9, 0.99], "modes": [32, 64, 128, 256]},
    ),
    units=lambda config: split(drop(config, "bases", "r_min"), basis=config["bases"], r_min=config["r_min"]),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1 * config["seeds"],
)  # fmt: skip
