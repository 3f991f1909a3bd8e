"""linrec-fig5: the same digits with the N-th roots of unity as eigenvalues: exact from N = L on, aliased below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.figures import Axis, Figure, Heatmap, Panel
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.linrec import _digits
from holdfast_papers.experiments.linrec._rebuild import rebuild
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

EXACT = 1e-12  # 784 additions of numbers in [0, 1] and back: some hundred units of rounding


def units(config: Config) -> list[Config]:
    """One size a unit."""
    shared = {"images": _digits.source(config), "count": config["count"]}
    return split(shared, modes=config["modes"])


def run(config: Config, work: Work) -> Arrays:
    """Rebuilt images, and what aliasing says they must be."""
    images = _digits.sequences(config["images"], config["count"])
    lam = reconstruct.roots_of_unity(config["modes"])
    arrays = rebuild(images, lam, "complex", _digits.MOSAIC_IMAGES)
    aliased = _aliased(images.numpy(), config["modes"])
    whole = reconstruct.decoder(lam, images.shape[1])(reconstruct.encode(images, lam)).numpy()
    gap = np.linalg.norm(whole - aliased) / np.linalg.norm(images.numpy())
    return {**arrays, "original": images[: _digits.MOSAIC_IMAGES].numpy(), "alias_gap": np.array(gap)}


def _aliased(images: np.ndarray, modes: int) -> np.ndarray:
    """Inputs N steps apart meet the same power of lam: the smallest solution gives each the mean of its class."""
    lag = np.arange(images.shape[1])[::-1] % modes
    total = np.zeros((len(images), modes))
    np.add.at(total.T, lag, images.T)
    return total[:, lag] / np.bincount(lag, minlength=modes)[lag]


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Exact at N = 784 with condition number 1; artefacts below are aliases."""
    by_modes = {u.config["modes"]: u.arrays for u in units}
    full = by_modes[_digits.LENGTH]
    below = {m: a for m, a in by_modes.items() if m < _digits.LENGTH}
    gap = max(float(a["alias_gap"]) for a in by_modes.values())
    claims = [
        Claim.decide(
            "exact",
            "With the 784-th roots of unity the images are rebuilt perfectly",
            float(full["error"]) < EXACT,
            {"relative error": float(full["error"])},
            paper={"relative error": 0.0},
            otherwise="The error is above rounding.",
            essential=True,
        ),
        Claim.decide(
            "condition",
            "With the 784-th roots of unity the condition number of the Vandermonde matrix is 1",
            abs(float(full["condition"]) - 1) < EXACT,
            {"condition of V'V": float(full["condition"])},
            paper={"condition of V'V": 1.0},
            otherwise="It differs from 1 by more than rounding.",
            essential=True,
        ),
        Claim.decide(
            "artefacts",
            "For smaller N the reconstruction has artefacts",
            all(float(a["error"]) > 0.1 for a in below.values()),
            {f"relative error, N = {m}": float(a["error"]) for m, a in below.items()},
            otherwise="; ".join(
                f"N = {m}: {float(a['error']):.3f}" for m, a in below.items() if float(a["error"]) <= 0.1
            )
            + " of the image, where artefacts count from a tenth on. Only the first and the last 784 - N pixels alias, and "
            "MNIST's images are empty at their ends.",
            essential=True,
        ),
        Claim.decide(
            "aliasing",
            "The artefacts are aliases: inputs N steps apart are added up, and each gets the mean of its class",
            gap < EXACT,
            {"difference from the means, relative": gap},
            otherwise="What is rebuilt is not the mean over inputs N steps apart.",
        ),
    ]
    rows = [(m, float(a["error"]), int(a["rank"]), float(a["condition"])) for m, a in by_modes.items()]
    table = Table("sizes", "Roots of unity.", ("N", "relative error", "rank of V", "condition of V'V"), rows)
    return Conclusion(claims, [_pictures(by_modes)], [table], _digits.notes(units))


def _pictures(by_modes: dict[int, Arrays]) -> Figure:
    plain = Axis("")
    pictures = {f"N = {m}": a["shown"] for m, a in by_modes.items()}
    pictures["original"] = by_modes[_digits.LENGTH]["original"]
    panels = [
        Panel(name, plain, plain, [Heatmap.picture(name, _digits.mosaic(images))], equal=True)
        for name, images in pictures.items()
    ]
    caption = (
        "Digits rebuilt with roots of unity: below N = 784 shifted copies lie over each other, fewer the nearer N is; "
        "at 784 none."
    )
    return Figure("digits", caption, panels, columns=3)


EXPERIMENT = Experiment(
    id="linrec-fig5",
    where="Figure 5",
    title="Digits rebuilt with roots of unity as eigenvalues",
    summary="MNIST images rebuilt by Re[V^+ x] from the last state of a linear recurrence whose eigenvalues are the N-th "
    "roots of unity, compared with what aliasing predicts.",
    presets=presets(
        {"download": True, "count": 1000, "modes": [128, 256, 512, 700, 784]},
        quick={"download": False, "count": 100, "modes": [256, 512, 700, 784]},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 7.0 * (config["modes"] / 784) ** 2,
)
