"""linrec-fig6: condition number of Omega'Omega, Omega = V Psi, for inputs sparse in P basis functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

BASES = {"haar": reconstruct.haar_basis, "fourier": reconstruct.fourier_basis}
DOUBTS = 3  # standard errors of a difference of medians that a rise must pass: one of 700 does by chance


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
    claims = [claim for basis in config["bases"] for claim in _claims(config, units, cells, basis)]
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


def _claims(
    config: Config, units: Sequence[Unit], cells: dict[tuple[str, float], np.ndarray], basis: str
) -> list[Claim]:
    """For one basis: with N, with P and with r_min."""
    rings = config["r_min"]
    values = np.stack([cells[basis, r] for r in rings])  # (ring, N, P)
    scatter = np.stack([_standard_error(u.arrays["condition"]) for r in rings for u in units if _is(u, basis, r)])
    # the paper's assumption (App. B): more equations than unknowns
    values[:, np.array(config["modes"])[:, None] <= np.array(config["functions"])] = np.nan
    claims = []
    for name, axis, how in (("N", 1, "grows"), ("P", 2, "falls"), ("r_min", 0, "comes near 1")):
        steps, doubt = _steps(values, scatter, axis)
        steps = -steps if name == "P" else steps
        down = float((steps <= DOUBTS * doubt).mean())
        ends = _ends(values, axis) * (-1 if name == "P" else 1)
        claims.append(
            Claim.decide(
                f"{name}, {basis}",
                f"The condition number of Omega'Omega falls as {name} {how}, where N > P, for {basis.capitalize()} functions",
                down == 1.0 and float(np.median(ends)) < 0,
                {
                    "share of steps that fall": down,
                    "steps": float(len(steps)),
                    "steps that rise, within the doubt of the draws": float((steps > 0).sum())
                    - len(steps) * (1 - down),
                    "largest rise, log10": float(max(steps.max(), 0.0)),
                    "median change from end to end, log10": float(np.median(ends)),
                },
                paper={"share of steps that fall": 1.0},
                otherwise=f"Of all {len(steps)} neighbouring pairs {1 - down:.0%} rise by more than {DOUBTS} standard errors.",
                essential=True,
            )
        )
    return claims


def _steps(values: np.ndarray, scatter: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Differences of neighbours, where both are known and one is finite, and their standard errors."""
    size = values.shape[axis]
    a, b = values.take(range(size - 1), axis), values.take(range(1, size), axis)
    known = ~(np.isnan(a) | np.isnan(b)) & (np.isfinite(a) | np.isfinite(b))
    doubt = np.hypot(scatter.take(range(size - 1), axis), scatter.take(range(1, size), axis))
    return b[known] - a[known], doubt[known]


def _standard_error(draws: np.ndarray) -> np.ndarray:
    """Of the median over the first axis, from its finite values: 1.25 of the mean's; 0 where there are none."""
    finite = np.isfinite(draws)
    count = np.maximum(finite.sum(0), 1)
    known = np.where(finite, draws, 0.0)
    mean = known.sum(0) / count
    variance = (np.where(finite, known - mean, 0.0) ** 2).sum(0) / count
    return 1.2533 * np.sqrt(variance / count)


def _is(unit: Unit, basis: str, r_min: float) -> bool:
    return bool(unit.config["basis"] == basis and unit.config["r_min"] == r_min)


def _ends(values: np.ndarray, axis: int) -> np.ndarray:
    """Last finite value of each row along the axis minus its first; rows with fewer than two are left out."""
    rows = [row[np.isfinite(row)] for row in np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])]
    return np.array([row[-1] - row[0] for row in rows if len(row) > 1])


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
        quick={"seeds": 10, "r_min": [0.9, 0.99], "modes": [32, 64, 128, 256]},
    ),
    units=lambda config: split(drop(config, "bases", "r_min"), basis=config["bases"], r_min=config["r_min"]),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1 * config["seeds"],
)  # fmt: skip
