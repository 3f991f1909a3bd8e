"""iat-thma3: the error of linear RNNs with modes e^{-k beta t} falls like m^-alpha or faster (Jackson's theorem).

Conditions: y(t), the response to a constant, has alpha + 1 continuous derivatives that fall faster than e^{-beta t}. The
targets rho = y' = (1 - t/T)^(alpha + 1) up to T, 0 after it, have alpha continuous derivatives and no more: no smoothness
beyond what the theorem asks for helps them. The error is the functional norm, the L1 norm of the kernel difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast import laws
from holdfast.approximate import convergence
from holdfast.figures import Axis, Figure, Layer, Line, Panel, Points
from holdfast_papers.experiments._shares import Slope, exponent
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Cell, Table
from holdfast_papers.results import Claim

ROUNDING = 1e-12  # of the norm of rho: below it the projection is rounding
FROM = 8  # widths from which the order is measured: the rate is asymptotic


def run(config: Config, work: Work) -> Arrays:
    """The L1 error of sums with rates beta, 2 beta, ..., m beta, for every m, by projection and by the library's fit.

    With s = e^{-beta t} a sum is s p(s), p a polynomial of degree m - 1, and its L1 error that of p against rho / s on
    (0, 1), over beta: the theorem's own proof. Legendre polynomials carry it to any m; the modes themselves are dependent
    to rounding from m = 16 or so.
    """
    rho = laws.Finite(config["support"], config["alpha"] + 1.0)
    beta = config["beta"]
    errors = [_projected(rho, beta, m, config["nodes"]) for m in work.steps(config["orders"], "widths")]
    few = [m for m in config["orders"] if m <= config["fitted"]]
    fits = convergence(rho, few, "least_squares", config["horizon"], rates=lambda m: beta * np.arange(1, m + 1))
    return {
        "orders": np.array(config["orders"]),
        "errors": np.array(errors),
        "fitted_orders": np.array(few),
        "fitted": fits.l1,
        "norm": np.array(rho.norm),
    }


def _projected(rho: laws.AbstractLaw, beta: float, m: int, nodes: int) -> float:
    """The L1 distance of rho / s from its projection on polynomials in s of degree m - 1, over beta."""
    x, weights = _rule(nodes)
    s = (x + 1) / 2
    q = np.asarray(rho(-np.log(s) / beta)) / s
    basis = np.polynomial.legendre.legvander(x, m - 1)
    coefficients = (basis * weights[:, None]).T @ q * (2 * np.arange(m) + 1) / 2
    return float(np.abs(q - basis @ coefficients) @ weights / 2 / beta)


def _rule(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre rule of 16 points on equal panels of [-1, 1], `nodes` points in all."""
    x, w = np.polynomial.legendre.leggauss(16)
    panels = nodes // 16
    left = -1 + 2 * np.arange(panels) / panels
    return (left[:, None] + (x + 1) / panels).ravel(), np.tile(w / panels, panels)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The measured order is at least alpha, for every alpha."""
    order: dict[int, Slope] = {}
    whole: dict[int, float] = {}
    constant: dict[int, np.ndarray] = {}
    rows: list[Sequence[Cell]] = []
    for unit in units:
        alpha, a = unit.config["alpha"], unit.arrays
        m, errors = _trusted(a)
        late = m >= FROM
        order[alpha] = exponent(m[late], 1 / errors[late])
        whole[alpha] = exponent(m, 1 / errors).value
        # C(alpha) gamma / beta of the theorem: what error m^alpha must stay below
        constant[alpha] = errors * m**alpha
        rows.append(
            (
                alpha,
                order[alpha].value,
                whole[alpha],
                float(constant[alpha][0]),
                float(constant[alpha].max()),
                int(m[-1]),
            )
        )
    claims = [
        Claim.decide(
            f"alpha = {alpha}",
            f"With {alpha + 1} derivatives of y the error falls like m^-{alpha} or faster",
            order[alpha].above(alpha),
            {
                **order[alpha].numbers("measured order"),
                "measured order over all m": whole[alpha],
                "error m^alpha, largest / first": float(constant[alpha].max() / constant[alpha][0]),
            },
            paper={"measured order": float(alpha)},
            otherwise="The interval of the measured order reaches below alpha, over the widths that could be computed.",
            essential=True,
        )
        for alpha in order
    ]
    heads = ("alpha", "measured order", "over all m", "error m^alpha at the smallest m", "largest", "largest m")
    tables = [Table("orders", "Measured order of convergence beside alpha.", heads, rows)]
    notes = [
        "The theorem bounds the best sum of width m from above; an order above alpha does not contradict it, and a projection, "
        "whose L1 error is above the best, can only lower the measured order. The order is that of m >= "
        f"{FROM}: before it a kernel with many derivatives is not resolved, and its error falls more slowly.",
    ]
    return Conclusion(claims, [_figure(units)], tables, notes)


def _trusted(a: Arrays) -> tuple[np.ndarray, np.ndarray]:
    keep = a["errors"] > ROUNDING * a["norm"]
    return a["orders"][keep].astype(float), a["errors"][keep]


def _figure(units: Sequence[Unit]) -> Figure:
    layers: list[Layer] = []
    for k, unit in enumerate(units):
        alpha = unit.config["alpha"]
        m, errors = _trusted(unit.arrays)
        late = m >= FROM
        layers += [
            Line(f"alpha = {alpha}", m, errors, colour=k, markers=True),
            Line(f"m^-{alpha}", m[late], errors[late][0] * (m[late] / m[late][0]) ** -alpha, colour=k, dash="dash"),
            Points("fitted by holdfast", unit.arrays["fitted_orders"], unit.arrays["fitted"], colour=k, legend=k == 0),
        ]
    panel = Panel("", Axis("width m", log=True), Axis("L1 error of the kernel", log=True), layers)
    caption = (
        f"Error against width (solid), and m^-alpha from m = {FROM} on (dashed): every curve falls faster than its bound. "
        "Points: the library's least-squares fit of the modes."
    )
    return Figure("errors", caption, [panel])


EXPERIMENT = Experiment(
    id="iat-thma3",
    where="Theorem A.3",
    title="Linear RNNs approximate smooth, exponentially decaying memory at the rate m^-alpha",
    summary="Kernels with exactly alpha continuous derivatives fitted by m modes with rates beta, 2 beta, ..., and the order "
    "at which the error falls with m.",
    presets=presets(
        {
            "alphas": [1, 2, 3, 4], "orders": [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128], "fitted": 12, "beta": 0.5,
            "support": 4.0, "horizon": 100.0, "nodes": 32000,
        },
        quick={"alphas": [1, 2, 3], "orders": [2, 4, 8, 16, 32, 64], "nodes": 8000},
    ),
    units=lambda config: split(
        {k: config[k] for k in ("orders", "fitted", "beta", "support", "horizon", "nodes")}, alpha=config["alphas"]
    ),
    run=run,
    conclude=conclude,
    cost=lambda config: 0.2 * len(config["orders"]),
)  # fmt: skip
