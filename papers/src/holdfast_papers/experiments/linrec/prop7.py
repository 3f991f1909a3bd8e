"""linrec-prop7: multi-dimensional inputs from the state of a block-diagonal recurrence (Proposition 7)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.figures import Axis, Figure, Line, Panel, Rule
from holdfast.kernels import scan
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.reconstruct.decoder import Form
from holdfast_papers.results import Claim

EXACT = 1e-10  # relative error that counts as rounding: conditions up to 1e5 are allowed for
LOST = 1e-3
FORMS: tuple[Form, ...] = ("complex", "real")


def run(config: Config, work: Work) -> Arrays:
    """Sparse inputs, the literal recurrence of eq. 15 and 17, and everything read off its states."""
    rng = torch.Generator().manual_seed(config["seed"])
    M, P, L, R = config["dimensions"], config["functions"], config["length"], config["modes"]
    # one coefficient acts on all dimensions (eq. 11): Haar functions mixed at random, dimension by dimension
    mix = torch.randn(M, P, P, generator=rng, dtype=torch.float64) / P**0.5
    psi = torch.einsum("tq,mqp->mtp", reconstruct.haar_basis(L, P), mix)
    alpha = torch.randn(config["inputs"], P, generator=rng, dtype=torch.float64)
    u = torch.einsum("mtp,bp->btm", psi, alpha)
    lam = reconstruct.ring_eigenvalues(M * R, config["r_min"], seed=rng).reshape(M, R)
    count = reconstruct.counting_eigenvalue(L)
    states = _recurrence(u, lam, count)
    steps = np.unique(np.linspace(1, L, config["points"]).round().astype(int))
    errors = np.empty((2, len(steps)))
    for j, k in enumerate(work.steps(steps.tolist(), "steps")):
        for i, form in enumerate(FORMS):
            known = u[:, :k]
            found = reconstruct.sparse_inputs(states[:, k - 1, 1:], lam, psi[:, :k], form=form)
            errors[i, j] = found.error(known)
    last = reconstruct.sparse_inputs(states[:, -1, 1:], lam, psi)
    assert last.coefficients is not None
    block = reconstruct.encode(u, lam)
    read = reconstruct.timestamp(states[0, :, 0].real, count)
    return {
        "step": steps,
        "complex": errors[0],
        "real": errors[1],
        "coefficients": np.array(float((last.coefficients - alpha).norm() / alpha.norm())),
        "rank": np.array(last.rank),
        "condition": np.array(last.condition),
        "block": np.array(float((states[:, -1, 1:] - block).norm() / block.norm())),
        "misread": np.array(int((read != torch.arange(1, L + 1)).sum())),
        "whole": np.array(_whole(config, rng)),
    }


def _recurrence(u: Tensor, lam: Tensor, count: float) -> Tensor:
    """x_k = Lam x_{k-1} + B (1, u_k) step by step, B as in eq. 15: states (batch, time, 1 + M R)."""
    M, R = lam.shape
    B = torch.zeros(1 + M * R, 1 + M, dtype=torch.complex128)
    B[0, 0] = 1
    for j in range(M):
        B[1 + j * R : 1 + (j + 1) * R, 1 + j] = 1
    Lam = torch.cat([torch.tensor([count], dtype=torch.complex128), lam.flatten()])
    embedded = torch.cat([torch.ones(*u.shape[:2], 1, dtype=torch.float64), u], -1).to(torch.complex128)
    return scan(Lam, embedded @ B.mT)[0]


def _whole(config: Config, rng: torch.Generator) -> float:
    """Inputs that are not sparse, with as many modes per dimension as steps: the error of all of them."""
    M, L = config["dimensions"], config["whole"]
    u = torch.randn(8, L, M, generator=rng, dtype=torch.float64)
    lam = reconstruct.roots_of_unity(L).repeat(M, 1)
    states = _recurrence(u, lam, reconstruct.counting_eigenvalue(L))
    return reconstruct.inputs(states[:, -1, 1:], lam, L).error(u)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Coefficients, inputs and timestamps come back to rounding; N - 1 >= P is needed."""
    sizes = sorted({u.config["modes"] for u in units})
    by_size = {R: [u.arrays for u in units if u.config["modes"] == R] for R in sizes}
    M, P, largest = config["dimensions"], config["functions"], sizes[-1]
    every = [a for found in by_size.values() for a in found]
    few, many = [R for R in sizes if R * M < P], [R for R in sizes if R * M >= P]
    top = by_size[largest]
    worst = {
        "coefficients, last step": max(float(a["coefficients"]) for a in top),
        "inputs, worst step": max(float(a["complex"].max()) for a in top),
        "inputs, worst step, real form": max(float(a["real"].max()) for a in top),
    }
    claims = [
        Claim.decide(
            "sparse inputs",
            f"With N = {largest * M + 1} the coefficients and all inputs up to k are recovered from the state x_k",
            max(worst.values()) < EXACT,
            {**worst, "N": largest * M + 1.0, "length": float(config["length"])},
            otherwise="The error is above rounding.",
            essential=True,
        ),
        Claim.decide(
            "timestamp",
            "A continuous map recovers k from x_k at every step",
            all(int(a["misread"]) == 0 for a in every),
            {
                "steps misread": float(sum(int(a["misread"]) for a in every)),
                "steps": float(config["length"] * len(every)),
            },
            otherwise="Some steps are misread.",
            essential=True,
        ),
        Claim.decide(
            "block form",
            "The recurrence with B of eq. 15 is the block-diagonal Vandermonde product of eq. 16",
            max(float(a["block"]) for a in every) < 1e-12,
            {"largest relative difference": max(float(a["block"]) for a in every)},
            otherwise="The recurrence and the product differ by more than rounding.",
            essential=True,
        ),
        Claim.decide(
            "all inputs",
            "Inputs that are not sparse come back with as many modes per dimension as steps",
            max(float(a["whole"]) for a in every) < EXACT,
            {"largest relative error": max(float(a["whole"]) for a in every)},
            otherwise="The error is above rounding.",
            essential=True,
        ),
        Claim.decide(
            "modes needed",
            "R >= P / M modes per dimension are necessary",
            all(int(a["rank"]) < P and float(a["complex"][-1]) > LOST for R in few for a in by_size[R])
            and all(int(a["rank"]) == P for R in many for a in by_size[R]),
            {f"relative error, R = {R}": _median(by_size[R], "complex") for R in sizes},
            otherwise="The rank of Omega does not follow R M >= P.",
            essential=True,
        ),
    ]
    notes = [
        "Eq. 31 interpolates Omega^+ between floor t and ceil t with swapped weights, and at whole t both weights are 0, "
        "swapped back or not: with floor t + 1 instead of ceil t, (floor t + 1 - t) Omega^+_floor + (t - floor t) "
        "Omega^+_(floor + 1) is continuous and right at whole t."
    ]
    return Conclusion(claims, [_figure(config, by_size)], [_table(M, by_size)], notes)


