"""linrec-fig7: sparse inputs rebuilt at every step, eigenvalues on the ring from 0.95 to 1."""

from __future__ import annotations

from holdfast_papers.experiments.linrec._sparse import PERFECT, smallest, sparse
from holdfast_papers.results import Claim


def _claim(worst: dict[int, float]) -> Claim:
    needed = smallest(worst)
    return Claim.decide(
        "modes needed",
        "On the ring (0.95, 1) perfect reconstruction needs around 256 modes",
        needed == 256,
        {"fewest modes": needed, **{f"error, N = {m}": worst[m] for m in (128, 256)}},
        paper={"fewest modes": 256.0},
        otherwise=f"Among powers of two, {needed:g} modes are the fewest with an error below {PERFECT:g} at every step.",
        essential=True,
    )


EXPERIMENT = sparse("linrec-fig7", "Figure 7", 0.95, _claim)
