"""linrec-fig2: MNIST digits rebuilt from the last state of a random linear recurrence (Figures 1, 2 and 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.figures import Axis, Figure, Heatmap, Line, Panel
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.linrec import _digits
from holdfast_papers.experiments.linrec._rebuild import reach, rebuild
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

PERFECT = 0.05  # relative error of "almost perfect"
READABLE = 0.9  # "satisfactory": of the originals that a fixed classifier reads, the share read from the rebuilt images
Cell = tuple[float, int, str]


def units(config: Config) -> list[Config]:
    """One recurrence a unit."""
    shared = {"images": _digits.source(config), "count": config["count"]}
    return split(shared, r_min=config["r_min"], modes=config["modes"], seed=range(config["draws"]))


def run(config: Config, work: Work) -> Arrays:
    """Both forms of the inverse on the same states."""
    images = _digits.sequences(config["images"], config["count"])
    lam = reconstruct.ring_eigenvalues(config["modes"], config["r_min"], seed=config["seed"])
    reader = _digits.Reader.of(config["images"], config["count"])
    shown = _digits.MOSAIC_IMAGES if config["seed"] == 0 else 0
    arrays = {"original": images[:shown].numpy(), "read": np.array(reader.share_read(images))}
    for form in work.steps(("complex", "real"), "inverses"):
        found = rebuild(images, lam, form, shown, reader.share_read)
        arrays |= {f"{form}.{k}": v for k, v in found.items()} | {f"{form}.reach": np.array(reach(found))}
    return arrays


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The whole disk keeps the recent past, a thin ring the whole image."""
    keys = ("error", "reach", "rank", "read")
    median = {
        (r, m, form): {
            k: float(np.median([u.arrays[f"{form}.{k}"] for u in units if _is(u, r, m)])) for k in keys
        }
        for r in config["r_min"] for m in config["modes"] for form in ("complex", "real")
    }  # fmt: skip
    disk, thin, full = min(config["r_min"]), max(config["r_min"]), _digits.LENGTH
    latest, whole = median[disk, full, "complex"], median[thin, full, "complex"]
    exact = median[thin, full, "real"]["error"]
    half = 512 in config["modes"]
    claims = [
        Claim.decide(
            "disk",
            "With eigenvalues on the whole disk only recent history, the lower part of the image, can be rebuilt",
            latest["reach"] < 2 * full / 3,
            {"pixels rebuilt, N = 784": latest["reach"], "relative error": latest["error"]},
            paper={"pixels rebuilt, N = 784": full / 2},
            otherwise="More than two thirds of the image come back from the whole disk.",
            essential=True,
        ),
        Claim.decide(
            "whole image",
            "With eigenvalues near the unit circle the whole image is rebuilt at N = 784",
            whole["reach"] == full,
            {
                f"pixels rebuilt, r_min = {thin:g}": whole["reach"],
                "by the real form": median[thin, full, "real"]["reach"],
            },
            paper={f"pixels rebuilt, r_min = {thin:g}": float(full)},
            otherwise=f"Re[V^+ x] loses some of the oldest pixels in at least half of the {config['draws']} draws.",
            essential=True,
        ),
        Claim.decide(
            "almost perfect",
            "Near the unit circle the reconstruction is almost perfect at N = 784",
            whole["error"] < PERFECT,
            {f"relative error, r_min = {thin:g}": whole["error"], "the same by the real form": exact},
            otherwise=f"Re[V^+ x] leaves {whole['error']:.2f} of the images, where {PERFECT:g} was asked "
            "for: random eigenvalues lie so close together that the smallest singular values of the square V are below "
            f"rounding. It is the form, not the state: the real form leaves {exact:.0e}.",
            essential=True,
        ),
        _satisfactory(median, float(units[0].arrays["read"]), thin, half),
        Claim.decide(
            "real form",
            "Solved as a real system, 512 modes near the unit circle give the whole image back to rounding",
            median[thin, 512, "real"]["error"] < 1e-9 if half else None,
            {"relative error": median[thin, 512, "real"]["error"]} if half else {},
            otherwise="The real system of 1024 equations leaves more than rounding of 784 unknowns.",
        ),
    ]
    first = {(u.config["r_min"], u.config["modes"]): u.arrays for u in units if u.config["seed"] == 0}
    notes = [
        *_digits.notes(units),
        f"Numbers are medians over {config['draws']} draws of the eigenvalues; figures show the first. The complex form is the "
        "paper's Re[V^+ x]. The real form solves [Re V; Im V] u = [Re x; Im x]: it knows that pixels are real and needs half "
        "the modes.",
        f"Satisfactory is judged by a fixed classifier, {_digits.NEIGHBOURS} nearest neighbours among known images that no "
        "recurrence has seen: of the digits that it reads in the originals, nine in ten must be read in what is rebuilt.",
    ]
    return Conclusion(claims, [_pictures(config, first), _by_pixel(config, first)], [_table(median)], notes)


