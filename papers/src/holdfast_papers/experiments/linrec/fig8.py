"""linrec-fig8: sparse inputs rebuilt at every step, eigenvalues on the ring from 0.99 to 1."""

from __future__ import annotations

from holdfast_papers.experiments.linrec._sparse import PERFECT, smallest, sparse
from holdfast_papers.results import Claim


def _claim(worst: dict[int, float]) -> Claim:
    needed = smallest(worst)
    return Claim.decide(
        "modes needed",
        "On the ring (0.99, 1) 64 modes are enough for perfect reconstruction",
        needed <= 64,
        {"fewest modes": needed, **{f"error, N = {m}": worst[m] for m in (32, 64)}},
        paper={"fewest modes": 64.0},
        otherwise=f"Among powers of two, {needed:g} modes are the fewest with an error below {PERFECT:g} at every step.",
        essential=True,
    )


EXPERIMENT = sparse("linrec-fig8", "Figure 8", 0.99, _claim)
