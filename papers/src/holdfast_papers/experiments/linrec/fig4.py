"""linrec-fig4: reconstruction error and condition number against the number of modes and the ring, error by timestamp."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.linrec import _digits
from holdfast_papers.experiments.linrec._rebuild import falls, reach, rebuild
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

Key = tuple[float, int]  # r_min and N
Grid = dict[Key, list[Arrays]]
Draws = Mapping[Key, Sequence[float]]


def units(config: Config) -> list[Config]:
    """One draw of the eigenvalues per unit."""
    shared = {"images": _digits.source(config), "count": config["count"]}
    return split(shared, r_min=config["r_min"], modes=config["modes"], seed=range(config["seeds"]))


def run(config: Config, work: Work) -> Arrays:
    """The paper's form, Re[V^+ x]."""
    images = _digits.sequences(config["images"], config["count"])
    lam = reconstruct.ring_eigenvalues(config["modes"], config["r_min"], seed=config["seed"])
    return rebuild(images, lam, "complex")


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Error and condition fall with N and r_min; the disk covers the latest pixels only."""
    grid: Grid = {}
    for u in units:
        grid.setdefault((u.config["r_min"], u.config["modes"]), []).append(u.arrays)
    rings = config["r_min"]
    error, noise, condition = (
        {cell: float(np.median([a[key] for a in found])) for cell, found in grid.items()}
        for key in ("error", "noise", "condition")
    )
    covered = {cell: float(np.median([reach(a) for a in found])) for cell, found in grid.items()}
    thin = max(rings)
    claims = [
        *_orders(config, {key: [float(a["error"]) for a in found] for key, found in grid.items()}, error, noise),
        _conditions(config, {key: [float(a["condition"]) for a in found] for key, found in grid.items()}, thin),
        Claim.decide(
            "timestamps",
            "For r_min far below 1 the reconstruction covers only the last few hundred tokens",
            100 <= covered[min(rings), _digits.LENGTH] < _digits.LENGTH * 2 / 3,
            {f"tokens rebuilt, r_min = {r:g}, N = {_digits.LENGTH}": covered[r, _digits.LENGTH] for r in rings},
            otherwise="It covers fewer than a hundred or more than two thirds of the tokens.",
            essential=True,
        ),
    ]
    rows = [(r, m, error[r, m], noise[r, m], condition[r, m], covered[r, m]) for r, m in grid]
    heads = ("r_min", "N", "relative error", "for white noise", "condition of V'V", "tokens rebuilt")
    table = Table("grid", f"Medians over {config['seeds']} draws of the eigenvalues.", heads, rows)
    notes = [
        *_digits.notes(units),
        "With N < L the matrix V'V is singular: its condition number is infinite, and what a program prints for it is "
        "rounding. It is shown where the smallest singular value stands above rounding.",
    ]
    return Conclusion(claims, [_against_modes(config, grid), _by_time(config, grid)], [table], notes)


def _orders(config: Config, draws: Draws, error: Mapping[Key, float], noise: Mapping[Key, float]) -> list[Claim]:
    """The error by N, from the disk to the thinnest ring, and at every step of r_min, draw by draw."""
    rings, modes = config["r_min"], config["modes"]
    thin, wide = max(rings), min(rings)
    by_modes = falls(*([draws[r, m] for m in modes] for r in rings))
    ends = falls(*([draws[wide, m], draws[thin, m]] for m in modes))
    by_ring = falls(*([draws[r, m] for r in rings] for m in modes))
    unsure = [m for m in modes if not falls([draws[r, m] for r in rings]).holds]
    return [
        Claim.decide(
            "modes",
            "The error falls as the hidden state grows, at every step of N and every r_min",
            by_modes.holds,
            by_modes.numbers | {f"N = {m}, ring {thin:g}": error[thin, m] for m in modes},
            otherwise=by_modes.why,
            essential=True,
        ),
        Claim.decide(
            "ring",
            "The error is smaller with r_min near 1 than with eigenvalues on the whole disk, at every N",
            ends.holds,
            ends.numbers | {f"r_min = {r:g}, N = {_digits.LENGTH}": error[r, _digits.LENGTH] for r in rings},
            otherwise=ends.why,
            essential=True,
        ),
        Claim.decide(
            "every step",
            "The error falls with every step of r_min towards 1",
            by_ring.holds,
            by_ring.numbers
            | {f"r_min = {r:g}, N = {m}": error[r, m] for m in unsure or [_digits.LENGTH] for r in rings},
            otherwise=f"{by_ring.why}Not at N = {', '.join(map(str, unsure))}. It is the images: their margins are empty, and "
            "a ring that is not too thin keeps the recent pixels, where the strokes are, better than the old ones. White "
            "noise in their place: " + _noise_in_words(noise, rings, unsure) + ".",
            essential=True,
        ),
    ]


def _conditions(config: Config, draws: Draws, thin: float) -> Claim:
    """By N from N = L on, where it is finite, and by r_min at the largest N."""
    most, enough = max(config["modes"]), [m for m in config["modes"] if m >= _digits.LENGTH]
    found = falls([draws[thin, m] for m in enough], [draws[r, most] for r in config["r_min"]])
    shown = [(r, most) for r in config["r_min"]] + [(thin, m) for m in enough if m != most]
    return Claim.decide(
        "condition",
        "The condition number of V'V shows the same pattern: from N = L on it falls with N and with r_min towards 1",
        found.holds,
        found.numbers | {f"log10, r_min = {r:g}, N = {m}": math.log10(np.median(draws[r, m])) for r, m in shown},
        otherwise=found.why,
        essential=True,
    )


def _noise_in_words(noise: Mapping[Key, float], rings: Sequence[float], which: Sequence[int]) -> str:
    return "; ".join(f"N = {m}, r_min {min(rings):g} to {max(rings):g}: " + ", ".join(f"{noise[r, m]:.3f}" for r in rings)
                     for m in which)  # fmt: skip


def _against_modes(config: Config, grid: Grid) -> Figure:
    modes = np.array(config["modes"])
    kinds = {
        "error": Axis("relative error", log=True, limits=(1e-15, 2)),
        "condition": Axis("condition number of V'V", log=True, limits=(1, 1e28)),
    }
    panels = []
    for key, y in kinds.items():
        lines = []
        for k, r in enumerate(config["r_min"]):
            found = np.array([[a[key] for a in grid[r, m]] for m in config["modes"]])
            values = np.maximum(found, 1e-16)
            middle, low, high = np.median(values, 1), values.min(1), values.max(1)
            lines.append(Line(f"ring ({r:g}, 1)", modes, middle, low=low, high=high, colour=k, markers=True))
        panels.append(Panel("", Axis("number of modes N", log=True), y, lines))
    caption = (
        "First panel: error over the images, median and range over draws of the eigenvalues. Second: condition number, "
        "infinite (triangles at the upper edge) below N = 784 and wherever rounding hides it."
    )
    return Figure("modes-and-ring", caption, panels)


def _by_time(config: Config, grid: Grid) -> Figure:
    panels = []
    for m in [m for m in config["modes"] if m in (256, 512, _digits.LENGTH)]:
        lines = []
        for k, r in enumerate(config["r_min"]):
            square = np.mean([a["by_time"] ** 2 for a in grid[r, m]], axis=0)
            lines.append(Line(f"ring ({r:g}, 1)", np.arange(1, len(square) + 1), np.sqrt(square), colour=k))
        panels.append(Panel(f"N = {m}", Axis("timestamp"), Axis("root mean square error"), lines))
    caption = "Error by timestamp: the latest tokens are rebuilt first, the oldest only by thin rings."
    return Figure("timestamps", caption, panels, columns=3)


EXPERIMENT = Experiment(
    id="linrec-fig4",
    where="Figure 4",
    title="Reconstruction error and conditioning by state size and ring",
    summary="MNIST images rebuilt by Re[V^+ x] from the last state of linear recurrences with random eigenvalues: mean "
    "error, condition number of V'V and error by timestamp over state sizes and inner radii.",
    presets=presets(
        {
            "download": True, "count": 10_000, "seeds": 10, "r_min": [0.0, 0.9, 0.99, 0.999],
            "modes": [128, 256, 512, 784, 1568],
        },
        standard={"count": 1000, "seeds": 30},  # ten draws leave 4 of 14 steps of r_min open
        quick={"download": False, "count": 200, "seeds": 3, "r_min": [0.0, 0.99], "modes": [256, 784, 1568]},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 4.0 * (min(config["modes"], 900) / 784) ** 2,
)  # fmt: skip
