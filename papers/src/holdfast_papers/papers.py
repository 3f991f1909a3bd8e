"""The four papers and what goes beyond them, in order, and the sizes at which experiments run: facts of runs and pages."""

from __future__ import annotations

import re
from typing import Literal

PAPERS: dict[str, str] = {
    "iat": "Inverse Approximation Theory for Nonlinear Recurrent Neural Networks",
    "ssm": "State-space Models with Layer-wise Nonlinearity are Universal Approximators with Exponential Decaying Memory",
    "stable": "StableSSM: Alleviating the Curse of Memory in State-space Models through Stable Reparameterization",
    "linrec": "On the Universality of Linear Recurrences Followed by Nonlinear Projections",
}
BEYOND: dict[str, str] = {
    "rates": "Beyond the papers: how fast a memory can be learned",
    "open": "Beyond the papers: questions that they leave open",
}
SECTIONS: dict[str, str] = {**PAPERS, **BEYOND}  # a folder of experiments each, and a part of the page
SHORT_TITLES = {
    "iat": "Inverse Approximation",
    "ssm": "State-space Models",
    "stable": "StableSSM",
    "linrec": "Linear Recurrences",
    "rates": "Learning rates",
    "open": "Open questions",
}
Preset = Literal["quick", "standard", "paper"]
PRESETS: tuple[Preset, ...] = ("quick", "standard", "paper")  # the weakest first


def order_of(id: str) -> tuple[int, str, int, str]:
    """A key that sorts experiments: sections in their own order, others after; figures, tables, the rest, by number."""
    paper, _, name = id.partition("-")
    match = re.match(r"([a-z]*)(\d*)", name)
    letters, digits = match.groups() if match else ("", "")
    place = [*SECTIONS].index(paper) if paper in SECTIONS else len(SECTIONS)
    return place, {"fig": "0", "table": "1"}.get(letters, letters), int(digits or 0), name
