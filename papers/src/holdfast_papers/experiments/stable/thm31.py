"""stable-thm31: the memory of a diagonal state-space model stays below (d+1) L0 theta_max^2 e^{-beta0 t}.

Then what follows from it: for a target with polynomial memory either the eigenvalues go to the boundary (eq. 55), which the
fits do, or the weights grow exponentially with the horizon (eq. 56).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from holdfast.approximate import ExponentialSum, fit_exponential_sum
from holdfast.figures import Axis, Figure, Line, Panel, Points, Rule
from holdfast.laws import AbstractLaw
from holdfast.nn import DiagonalSSM
from holdfast.stability import memory_bound, weight_bound
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments._shares import exponent
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

ACTIVATIONS = ("identity", "tanh", "relu", "sigmoid", "gelu")
TIMES = ("continuous", "discrete")
TARGET = "(t+1)^-1.5"
ACCURACY = 0.25  # relative, of the sums whose weights are counted


def units(config: Config) -> list[Config]:
    """One an activation, kind of time and number of inputs; one for the fits of a power law; one a least rate."""
    random = {k: config[k] for k in ("models", "width", "horizon")} | {"part": "random"}
    fits = {k: config[k] for k in ("widths", "ends")} | {"part": "fits"}
    held = {"part": "held", "spans": config["spans"]}
    return [
        *split(random, activation=ACTIVATIONS, time=TIMES, inputs=config["inputs"]),
        fits,
        *split(held, rate=config["rates"]),
    ]


def run(config: Config, work: Work) -> Arrays:
    """Both sides of the bound for random models; the slowest eigenvalue of fits; the weights of fits that hold it."""
    return {"random": _random, "fits": _fits, "held": _held}[config["part"]](config, work)


def _random(config: Config, work: Work) -> Arrays:
    ratios, constants, rates, first = [], [], [], None
    for seed in work.steps(range(config["models"]), "models"):
        found = memory_bound(_model(config, seed), config["horizon"])
        first = first or found
        ratios.append(found.ratio)
        constants.append(found.constant)
        rates.append(found.rate)
    assert first is not None
    return {
        "ratio": np.array(ratios),
        "constant": np.array(constants),
        "rate": np.array(rates),
        "time": first.time,
        "measured": first.measured,
    }


def _model(config: Config, seed: int) -> DiagonalSSM:
    """Eigenvalues log-uniform in distance to the boundary, from 0.02 to 2 (0.9 in discrete time), normal other weights."""
    generator = torch.Generator().manual_seed(seed)
    n, d = config["width"], config["inputs"]
    far = 2.0 if config["time"] == "continuous" else 0.9
    distance = 0.02 * (far / 0.02) ** torch.rand(n, generator=generator, dtype=torch.float64)
    lam = -distance if config["time"] == "continuous" else 1 - distance
    with torch.random.fork_rng(devices=[]):
        # short steps in continuous time: the difference quotient is to be the derivative
        layer = DiagonalSSM(
            d, n, parameterization="direct", time=config["time"], activation=config["activation"], bias=True,
            dt=0.1 if config["time"] == "continuous" else 1.0, out_features=1, eigenvalues=lam,
        ).double()  # fmt: skip
    layer.set_eigenvalues_(lam)
    with torch.no_grad():
        for weight in (layer.U, layer.C, layer.b):
            assert weight is not None
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) / weight.shape[-1] ** 0.5)
    return layer


def _fits(config: Config, work: Work) -> Arrays:
    rho = _sums.TARGETS[TARGET]
    ends = np.geomspace(1e-6, 0.5, config["ends"])
    sums = [_best(rho, m, ends) for m in work.steps(config["widths"], "fits")]
    return {
        "widths": np.array(config["widths"]),
        "slowest": np.array([s.rates[s.coefficients != 0].min() for s in sums]),
        # U is all ones and counts as sqrt m; balanced, |U| = |C| = the root of the sum of the weights
        "largest": np.array([max(s.rates.max(), np.sqrt(s.weight_norms["l1"])) for s in sums]),
        "error": np.array([s.l1_error for s in sums]),
    }


def _held(config: Config, work: Work) -> Arrays:
    """The smallest weights of sums within ACCURACY of the power law up to T, with every rate at least beta0."""
    rho, beta0 = _sums.TARGETS[TARGET], config["rate"]
    horizon = np.arange(1, config["spans"] + 1) / beta0
    needed = [_least_weights(rho, beta0, T) for T in work.steps(horizon, "horizons")]
    bound = [weight_bound(beta0, T, (1 - ACCURACY) * float(rho(T))) for T in horizon]
    return {"horizon": horizon, "needed": np.array(needed), "bound": np.array(bound)}


def _least_weights(rho: AbstractLaw, beta0: float, horizon: float) -> float:
    """Root of the least sum of |c_i|, which is |U| = |C| when balanced, of sums on 40 rates from beta0 on: a linear program.

    Its constraints, |s - rho| <= ACCURACY rho, hold at 240 times; between them it is off by another percent at most.
    """
    from scipy.optimize import linprog

    rates = np.geomspace(beta0, _sums.FASTEST, 40)
    t = np.unique(np.concatenate([np.linspace(0, horizon, 120), np.geomspace(1e-2, horizon, 120)]))
    modes = np.exp(-np.outer(t, rates)) / np.asarray(rho(t))[:, None]
    both = np.hstack([modes, -modes])  # c = what is positive minus what is negative
    ends = np.concatenate([np.full(len(t), 1 + ACCURACY), np.full(len(t), ACCURACY - 1)])
    found = linprog(np.ones(2 * len(rates)), np.vstack([both, -both]), ends, method="highs")
    return float(np.sqrt(found.fun)) if found.status == 0 else np.inf


def _best(rho: AbstractLaw, m: int, ends: np.ndarray) -> ExponentialSum:
    """Of the sums with non-negative weights on m rates, geometric from one of `ends` to 4, the one of smallest L1 error."""
    fits = [fit_exponential_sum(rho, method="nonnegative", rates=np.geomspace(end, _sums.FASTEST, m)) for end in ends]
    return min(fits, key=lambda s: s.l1_error)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The bound holds for every model; fits of a power law have no beta0."""
    random = [u for u in units if u.config["part"] == "random"]
    fits = next(u.arrays for u in units if u.config["part"] == "fits")
    ratio = np.concatenate([u.arrays["ratio"] for u in random])
    slope = exponent(fits["widths"], fits["slowest"])
    held = {u.config["rate"]: u.arrays for u in units if u.config["part"] == "held"}
    growth = {rate: _growth(a["horizon"], a["needed"]) / _growth(a["horizon"], a["bound"]) for rate, a in held.items()}
    above = {rate: float((a["needed"] / a["bound"]).min()) for rate, a in held.items()}
    claims = [
        Claim.decide(
            "bound",
            "The memory of a diagonal model with eigenvalues <= -beta0 stays below (d+1) L0 theta_max^2 e^{-beta0 t}",
            bool((ratio <= 1 + 1e-9).all()),  # both sides are rounded
            {
                "largest measured / bound": float(ratio.max()),
                "models": float(len(ratio)),
                "above": float((ratio > 1 + 1e-9).sum()),
            },
            paper={"largest measured / bound": 1.0},
            otherwise="A model's measured memory lies above the bound; the table says for which activation.",
            essential=True,
        ),
        Claim.decide(
            "no bound for direct",
            "Bounded direct weights that approximate a power law have no common beta0: the slowest eigenvalue goes to 0"
            " (eq. 55)",
            _goes_to_zero(slope.below(0.0), fits),
            {
                **slope.numbers("slope of log slowest rate in log m"),
                **{f"slowest rate at m = {m}": float(r) for m, r in zip(fits["widths"], fits["slowest"], strict=True)},
                "largest weight over all m": float(fits["largest"].max()),
                "error at the largest m": float(fits["error"][-1]),
            },
            otherwise="The slope's interval reaches 0, or the errors or the weights do not go as they should; see the table.",
            essential=True,
        ),
        Claim.decide(
            "weights",
            "With eigenvalues <= -beta0 the weights that a power law needs up to T grow at least like e^{beta0 T / 2} T^-0.75 "
            "(eq. 56)",
            min(above.values()) >= 1 and min(growth.values()) >= 1,
            {f"smallest weights / bound, beta0 = {r:g}": v for r, v in above.items()}
            | {f"growth rate / that of the bound, beta0 = {r:g}": v for r, v in growth.items()},
            otherwise="Some fit has smaller weights than eq. 56 allows, or they grow more slowly than it.",
        ),
    ]
    tables = [_by_activation(random), _of_fits(fits)]
    notes = [
        f"Weights: of all sums of exponentials within {ACCURACY:.0%} of {TARGET} up to T, with rates from beta0 to "
        f"{_sums.FASTEST:g}, "
        "those with the least sum of |c_i|, by linear programming. The growth is taken over the later half of the horizons.",
    ]
    return Conclusion(claims, [_curves(random), _ratios(random), _consequences(fits, held)], tables, notes)


