"""stable-rates: the largest learning rate that still trains, by parameterization and by the memory length of the task.

Beyond the paper, which says that best allows larger learning rates (App. F) and tries one language model. The target is the
functional of white noise with memory e^(-t/tau), of variance 1; a layer of real modes learns it from rates that reach down
to 1/(4 tau). A rate trains when |k - rho|^2 ends below a tenth of |rho|^2, k the layer's impulse response.

Beside the rate eta stands delta = eta |f'(w)| / |f(w)| of the slowest mode at the start: the relative change of its rate in
a step of AdamW. A larger eta of one parameterization is a change of units where delta is the same for all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel, Points
from holdfast_papers.experiments._paired import larger
from holdfast_papers.experiments._shares import Slope, exponent
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.rates import _largest, _linear
from holdfast_papers.experiments.stable import _comparison as compare
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

FALLS, KEEPS = -0.5, -0.2  # slopes of log rate against log tau: below the first it falls, above the second it does not
LEAD = 0.5  # doublings by which the largest rate must lead: half a step of the grid of rates
SPREAD = 3.0  # largest over smallest delta of the parameterizations that counts as one delta
RECURRENT, ALL = "recurrent weights", "all weights"
STABLE = ("best", "exp", "softplus")
Rates = dict[tuple[str, str, int], np.ndarray]  # by what the rate is of, parameterization and tau; one for each seed


def units(config: Config) -> list[Config]:
    """One for each set of weights and memory length, with all parameterizations, rates and seeds at once."""
    names = ("seeds", "states", "batch", "steps", "lr", "lowest", "doublings")
    return split({name: config[name] for name in names}, of=[RECURRENT, ALL], tau=config["taus"])


def run(config: Config, work: Work) -> Arrays:
    """The largest rate of the grid lowest 2^k that trains; half the lowest where none does."""
    rates = np.array([_rate(config, k) for k in range(config["doublings"] + 1)])
    names = compare.PARAMETERIZATIONS
    errors = _largest.errors(
        {**config, "optimizer": "adamw", "clip": 1.0, "train_inputs": True},
        names,
        torch.from_numpy(rates).expand(len(names), -1),
        config["of"] == ALL,
        lambda done: work.progress(done),
    )
    return {"errors": errors, "largest": np.stack([_largest.largest(rates, own) for own in errors])}


def _rate(config: Config, k: int) -> float:
    return float(config["lowest"] * 2.0**k)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Direct's largest rate falls with memory, that of stable ones does not, and best's is the largest at long memory."""
    by_rate: Rates = {
        (unit.config["of"], name, unit.config["tau"]): unit.arrays["largest"][k]
        for unit in sorted(units, key=lambda unit: unit.config["tau"])
        for k, name in enumerate(compare.PARAMETERIZATIONS)
    }
    floor = config["lowest"] / 2  # where not even the lowest rate trains
    slopes = {
        (of, name): _slope(by_rate, of, name, config["taus"], floor)
        for of in (RECURRENT, ALL)
        for name in compare.PARAMETERIZATIONS
    }
    few = len(config["taus"]) < 3 or config["seeds"] < compare.SEEDS
    claims = [
        _falls(slopes[RECURRENT, "direct"], few),
        *(_keeps(name, slopes[RECURRENT, name], few) for name in STABLE),
        _best_is_largest(by_rate, RECURRENT, config, few),
        _best_is_largest(by_rate, ALL, config, few),
        _one_delta(by_rate, config, few),
    ]
    top = _rate(config, config["doublings"])
    notes = [
        f"Learning rates are powers of 2 from {config['lowest']:.2g} to {top:,.4g}, and all are tried. The largest that trains "
        "is the upper end of the longest run of neighbouring rates that all train; where none trains, half the lowest "
        "is drawn.",
        f"{config['states']} real modes, AdamW with a warm-up of a tenth of {config['steps']} steps and a cosine to 0, "
        f"clipping at 1, batch {config['batch']}, windows of 4 tau inputs with the answer at the end. First panel: the "
        "other weights stay "
        f"at {config['lr']:g}. Eigenvalues start with rates from 1/(4 tau) to {_linear.FASTEST:g}, input weights so that "
        "every mode has the same variance.",
    ]
    return Conclusion(claims, [_figure(by_rate, config, floor)], [_table(by_rate, config, slopes)], notes)


