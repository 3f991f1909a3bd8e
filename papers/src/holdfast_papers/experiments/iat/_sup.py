"""E_m(beta) as the sup that it is: draws and gradient ascent at the points of a bisection, on a horizon that grows with m.

At a radius the error is the larger of `draws` random perturbations and of projected gradient ascent from eight starts (the
worst draw, the gradient and its opposite, all entries up and down, three random ones) with `ascent` steps. Radii are bisected
in log beta until the level, a quarter of the target's norm on the same sequences, is crossed between two that differ by 5%;
errors that jump to infinity are bracketed in the same way. E_m(0) is taken on the same horizon. Points that were measured are
kept in the unit's scratch folder, so that a killed unit continues where it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast._files import write_atomically
from holdfast.data import load_task
from holdfast.nn import ContinuousRNN
from holdfast.stability import Ball, PerturbationCurve, Search, StabilityVerdict, assess_stability, perturbation_error
from holdfast.stability._verdict import HARMLESS_SHARE
from holdfast.stability.perturbation._curve import stability_radius
from holdfast_papers.experiments.base import Config, Unit, Work

TOLERANCE = 1.05  # ratio of the two radii that a crossing lies between
FIXED_STARTS = 5  # of the ascent, beside the random ones: the worst draw, the gradient, its opposite, all up, all down
STARTS = 8
SETTINGS: Config = {
    "draws": 30,
    "ascent": 40,
    "per_unit": 25,
    "least_steps": 400,
    "sequences": 8,
    "least": 1e-5,
    "most": 10.0,
}
Error = Callable[[float], float]


def horizon(config: Config) -> int:
    """Steps that a student is measured on: 25 per unit and at least as many as it was trained on."""
    return max(config["per_unit"] * config["m"], config["least_steps"])


def noise(config: Config) -> tuple[Tensor, Tensor]:
    """White noise over the horizon and the functional of (t+1)^-1.5 of it."""
    task = load_task("functional", law="power", constants=[1.5], length=horizon(config), dt=config["dt"])
    batch = task.batch("test", torch.arange(config["sequences"]))
    return batch.inputs, batch.targets


def bisected(error: Error, level: float, least: float, most: float) -> dict[float, float]:
    """Errors at the radii of a bisection in log beta, by radius, until the crossing of `level` is known to 5%.

    Balls are nested: a larger error at a smaller radius counts at every larger one.

    Args:
        error: a lower bound of E(beta); it may be infinite.
        level: that is crossed.
        least: smallest radius.
        most: largest radius.
    """
    found = {most: error(most)}
    if found[most] <= level:
        return found
    found[least] = error(least)
    low, high = least, most
    while found[least] <= level and high / low > TOLERANCE:
        middle = math.sqrt(low * high)
        found[middle] = error(middle)
        low, high = (middle, high) if found[middle] <= level else (low, middle)
    return found


def measured(
    model: ContinuousRNN, data: tuple[Tensor, Tensor], config: Config, work: Work, *, scope: str, name: str = "sup"
) -> dict[str, np.ndarray]:
    """The curve of a bisection as arrays, named as in `_curves`.

    Args:
        model: a student.
        data: inputs and targets over its horizon.
        config: the unit's, with SETTINGS.
        work: the unit's.
        scope: "all", or "recurrent" for the free weights of W alone.
        name: of the arrays.
    """
    x, y = data
    kept = _Points(work.scratch, name)
    with torch.no_grad():
        centre = float((model(x)[0] - y).abs().max())
    norm = float(y.abs().max())
    if not math.isfinite(centre) or centre > HARMLESS_SHARE * norm:
        return _arrays(name, {config["least"]: math.inf}, centre if math.isfinite(centre) else math.inf, norm)

    def error(beta: float) -> float:
        if beta not in kept.errors:
            work.progress(0.9 + 0.1 * len(kept.errors) / 12, f"beta = {beta:.2g}")
            how = Search(
                "adversarial", draws=config["draws"], restarts=STARTS - FIXED_STARTS, steps=config["ascent"],
                seed=config.get("seed", 0),
            )  # fmt: skip
            curve = perturbation_error(model, x, y, [beta], norm=Ball(scope=scope), search=how)
            kept.add(beta, float(curve.errors[0]))
        return kept.errors[beta]

    found = bisected(error, HARMLESS_SHARE * norm, config["least"], config["most"])
    return _arrays(name, found, centre, norm)


class _Points:
    """Errors by radius, kept in a file while the unit runs."""

    def __init__(self, scratch: Path | None, name: str) -> None:
        self.file = None if scratch is None else scratch / f"{name}.json"
        self.errors: dict[float, float] = {}
        if self.file is not None and self.file.is_file():
            pairs = json.loads(self.file.read_text())
            self.errors = {float(beta): math.inf if error is None else float(error) for beta, error in pairs}

    def add(self, beta: float, error: float) -> None:
        self.errors[beta] = error
        if self.file is not None:
            pairs = [[b, e if math.isfinite(e) else None] for b, e in self.errors.items()]
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.file, json.dumps(pairs).encode())


def failed(config: Config, name: str = "sup") -> dict[str, np.ndarray]:
    """The curve of a run that diverged."""
    return _arrays(name, {config["least"]: math.inf}, math.inf, math.nan)


def _arrays(name: str, found: Mapping[float, float], centre: float, norm: float) -> dict[str, np.ndarray]:
    betas = sorted(found)
    errors = np.maximum.accumulate([found[beta] for beta in betas])
    return {
        f"{name}_radii": np.array(betas), f"{name}_errors": np.maximum(errors, centre),
        f"{name}_centre": np.array(centre), f"{name}_norm": np.array(norm),
    }  # fmt: skip


def family(units: Sequence[Unit], name: str = "sup") -> dict[int, PerturbationCurve]:
    """For each width the curve of the seed with the median radius, and the median of the seeds' E(0)."""
    return {m: _median([u for u in units if u.config["m"] == m], name) for m in sorted({u.config["m"] for u in units})}


def _median(units: Sequence[Unit], name: str) -> PerturbationCurve:
    curves = [_curve(unit, name) for unit in units]
    # that of the data, the same for all seeds; runs that diverged have none, and any number is below their error
    norm = next((c.target_norm for c in curves if c.target_norm is not None), 1.0)
    radii = [stability_radius(c, HARMLESS_SHARE * norm).value for c in curves]
    middle = curves[int(np.argsort(radii, kind="stable")[(len(radii) - 1) // 2])]
    centre = float(np.median([c.at_zero for c in curves]))
    return PerturbationCurve(middle.radii, middle.errors, centre=centre, target_norm=norm)


def _curve(unit: Unit, name: str) -> PerturbationCurve:
    a = unit.arrays
    norm = float(a[f"{name}_norm"])
    return PerturbationCurve(
        a[f"{name}_radii"], a[f"{name}_errors"].astype(np.float64), centre=float(a[f"{name}_centre"]),
        target_norm=norm if math.isfinite(norm) else None,
    )  # fmt: skip


def verdict(units: Sequence[Unit], name: str = "sup") -> StabilityVerdict:
    """The rule of `assess_stability` on the medians of the seeds."""
    return assess_stability(family(units, name))


def note(config: Config) -> str:
    """How the sup was searched, in words."""
    return (
        f"The sup over a ball is the larger of {config['draws']} random draws and of projected gradient ascent from {STARTS} "
        f"starts with {config['ascent']} steps, on {config['sequences']} sequences of {config['per_unit']} steps a unit, at "
        f"least {config['least_steps']}; E(0) is taken on the same sequences. Radii are bisected to 5%: at every width the "
        "seed with the median radius is shown."
    )