def _goes_to_zero(falls: bool | None, fits: Arrays) -> bool | None:
    """The slowest rate falls with m by the interval of its slope, while errors fall and weights stay bounded."""
    bounded = float(fits["largest"].max() / fits["largest"].min()) < 2 and bool((np.diff(fits["error"]) < 0).all())
    return falls if bounded else False


def _growth(horizon: np.ndarray, values: np.ndarray) -> float:
    """The rate of exponential growth over the later half."""
    half = len(horizon) // 2
    return float(np.polyfit(horizon[half:], np.log(values[half:]), 1)[0])


def _by_activation(units: Sequence[Unit]) -> Table:
    rows = [
        (c["activation"], c["time"], c["inputs"], len(u.arrays["ratio"]), float(u.arrays["ratio"].max()))
        for u in units
        for c in [u.config]
    ]
    heads = ("activation", "time", "inputs d", "models", "largest measured / bound")
    return Table("models", "Measured memory over the bound, random models.", heads, rows)


def _of_fits(fits: Arrays) -> Table:
    rows = [
        (int(m), float(r), float(w), float(e))
        for m, r, w, e in zip(fits["widths"], fits["slowest"], fits["largest"], fits["error"], strict=True)
    ]
    heads = ("m", "slowest rate", "largest weight", "L1 error")
    return Table(
        "fits",
        f"Sums of m exponentials with non-negative weights and the smallest error for {TARGET}, rates up to 4.",
        heads,
        rows,
    )


