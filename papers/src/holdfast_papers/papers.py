"""The four papers, their order, and the sizes at which their experiments run: facts that runs and pages share."""

from __future__ import annotations

import re
from typing import Literal

PAPERS: dict[str, str] = {
    "iat": "Inverse Approximation Theory for Nonlinear Recurrent Neural Networks",
    "ssm": "State-space Models with Layer-wise Nonlinearity are Universal Approximators with Exponential Decaying Memory",
    "stable": "StableSSM: Alleviating the Curse of Memory in State-space Models through Stable Reparameterization",
    "linrec": "On the Universality of Linear Recurrences Followed by Nonlinear Projections",
}
SHORT_TITLES = {
    "iat": "Inverse Approximation",
    "ssm": "State-space Models",
    "stable": "StableSSM",
    "linrec": "Linear Recurrences",
}
Preset = Literal["quick", "standard", "paper"]
PRESETS: tuple[Preset, ...] = ("quick", "standard", "paper")  # the weakest first


def order_of(id: str) -> tuple[int, str, int, str]:
    """A key that sorts experiments: papers in their own order, others after; figures, tables, the rest, by number."""
    paper, _, name = id.partition("-")
    match = re.match(r"([a-z]*)(\d*)", name)
    letters, digits = match.groups() if match else ("", "")
    place = [*PAPERS].index(paper) if paper in PAPERS else len(PAPERS)
    return place, {"fig": "0", "table": "1"}.get(letters, letters), int(digits or 0), name
