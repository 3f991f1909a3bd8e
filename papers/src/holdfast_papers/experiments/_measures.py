"""Other ways to measure a family of trained students than the experiments': what the studies of `reasons` share."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.data import load_task
from holdfast.nn import ContinuousRNN
from holdfast.stability import Ball, PerturbationCurve, Search, perturbation_error
from holdfast.stability._verdict import HARMLESS_SHARE
from holdfast.stability.perturbation._curve import stability_radius
from holdfast.stability.perturbation._options import SearchName
from holdfast_papers.experiments import _sums
from holdfast_papers.pages import Cell, Table

RADII = 1e-3 * 2.0 ** np.arange(11)
SEQUENCES = 4
DRAWS = 3  # as in the experiments
ASCENT = 6  # steps of gradient ascent
FREQUENCIES = torch.cat([torch.zeros(1), torch.logspace(-4, 1, 400)]).double()
Students = Mapping[int, ContinuousRNN]
Data = tuple[Tensor, Tensor]


def noise(steps: int, dt: float) -> Data:
    """White noise as in the experiments' test data, and the functional of (t+1)^-1.5 of it."""
    task = load_task("functional", law="power", constants=[1.5], length=steps, dt=dt)
    batch = task.batch("test", torch.arange(SEQUENCES))
    return batch.inputs, batch.targets


def curves(
    students: Students,
    data: Data,
    scope: str,
    search: SearchName,
    *,
    own: bool = False,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[int, PerturbationCurve]:
    """Perturbation errors by width.

    Args:
        students: by width.
        data: inputs and targets.
        scope: "all", "recurrent" or the name of a weight: what moves.
        search: "random", or "adversarial" for gradient ascent.
        own: whether errors are distances from the student's own outputs instead of the targets.
        draws: number of random draws.
        seed: of the random draws.
    """
    x, y = data
    found = {}
    for m, student in students.items():
        with torch.no_grad():
            wanted = student(x)[0] if own else y
        restarts, steps = (None, None) if search == "random" else (0, ASCENT)
        moved = Ball(scope=[scope] if "." in scope else scope)
        how = Search(search, draws=draws, seed=seed, restarts=restarts, steps=steps)
        found[m] = perturbation_error(student, x, wanted, RADII, norm=moved, search=how)
    return found


def distance_to_instability(W: Float[Tensor, "m m"]) -> float:
    """The smallest spectral norm of a complex matrix that brings an eigenvalue of W to the imaginary axis; 0 beyond it.

    It is the least singular value of i w - W over all frequencies w, here over a grid of them; for a normal W it is the
    distance of the slowest eigenvalue. No sequence is too long for it and no draw misses it.

    Args:
        W: the recurrent matrix in continuous time.
    """
    W = W.detach().double()
    if float(torch.linalg.eigvals(W).real.max()) >= 0:
        return 0.0
    shifted = 1j * FREQUENCIES[:, None, None] * torch.eye(len(W), dtype=torch.complex128) - W
    return float(torch.linalg.svdvals(shifted)[:, -1].min())


def radius(curve: PerturbationCurve) -> tuple[float, str]:
    """The radius of one curve by the rule of `assess_stability`, and how it is written: "<= 0.001" below the tested ones."""
    known = stability_radius(curve, HARMLESS_SHARE * float(curve.target_norm or math.nan))
    return known.value, f"{_sums.sign(known.censored)}{known.value:.2g}"


def markdown(table: Table) -> str:
    """The table as it stands in docs/reproduce.md.

    Args:
        table: as data.
    """

    def text(cell: Cell) -> str:
        return f"{cell:.3g}" if isinstance(cell, float) else str(cell)

    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join([table.caption, "", *(f"| {' | '.join(map(text, line))} |" for line in lines)])