def _curves(units: Sequence[Unit]) -> Figure:
    shown = [u for u in units if u.config["time"] == "continuous" and u.config["activation"] in ("identity", "tanh")]
    panels: list[Panel] = []
    for u in shown[:4]:
        a, c = u.arrays, u.config
        bound = a["constant"][0] * np.exp(-a["rate"][0] * a["time"])
        lines = [
            Line("measured", a["time"], np.maximum(a["measured"], 1e-300), colour=0, legend=not panels),
            Line("bound", a["time"], bound, colour=1, dash="dash", legend=not panels),
        ]
        title = f"{c['activation']}, d = {c['inputs']}"
        panels.append(Panel(title, Axis("time t"), Axis("memory M(t)", log=True), lines))
    return Figure(
        "curves",
        "Measured memory (solid) and the bound (dashed): it lies above at all times and falls as the slowest mode does.",
        panels,
    )


def _ratios(units: Sequence[Unit]) -> Figure:
    layers: list[Points | Rule] = []
    for slot, time in enumerate(TIMES):
        of = [u for u in units if u.config["time"] == time]
        place = [ACTIVATIONS.index(u.config["activation"]) + 0.3 * slot for u in of for _ in u.arrays["ratio"]]
        layers.append(
            Points(f"{time} time", np.array(place), np.concatenate([u.arrays["ratio"] for u in of]), colour=slot)
        )
    names = ", ".join(f"{k} {name}" for k, name in enumerate(ACTIVATIONS))
    panel = Panel("", Axis(names), Axis("measured / bound", log=True, limits=(1e-3, 3)), [*layers, Rule("", y=1.0)])
    return Figure(
        "ratios", "Largest measured memory over the bound, one point for each model: all lie below 1.", [panel]
    )


def _consequences(fits: Arrays, held: dict[float, Arrays]) -> Figure:
    slowest = [Line("slowest rate", fits["widths"], fits["slowest"], colour=0, markers=True, legend=False)]
    needed = []
    for k, (r, a) in enumerate(held.items()):
        needed.append(Line(f"beta0 = {r:g}", a["horizon"], a["needed"], colour=k + 1, markers=True))
        needed.append(Line("eq. 56", a["horizon"], a["bound"], colour=k + 1, dash="dash", legend=k == 0))
    panels = [
        Panel(
            "Fits with bounded weights",
            Axis("width m", log=True, limits=(1, 100)),
            Axis("slowest rate", log=True),
            slowest,
        ),
        Panel("Eigenvalues kept below -beta0", Axis("horizon T"), Axis("weights needed", log=True), needed),
    ]
    caption = (
        f"For {TARGET}: with bounded weights the slowest eigenvalue goes to the boundary 0 as m grows; with eigenvalues kept "
        "away from it the smallest weights of a fit grow exponentially with the horizon, faster than the bound (dashed)."
    )
    return Figure("consequences", caption, panels)


EXPERIMENT = Experiment(
    id="stable-thm31",
    where="Theorem 3.1",
    title="Memory of a diagonal state-space model is bounded by its weights and its slowest eigenvalue",
    summary="Measured memory of random diagonal models against the bound of the theorem, and what it means for a power law: "
    "eigenvalues at the boundary, or exponentially large weights.",
    presets=presets(
        {
            "models": 20, "width": 8, "horizon": 1000, "inputs": [1, 3], "widths": [2, 4, 8, 16], "ends": 33,
            "rates": [0.05, 0.1, 0.2], "spans": 10,
        },
        quick={"models": 3, "horizon": 300, "ends": 17},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 0.1 * config["models"] if config["part"] == "random" else 2.0,
    version=2,
)  # fmt: skip
