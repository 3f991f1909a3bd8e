"""open-lambda: eigenvalues that minimise the condition of Omega = V Psi for sparse inputs and fewer modes than steps.

The paper calls an optimal Lambda an open question. The criterion, for each basis on its own: the condition number of
Omega'Omega of the minimiser is at most a tenth of the best ring's, the smallest over all radii and draws that were tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.figures import Axis, Figure, Panel, Points
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

BASES = {"haar": reconstruct.haar_basis, "fourier": reconstruct.fourier_basis}
TENTH = 0.1


def units(config: Config) -> list[Config]:
    """One search a basis and number of modes."""
    names = ("length", "functions", "draws", "rings", "starts", "steps", "lr")
    return split({name: config[name] for name in names}, basis=BASES, modes=config["modes"])


def condition(lam: Tensor, psi: Tensor) -> Tensor:
    """The condition number of Omega'Omega, (sigma_max / sigma_min)^2 of Omega = V Psi; differentiable in lam.

    Args:
        lam: eigenvalues (modes,), complex.
        psi: basis (length, functions), orthonormal columns.
    """
    powers = torch.arange(len(psi) - 1, -1, -1, dtype=torch.float64)
    V = torch.exp(torch.outer(torch.log(lam), powers.to(lam.dtype)))
    sizes = torch.linalg.svdvals(V @ psi.to(lam.dtype))
    return (sizes[0] / sizes[-1].clamp(min=1e-300)) ** 2


def run(config: Config, work: Work) -> Arrays:
    """Conditions of rings, of roots of unity and of the minimiser, and its eigenvalues."""
    psi = BASES[config["basis"]](config["length"], config["functions"])
    modes = config["modes"]
    rings = np.array(
        [
            [float(condition(reconstruct.ring_eigenvalues(modes, r, seed=s), psi)) for s in range(config["draws"])]
            for r in config["rings"]
        ]
    )
    roots = float(condition(reconstruct.roots_of_unity(modes), psi))
    slow = float(condition(_slow_roots(modes, config["length"]), psi))
    best, where = math.inf, _slow_roots(modes, config["length"])
    for k in work.steps(range(config["starts"]), "starts"):
        value, lam = _descend(_start(config, k), psi, config)
        if value < best:
            best, where = value, lam
    return {
        "rings": rings, "roots": np.array(roots), "slow": np.array(slow), "best": np.array(best), "lam": where.numpy(),
    }  # fmt: skip


def _slow_roots(modes: int, length: int) -> Tensor:
    """The slowest length-th roots of unity: 1, e^{+-2 pi i / length}, ..."""
    k = torch.tensor([(j + 1) // 2 * (1 if j % 2 else -1) for j in range(modes)], dtype=torch.float64)
    return torch.exp(2j * math.pi * k / length)


def _start(config: Config, seed: int) -> Tensor:
    """The slow roots of unity first; then rings of the radii, a draw each."""
    if seed == 0:
        return _slow_roots(config["modes"], config["length"])
    rings = config["rings"]
    return reconstruct.ring_eigenvalues(config["modes"], rings[seed % len(rings)], seed=1000 + seed)


def _descend(start: Tensor, psi: Tensor, config: Config) -> tuple[float, Tensor]:
    """Adam on log rate and angle, from a start inside the circle; the best point on the way."""
    rate = (-torch.log(start.abs())).clamp(min=1e-6)
    free = [rate.log().requires_grad_(), start.angle().clone().requires_grad_()]
    optimizer = torch.optim.Adam(
        [{"params": [free[0]], "lr": config["lr"]}, {"params": [free[1]], "lr": config["lr"] / config["length"] * 8}]
    )
    best, where = math.inf, start
    for _ in range(config["steps"]):
        lam = torch.exp(torch.complex(-free[0].exp(), free[1]))
        loss = condition(lam, psi).log()
        value = float(loss.detach())
        if value < best:
            best, where = value, lam.detach().clone()
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] *= 0.01 ** (1 / config["steps"])
        optimizer.step()
    return math.exp(best), where


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The minimiser against the best ring."""
    claims = [_claim(basis, [u for u in units if u.config["basis"] == basis]) for basis in BASES]
    rows = [
        (
            u.config["basis"], u.config["modes"], float(u.arrays["best"]), float(u.arrays["rings"].min()),
            float(np.median(u.arrays["rings"], 1).min()), float(u.arrays["slow"]), _log(float(u.arrays["roots"])),
            float(u.arrays["best"] / u.arrays["rings"].min()),
        )
        for u in units
    ]  # fmt: skip
    heads = (
        "basis", "modes N", "minimiser", "best ring of all draws", "best ring, median draw", "slowest roots of unity of the "
        "length", "N-th roots of unity", "minimiser / best ring",
    )  # fmt: skip
    table = Table("conditions", "Condition number of Omega'Omega.", heads, rows)
    notes = [
        f"Inputs of {config['length']} steps, sparse in the {config['functions']} coarsest functions of a basis. Rings: "
        f"r_min of {', '.join(f'{r:g}' for r in config['rings'])}, {config['draws']} draws each. The minimiser: Adam on the "
        f"logarithms of rates and on angles, {config['steps']} steps from {config['starts']} starts (the slowest roots of "
        "unity of the length, and ring draws), the best point on the way.",
        "Slow roots of unity of the length make Omega orthogonal for Fourier functions: their condition number is 1.",
    ]
    return Conclusion(claims, [_figure(units)], [table], notes)