def _is(unit: Unit, r_min: float, modes: int) -> bool:
    return bool(unit.config["r_min"] == r_min and unit.config["modes"] == modes)


def _satisfactory(median: dict[Cell, dict[str, float]], originals: float, thin: float, half: bool) -> Claim:
    here = median[thin, 512, "complex"] if half else {"read": np.nan, "error": np.nan}
    return Claim.decide(
        "half",
        "Near the unit circle the result is satisfactory already at N = 512",
        here["read"] >= READABLE * originals if half else None,
        {
            "share of digits read, rebuilt": here["read"],
            "share of digits read, originals": originals,
            "relative error": here["error"],
            "real form": median[thin, 512, "real"]["error"] if half else np.nan,
        },
        otherwise=f"A fixed classifier reads {here['read']:.0%} of the rebuilt digits and {originals:.0%} of the originals. "
        "Without the knowledge that pixels are real, 512 numbers determine 512 of 784 unknowns."
        if half
        else "N = 512 is not among the sizes of this preset.",
        essential=True,
    )


def _pictures(config: Config, first: dict[tuple[float, int], Arrays]) -> Figure:
    plain = Axis("")
    panels = []
    for r in config["r_min"]:
        for m in config["modes"]:
            picture = Heatmap.picture(f"N = {m}", _digits.mosaic(first[r, m]["complex.shown"]))
            panels.append(Panel(f"r_min {r:g}, N {m}", plain, plain, [picture], equal=True))
    original = Heatmap.picture("original", _digits.mosaic(next(iter(first.values()))["original"]))
    panels.append(Panel("original", plain, plain, [original], equal=True))
    caption = (
        "Digits rebuilt from the last state by Re[V^+ x]. From the whole disk (r_min 0) only the lowest rows come back; "
        "nearer to the circle and with more modes the whole image does."
    )
    return Figure("digits", caption, panels, columns=len(config["modes"]))


def _by_pixel(config: Config, first: dict[tuple[float, int], Arrays]) -> Figure:
    panels = []
    for form, name in (("complex", "Re[V^+ x]"), ("real", "Stacked real least squares")):
        lines = [
            Line(f"ring ({r:g}, 1)", np.arange(1, 785), np.maximum(first[r, 784][f"{form}.by_time"], 1e-16), colour=k)
            for k, r in enumerate(config["r_min"])
        ]
        axes = Axis("pixel, the oldest first"), Axis("root mean square error", log=True, limits=(1e-16, 2))
        panels.append(Panel(f"{name}, N = 784", *axes, lines))
    caption = "Error of each pixel: thin rings rebuild all of them, the whole disk the latest few hundred."
    return Figure("by-pixel", caption, panels)


def _table(median: dict[Cell, dict[str, float]]) -> Table:
    heads = ("r_min", "N", "form", "relative error", "pixels rebuilt", "digits read", "numerical rank of V")
    rows = [(*cell, a["error"], a["reach"], a["read"], a["rank"]) for cell, a in median.items()]
    return Table(
        "errors",
        "Medians over the draws: relative error over all images, pixels rebuilt up to half their size, share of digits that "
        "the classifier reads.",
        heads,
        rows,
    )


EXPERIMENT = Experiment(
    id="linrec-fig2",
    where="Figures 1, 2 and 3",
    title="Digits rebuilt from the last state of a linear recurrence",
    summary="MNIST images read pixel by pixel by x_k = Lam x_{k-1} + u_k with random eigenvalues on a ring, and all pixels "
    "solved for from the last state by the inverse of the Vandermonde matrix.",
    presets=presets(
        {"download": True, "count": 1000, "draws": 10, "r_min": [0.0, 0.9, 0.99, 0.999], "modes": [128, 256, 512, 784]},
        quick={"download": False, "count": 200, "draws": 3, "r_min": [0.0, 0.99], "modes": [512, 784]},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 6.0 * (config["modes"] / 784) ** 2,
    version=2,
)
