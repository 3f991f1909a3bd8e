"""linrec-fig6: condition number of Omega'Omega, Omega = V Psi, for inputs sparse in P basis functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import reconstruct
from holdfast_papers.experiments._paired import steps
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

BASES = {"haar": reconstruct.haar_basis, "fourier": reconstruct.fourier_basis}


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
    modes, functions = config["modes"], config["functions"]
    claims = [claim for basis in config["bases"] for claim in _claims(config, units, basis)]
    rows = [(b, r, n, p, float(c[i, j])) for (b, r), c in cells.items() for i, n in enumerate(modes)
            for j, p in enumerate(functions)]  # fmt: skip
    heads = ("basis", "r_min", "N", "P", "log10 of the condition")
    table = Table("conditions", "Median over the draws; inf: rank deficient, or beyond rounding.", heads, rows)
    notes = [
        "The paper does not name the basis of this figure: Haar and Fourier are claims of their own.",
        "With exactly as many modes as functions, N = P, a thinner ring is no better or worse: the condition of a square "
        "Omega is that of its two nearest eigenvalues, and a thinner ring brings neighbours nearer. The paper asks for more "
        "equations than unknowns, and only those cells decide.",
    ]
    return Conclusion(claims, [_figure(config, cells, basis) for basis in config["bases"]], [table], notes)


def _claims(config: Config, units: Sequence[Unit], basis: str) -> list[Claim]:
    """For one basis: with N, with P and with r_min, at every step and from end to end."""
    rings = config["r_min"]
    draws = np.stack([u.arrays["condition"] for r in rings for u in units if _is(u, basis, r)])  # (ring, seed, N, P)
    # the paper's assumption (App. B): more equations than unknowns
    draws[:, :, np.array(config["modes"])[:, None] <= np.array(config["functions"])] = np.nan
    claims = []
    for name, axis, how in (("N", 2, "grows"), ("P", 3, "falls"), ("r_min", 0, "comes near 1")):
        rows = _rows(draws, axis, turned=name == "P")
        every = steps([pair for row in rows for pair in itertools.pairwise(row) if _one_finite(*pair)])
        ends = steps([(row[0], row[-1]) for row in map(_known, rows) if len(row) > 1])
        for suffix, found, said in (("", every, ", at every step"), (", from end to end", ends, ", from end to end")):
            claims.append(
                Claim.decide(
                    f"{name}, {basis}{suffix}",
                    f"The condition number of Omega'Omega falls as {name} {how}, where N > P, for {basis.capitalize()} "
                    f"functions{said}",
                    found.holds,
                    {k.replace("change", "change of log10"): v for k, v in found.numbers.items()},
                    otherwise=found.why,
                    essential=True,
                )
            )
    return claims


def _rows(draws: np.ndarray, axis: int, turned: bool) -> list[np.ndarray]:
    """The lines of cells along an axis, each (cell, seed), in the order in which the condition should fall."""
    lines = np.moveaxis(draws, (axis, 1), (-2, -1)).reshape(-1, draws.shape[axis], draws.shape[1])
    lines = lines[:, ::-1] if turned else lines
    return [line[~np.isnan(line).any(1)] for line in lines]


def _one_finite(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.isfinite(a).any() or np.isfinite(b).any())


def _known(row: np.ndarray) -> np.ndarray:
    """The cells of a line in which some draw is finite."""
    return np.asarray(row[np.isfinite(row).any(1)])


def _is(unit: Unit, basis: str, r_min: float) -> bool:
    return bool(unit.config["basis"] == basis and unit.config["r_min"] == r_min)


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
        f"Condition number of Omega'Omega for P {basis.capitalize()} functions of length {config['length']}, against the "
        "number of modes, ring by ring. Triangles: singular, or beyond rounding."
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
            "bases": ["haar", "fourier"], "length": 512, "seeds": 20, "r_min": [0.9, 0.95, 0.99, 0.999],
            "modes": [16, 32, 64, 128, 256, 512], "functions": [4, 8, 16, 32, 64, 128],
        },
        standard={"seeds": 200},  # 20 draws leave 39 of 224 steps open
        quick={"seeds": 10, "r_min": [0.9, 0.99], "modes": [32, 64, 128, 256]},
    ),
    units=lambda config: split(drop(config, "bases", "r_min"), basis=config["bases"], r_min=config["r_min"]),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1 * config["seeds"],
)  # fmt: skip