def _slope(by_rate: Rates, of: str, name: str, taus: Sequence[int], floor: float) -> Slope:
    """The slope of log rate against log tau over all seeds."""
    pairs = [(tau, max(rate, floor)) for tau in taus for rate in by_rate[of, name, tau]]
    return exponent([t for t, _ in pairs], [r for _, r in pairs])


def _falls(slope: Slope, few: bool) -> Claim:
    return Claim.decide(
        "direct",
        "The largest recurrent rate of direct weights falls with the memory of the task, at least as its square root",
        None if few else slope.below(FALLS),
        slope.numbers(),
        otherwise=_few() if few else "The interval of the slope reaches above -1/2.",
        essential=True,
    )


def _keeps(name: str, slope: Slope, few: bool) -> Claim:
    return Claim.decide(
        name,
        f"The largest recurrent rate of {name} does not fall with the memory of the task",
        None if few else slope.above(KEEPS),
        slope.numbers(),
        otherwise=_few() if few else f"The interval of the slope reaches below {KEEPS:g}.",
        essential=True,
    )


def _best_is_largest(by_rate: Rates, of: str, config: Config, few: bool) -> Claim:
    """Paired by seed, in doublings; by more than half a doubling, half a step of the grid of rates."""
    tau = max(config["taus"])
    floor = config["lowest"] / 2
    names = compare.PARAMETERIZATIONS
    doublings = {n: np.log2(np.maximum(by_rate[of, n, tau], floor)).tolist() for n in names}
    found = larger(doublings, "best", [n for n in names if n != "best"], by=LEAD)
    top = bool((by_rate[of, "best", tau] >= _rate(config, config["doublings"])).all())
    return Claim.decide(
        f"best is largest, {of}",
        f"At the longest memory, tau = {tau}, best trains at a larger rate of {of} than every other parameterization, by more "
        "than half a doubling",
        None if few else found.holds,
        {f"doublings, {pair}": value for pair, value in found.numbers.items()},
        otherwise=_few() if few else found.why + ("best trains at the largest rate that is tried." if top else ""),
    )


def delta(name: str, tau: int, rate: np.ndarray) -> np.ndarray:
    """The relative change of the slowest mode's rate in a step of AdamW at the start."""
    return np.asarray(rate * _largest.relative_slope(name, _largest.SLOWEST / tau))


def _one_delta(by_rate: Rates, config: Config, few: bool) -> Claim:
    """Geometric means over tau and seeds; one delta for all parameterizations, within a factor of 3."""
    # of each seed, the mean of log delta over tau
    logs = {
        name: np.mean([np.log(delta(name, tau, by_rate[RECURRENT, name, tau])) for tau in config["taus"]], axis=0)
        for name in compare.PARAMETERIZATIONS
    }
    means = {name: math.exp(values.mean()) for name, values in logs.items()}
    first, last = max(means, key=lambda name: means[name]), min(means, key=lambda name: means[name])
    spread = means[first] / means[last]
    low, high = _t_interval(logs[first] - logs[last])
    without_clip = [value for name, value in means.items() if name != "clip"]
    return Claim.decide(
        "one delta",
        "At the largest recurrent rate the relative change of the slowest rate in a step is the same for all "
        "parameterizations, "
        "within a factor of 3",
        None if few or low <= math.log(SPREAD) < high else spread <= SPREAD,
        {
            **{f"delta of {name}": value for name, value in means.items()},
            "largest over smallest": spread,
            "lower end": math.exp(low),
            "upper end": math.exp(high),
            "without clip": max(without_clip) / min(without_clip),
        },
        otherwise=_few() if few else "The geometric means over tau and seeds differ by more than a factor of 3.",
        essential=True,
    )