def _log(value: float) -> float | str:
    return value if math.isfinite(value) and value < 1e30 else "singular"


def _claim(basis: str, units: Sequence[Unit]) -> Claim:
    ratios = {u.config["modes"]: float(u.arrays["best"] / u.arrays["rings"].min()) for u in units}
    return Claim.decide(
        basis,
        f"For inputs that are sparse in the {basis} basis, fewer modes than steps: some eigenvalues have a condition number of "
        "at most a tenth of the best ring's",
        max(ratios.values()) <= TENTH,
        {f"minimiser / best ring, N = {n}": ratio for n, ratio in ratios.items()}
        | {f"condition of the minimiser, N = {u.config['modes']}": float(u.arrays["best"]) for u in units},
        otherwise="At some N no such eigenvalues were found.",
        essential=True,
    )  # fmt: skip


def _figure(units: Sequence[Unit]) -> Figure:
    panels: list[Panel] = []
    for u in units:
        lam = u.arrays["lam"]
        rate, angle = np.maximum(-np.log(np.abs(lam)), 1e-8), np.angle(lam)
        layer = Points("minimiser", angle, rate, colour=0, legend=not panels)
        title = f"{u.config['basis']}, N = {u.config['modes']}"
        panels.append(Panel(title, Axis("angle"), Axis("rate -log |lam|", log=True), [layer]))
    return Figure("eigenvalues", "Where the minimisers lie: their angles, and how far inside the circle.", panels)


EXPERIMENT = Experiment(
    id="open-lambda",
    where="Open question (linrec, Sec. 3.1)",
    title="Eigenvalues that minimise the condition of Omega",
    summary="For sparse inputs and fewer modes than steps, eigenvalues are searched that make the map from coefficients to "
    "states best conditioned, and compared with random rings and roots of unity.",
    presets=presets(
        {
            "length": 512, "functions": 32, "modes": [40, 64, 128], "draws": 10, "rings": [0.9, 0.95, 0.98, 0.99, 0.999],
            "starts": 6, "steps": 600, "lr": 0.05,
        },
        quick={"length": 64, "functions": 8, "modes": [12], "draws": 3, "starts": 2, "steps": 60},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 2e-6 * config["starts"] * config["steps"] * config["modes"] * config["length"] / 10,
)  # fmt: skip
