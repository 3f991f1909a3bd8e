"""Perturbation errors of trained students, and the verdict on a family of widths: the median of the seeds decides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from holdfast.nn import ContinuousRNN
from holdfast.stability import Ball, PerturbationCurve, Search, StabilityVerdict, assess_stability, perturbation_error
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Config, Unit

# how weights move, and how the error is measured. "all" is iat, Def. 3.4: every weight in its own ball, the largest error
# over sequences and times. "recurrent" moves W's free weights alone. "authors" is what the authors' code did.
MEASURES: dict[str, dict[str, Any]] = {
    "all": {},
    "recurrent": {"norm": Ball(scope="recurrent")},
    "authors": {"norm": "max-abs", "metric": "mean-square"},
}
AUTHORS: dict[str, Any] = {"where": "sphere", "running_maximum": True}  # of the search, under "authors"
UNSTABLE = "Unstable would be lines that turn up at smaller beta the wider the network is."  # for captions
SHARE = 0.125  # of the target's norm: an error at beta = 0 that still counts as an approximation


def measured(
    model: ContinuousRNN, data: tuple[Tensor, Tensor], betas: np.ndarray, config: Config, names: Iterable[str]
) -> dict[str, np.ndarray]:
    """The curves of some of MEASURES as arrays."""
    found: dict[str, np.ndarray] = {"radii": betas}
    for name in names:
        own = AUTHORS if name == "authors" else {}
        search = Search(draws=config["draws"], seed=config["seed"], **own)
        found |= _arrays(name, model, *data, betas, search=search, **MEASURES[name])
    return found


def failed(betas: np.ndarray, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The curves of a run that diverged: an infinite error at every radius."""
    found = {"radii": betas}
    for name in names:
        found |= _failed(name, betas)
    return found


def _failed(name: str, betas: np.ndarray) -> dict[str, np.ndarray]:
    return _named(name, np.full(len(betas), np.inf), math.inf, math.nan)


def _arrays(
    name: str, model: ContinuousRNN, x: Tensor, y: Tensor, betas: np.ndarray, **how: Any
) -> dict[str, np.ndarray]:
    curve = perturbation_error(model, x, y, betas, **how)
    assert curve.target_norm is not None
    return _named(name, curve.errors, curve.at_zero, curve.target_norm)


def _named(name: str, errors: np.ndarray, centre: float, norm: float) -> dict[str, np.ndarray]:
    return {f"{name}_errors": errors, f"{name}_centre": np.array(centre), f"{name}_norm": np.array(norm)}


def betas_of(config: Config, more: int = 0) -> np.ndarray:
    """smallest 2^k for k = 0, ..., doublings, and `more` doublings after them."""
    return config["smallest"] * 2.0 ** np.arange(config["doublings"] + more + 1)


def family(units: Sequence[Unit], name: str, largest: float = math.inf) -> dict[int, PerturbationCurve]:
    """The curves by width up to the radius `largest`: at every radius the median of the seeds' errors."""
    curves = {}
    for m in sorted({u.config["m"] for u in units}):
        runs = [u.arrays for u in units if u.config["m"] == m]
        betas = runs[0]["radii"]
        keep = betas <= largest * (1 + 1e-9)
        errors = np.median([run[f"{name}_errors"] for run in runs], 0)
        norms = [float(run[f"{name}_norm"]) for run in runs if np.isfinite(run[f"{name}_norm"])]
        curves[m] = PerturbationCurve(
            betas[keep],
            errors[keep],
            centre=float(np.median([run[f"{name}_centre"] for run in runs])),
            # that of the data, the same for all seeds; runs that diverged have none, and any number is below their error
            target_norm=norms[0] if norms else 1.0,
        )
    return curves


def verdict(units: Sequence[Unit], name: str, largest: float = math.inf) -> StabilityVerdict:
    """The rule of `assess_stability` on the medians of the seeds."""
    return assess_stability(family(units, name, largest))


def decided(*expected: tuple[StabilityVerdict, str]) -> bool | None:
    """As `_sums.decided`, but open wherever fewer than four widths approximate."""
    if any(found.verdict == "no approximation" for found, _ in expected):
        return None
    return _sums.decided(*expected)


def kept(arrays: Arrays, *others: Mapping[str, np.ndarray]) -> Arrays:
    """Arrays joined, the errors as float32: a curve is drawn, and read to three digits."""
    joined: dict[str, np.ndarray] = dict(arrays)
    for other in others:
        joined |= {name: a.astype(np.float32) if name.endswith("_errors") else a for name, a in other.items()}
    return joined