def _table(M: int, by_size: dict[int, list[Arrays]]) -> Table:
    rows = [
        (R, R * M + 1, _median(found, "complex"), _median(found, "real"), int(found[0]["rank"]),
         float(np.median([a["condition"] for a in found])))
        for R, found in by_size.items()
    ]  # fmt: skip
    heads = ("R", "N", "error, complex form", "error, real form", "rank of Omega", "condition of Omega'Omega")
    return Table("sizes", "At the last step, median over the draws.", heads, rows)


def _median(found: Sequence[Arrays], form: str) -> float:
    return float(np.median([a[form][-1] for a in found]))


def _figure(config: Config, by_size: dict[int, list[Arrays]]) -> Figure:
    sizes = list(by_size)
    lines = []
    for c, (form, name) in enumerate((("complex", "pseudo-inverse"), ("real", "real least squares"))):
        last = np.maximum([[a[form][-1] for a in found] for found in by_size.values()], 1e-16)
        low, high = last.min(1), last.max(1)
        lines.append(Line(name, sizes, np.median(last, 1), low=low, high=high, colour=c, markers=True))
    need = Rule("P / M", x=config["functions"] / config["dimensions"])
    y = Axis("relative error of the inputs", log=True)
    first = Panel("At the last step", Axis("modes per dimension R", log=True), y, [*lines, need])
    curves = [
        Line(f"R = {R}", found[0]["step"], np.maximum(np.median([a["complex"] for a in found], 0), 1e-16), colour=c)
        for c, (R, found) in enumerate(by_size.items())
    ]
    second = Panel("Pseudo-inverse, by step", Axis("step k"), y, curves)
    caption = (
        f"Inputs of {config['dimensions']} dimensions and {config['functions']} coefficients rebuilt from the state: lost "
        "below R = P / M, to rounding with a few times as many. The real form needs half."
    )
    return Figure("errors", caption, [first, second])


EXPERIMENT = Experiment(
    id="linrec-prop7",
    where="Proposition 7, App. B",
    title="Multi-dimensional inputs from a block-diagonal recurrence",
    summary="Sequences in several dimensions, sparse in a common basis, run through the recurrence of eq. 15 to 19; "
    "timestamp, coefficients and inputs read off its states at every step.",
    presets=presets(
        {
            "dimensions": 3, "functions": 24, "length": 512, "r_min": 0.99, "modes": [4, 6, 8, 16, 32, 64], "seeds": 5,
            "inputs": 8, "points": 40, "whole": 64,
        },
        quick={"modes": [6, 8, 32, 64], "seeds": 2, "points": 12},
    ),
    units=lambda config: split(drop(config, "modes", "seeds"), modes=config["modes"], seed=range(config["seeds"])),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.02 * config["points"] * (config["modes"] / 8) ** 0.5,
)  # fmt: skip