def _t_interval(values: np.ndarray) -> tuple[float, float]:
    """95% interval of the mean over seeds."""
    from scipy.stats import t

    mean, error = compare.mean_and_error(values)
    half = float(t.ppf(0.975, len(values) - 1)) * error if len(values) > 1 else 0.0
    return mean - half, mean + half


def _few() -> str:
    return f"Needs at least 3 memory lengths and {compare.SEEDS} seeds."


def _figure(by_rate: Rates, config: Config, floor: float) -> Figure:
    panels = []
    for of in (RECURRENT, ALL):
        layers: list[Any] = []
        for k, name in enumerate(compare.PARAMETERIZATIONS):
            logs = [np.log2(np.maximum(by_rate[of, name, tau], floor)) for tau in config["taus"]]
            ends = [compare.mean_and_error(values) for values in logs]
            middle, low, high = ([2.0 ** (m + sign * 2 * e) for m, e in ends] for sign in (0, -1, 1))
            layers.append(
                Line(name, config["taus"], middle, low=low, high=high, colour=k, markers=True, legend=of == RECURRENT)
            )
            every = [(tau, 2.0**value) for tau, values in zip(config["taus"], logs, strict=True) for value in values]
            layers.append(Points(name, [t for t, _ in every], [r for _, r in every], colour=k, legend=False))
        axes = Axis("memory length tau of the task", log=True), Axis("largest learning rate that trains", log=True)
        panels.append(Panel(f"Rate of {of}", *axes, layers))
    caption = (
        "The largest learning rate that still trains, by the memory length of the task. Points are seeds, lines their "
        "geometric means, bands 2 standard errors. First panel: the rate of the recurrent weights alone; second: that of "
        "all weights."
    )
    return Figure("largest-rates", caption, panels)


def _table(by_rate: Rates, config: Config, slopes: dict[tuple[str, str], Slope]) -> Table:
    heads = (
        "rate of", "parameterization", "tau", "largest rate, geometric mean", "smallest", "largest", "slope in tau",
        "delta of the slowest mode",
    )  # fmt: skip
    rows: list[list[Any]] = []
    for (of, name, tau), rates in by_rate.items():
        mean = float(np.exp(np.log(rates).mean()))
        ends = [float(rates.min()), float(rates.max())]
        rows.append([of, name, tau, mean, *ends, slopes[of, name].value, float(delta(name, tau, np.array(mean)))])
    caption = (
        "Largest rates over the seeds, and delta: that rate times |f'(w)| / |f(w)| of the slowest mode at the start, "
        "the relative "
        "change of its rate in a step."
    )
    return Table("rates", caption, heads, rows)


def cost(config: Config) -> float:
    """Seconds of a unit."""
    copies = len(compare.PARAMETERIZATIONS) * config["seeds"] * (config["doublings"] + 1)
    return float(config["steps"] * (0.002 + 4e-8 * copies * config["tau"]))


EXPERIMENT = Experiment(
    id="stable-rates",
    where="Beyond the paper",
    title="The largest learning rate that still trains, by parameterization and memory length",
    summary="Layers of real modes learn linear functionals of growing memory at rising learning rates, from the same "
    "eigenvalues under five parameterizations; what is kept is the largest rate at which they still learn.",
    presets=presets(
        {
            "taus": [4, 8, 16, 32, 64, 128, 256, 512, 1024], "seeds": 10, "states": 16, "batch": 64, "steps": 1000,
            "lr": 0.01, "lowest": 2.0**-12, "doublings": 23,
        },
        # every other memory length, and 150 steps of 32 windows; tau up to 1,024 stays; 10 seeds leave half a doubling open
        standard={"taus": [4, 16, 64, 256, 1024], "batch": 32, "steps": 150, "seeds": 40},
        quick={"taus": [4, 32], "seeds": 1, "batch": 8, "steps": 40, "lowest": 2.0**-8, "doublings": 7},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
    version=3,
)  # fmt: skip
