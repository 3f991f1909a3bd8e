"""linrec-psi: inputs that no known basis makes sparse, with a basis Psi learned from examples (Sec. 3.2: Psi can be learned).

Digits of 784 pixels pass a random linear recurrence with 2 P modes on the ring (r_min, 1), and come back from the last state by
alpha = Omega^+ x, u = Psi alpha. Psi holds P columns: learned from training images (their singular vectors), or the slowest
Fourier functions. The criteria, on images that were not learned from, five draws of the recurrence: the learned basis has the
smaller error at every P (95% interval of the paired ratio), and its error is at most 3 times the share of the images that its
columns miss, which no readout can beat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from holdfast.data import mnist
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import reconstruct
from holdfast_papers.experiments._paired import smaller, together
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.linrec import _digits
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

BASES = ("learned", "fourier")
NEAR = 3.0  # times the share that the learned columns miss


def units(config: Config) -> list[Config]:
    """One a draw of the recurrence and number of functions."""
    shared = {name: config[name] for name in ("r_min", "train", "test")} | {"images": _digits.source(config)}
    return split(shared, functions=config["functions"], seed=range(config["seeds"]))


def run(config: Config, work: Work) -> Arrays:
    """Relative errors of the images with both bases, and the shares that their columns miss."""
    if config["images"] == "mnist":
        train = mnist("train").sequences(torch.float64)[: config["train"]]
        test = _digits.sequences("mnist", config["test"])
    else:
        pixels = _digits.small_digits()[0]
        test, train = pixels[: config["test"]], pixels[config["test"] :]
    count = config["functions"]
    lam = reconstruct.ring_eigenvalues(2 * count, config["r_min"], seed=config["seed"])
    states = reconstruct.encode(test, lam)
    found: dict[str, np.ndarray] = {}
    bases = {"learned": reconstruct.learned_basis(train, count)[0], "fourier": reconstruct.fourier_basis(784, count)}
    for name, psi in bases.items():
        rebuilt = reconstruct.sparse_inputs(states, lam, psi, form="real")
        missed = float((test - test @ psi @ psi.mT).norm() / test.norm())
        found |= {f"error.{name}": np.array(rebuilt.error(test)), f"missed.{name}": np.array(missed)}
        found[f"condition.{name}"] = np.array(rebuilt.condition)
    return found


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Learned against Fourier, at every number of functions."""
    by_count = {p: [u.arrays for u in units if u.config["functions"] == p] for p in config["functions"]}
    arms = {p: {b: [float(a[f"error.{b}"]) for a in found] for b in BASES} for p, found in by_count.items()}
    each = {p: smaller(arms[p], "learned", ["fourier"], factor=True) for p in arms}
    worst = {p: max(float(a["error.learned"] / a["missed.learned"]) for a in found) for p, found in by_count.items()}
    claims = [
        Claim.decide(
            "smaller",
            "Inputs come back from the state with a smaller error through a learned basis than through Fourier functions",
            together([found.holds for found in each.values()]),
            {f"{k}, P = {p}": v for p, found in each.items() for k, v in found.numbers.items()},
            otherwise="".join(f"P = {p}: {found.why}" for p, found in each.items()),
        ),
        Claim.decide(
            "near the best",
            f"The error through a learned basis is at most {NEAR:g} times the share of the inputs that its columns miss",
            max(worst.values()) <= NEAR if min(map(len, by_count.values())) >= 3 else None,
            {f"largest error / missed, P = {p}": value for p, value in worst.items()},
            otherwise="What the columns miss comes back magnified by Omega^+.",
        ),
    ]
    rows = [
        (
            p, 2 * p, basis, float(np.median([a[f"error.{basis}"] for a in found])), float(found[0][f"missed.{basis}"]),
            math.log10(float(np.median([a[f"condition.{basis}"] for a in found]))),
        )
        for p, found in by_count.items()
        for basis in BASES
    ]  # fmt: skip
    heads = (
        "functions P",
        "modes N",
        "basis",
        "relative error, median",
        "share that the columns miss",
        "log10 condition",
    )
    lines = [
        Line(
            b,
            [*by_count],
            [np.median([a[f"error.{b}"] for a in found]) for found in by_count.values()],
            colour=k,
            markers=True,
        )
        for k, b in enumerate(BASES)
    ]
    figure = Figure(
        "errors", "Relative error of images that the basis was not learned from, by the number of its functions.",
        [Panel("", Axis("functions P", log=True), Axis("relative error", log=True), lines)],
    )  # fmt: skip
    table = Table("errors", "Medians over the draws of the recurrence.", heads, rows)
    return Conclusion(claims, [figure], [table], _digits.notes(units))


EXPERIMENT = Experiment(
    id="linrec-psi",
    where="Section 3.2",
    title="A basis that is learned from examples",
    summary="Digits come back from the last state of a random linear recurrence through a basis that was learned from other "
    "digits, against the slowest Fourier functions.",
    presets=presets(
        {"download": True, "functions": [16, 32, 64, 128], "r_min": 0.99, "train": 5000, "test": 200, "seeds": 5},
        quick={"download": False, "functions": [16, 32], "train": 500, "test": 50, "seeds": 3},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 2 + 0.02 * config["functions"],
)
