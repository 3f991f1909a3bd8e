"""linrec-real: the condition number of V grows exponentially with N for real eigenvalues, and is 1 for roots of unity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim


def _random(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, n)


REAL: dict[str, Callable[[int, int], np.ndarray]] = {
    "random in (-1, 1)": _random,
    "equally spaced in [-1, 1]": lambda n, seed: np.linspace(-1, 1, n),
    "Chebyshev points": lambda n, seed: np.cos(math.pi * (2 * np.arange(n) + 1) / (2 * n)),
    "equally spaced in (0, 1]": lambda n, seed: np.arange(1, n + 1) / n,
}
LEAST = (
    math.log(2) / 2
)  # per mode: conditions of real symmetric points grow at least like 2^(N/2) (Gautschi and Inglese)
RESOLVED = 1e13  # conditions above are rounding


def run(config: Config, work: Work) -> Arrays:
    """Condition numbers of the square V, the median over the draws."""
    sizes = np.arange(2, config["largest"] + 1)
    arrays = {"sizes": sizes}
    for name, points in work.steps(REAL.items(), "families"):
        values = [[_condition(points(n, s).astype(complex)) for n in sizes] for s in range(config["draws"])]
        arrays[name] = np.median(values, axis=0)
    arrays["roots of unity"] = np.array([_condition(reconstruct.roots_of_unity(int(n)).numpy()) for n in sizes])
    return arrays


def _condition(lam: np.ndarray) -> float:
    return float(np.linalg.cond(reconstruct.vandermonde(torch.from_numpy(lam), len(lam)).numpy()))


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """A straight line in logarithmic scale for every real family, and 1 for the roots."""
    a = units[0].arrays
    growth = {name: _growth(a["sizes"], a[name]) for name in REAL}
    unit = float(np.abs(a["roots of unity"] - 1).max())
    claims = [
        Claim.decide(
            "real",
            "If Lambda is real the condition number of V grows exponentially with N",
            all(slope >= LEAST and straight > 0.99 for slope, straight in growth.values()),
            {f"ln of the factor per mode, {name}": slope for name, (slope, _) in growth.items()}
            | {f"correlation with a straight line, {name}": straight for name, (_, straight) in growth.items()}
            | {"least factor, ln": LEAST},
            otherwise="Some family grows more slowly than 2^(N/2), or not along a straight line in logarithmic scale.",
            essential=True,
        ),
        Claim.decide(
            "complex",
            "With roots of unity as eigenvalues the condition number of V is exactly 1, whatever N is",
            unit < 1e-10,
            {"largest distance from 1": unit},
            paper={"largest distance from 1": 0.0},
            otherwise="It differs from 1 by more than rounding.",
            essential=True,
        ),
    ]
    rows = [(name, *growth[name], float(a[name][-1])) for name in REAL]
    heads = ("eigenvalues", "ln of the factor per mode", "correlation", f"condition at N = {config['largest']}")
    table = Table("growth", "Conditions of the square V, up to where float64 resolves them.", heads, rows)
    return Conclusion(claims, [_figure(a)], [table])


def _growth(sizes: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Slope of log condition against N, and how straight it is, where rounding does not decide."""
    known = values < RESOLVED
    slope = np.polyfit(sizes[known], np.log(values[known]), 1)[0]
    return float(slope), float(np.corrcoef(sizes[known], np.log(values[known]))[0, 1])


def _figure(a: Arrays) -> Figure:
    names = [*REAL, "roots of unity"]
    lines = [Line(name, a["sizes"], np.minimum(a[name], 1e16), colour=k, markers=True) for k, name in enumerate(names)]
    panel = Panel("", Axis("number of modes N"), Axis("condition number of V", log=True, limits=(0.5, 1e16)), lines)
    caption = "Real eigenvalues: straight lines in logarithmic scale, until float64 ends near 1e16. Roots of unity: 1."
    return Figure("conditions", caption, [panel])


EXPERIMENT = Experiment(
    id="linrec-real",
    where="Section 3.1",
    title="Real eigenvalues make reconstruction ill-conditioned",
    summary="Condition numbers of square Vandermonde matrices of real eigenvalues, random and at chosen points, and of roots "
    "of unity, against the number of modes.",
    presets=presets({"largest": 24, "draws": 21}, quick={"draws": 5}),
    run=run,
    conclude=conclude,
)
