"""stable-rates: the largest learning rate that still trains, by parameterization and by the memory length of the task.

Beyond the paper, which says that best allows larger learning rates (App. F) and tries one language model. The target is the
functional of white noise with memory e^(-t/tau), of variance 1; a layer of real modes learns it from rates that reach down to
1/(4 tau). A rate trains when the error on test data ends below a tenth of the target's mean square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from holdfast import laws
from holdfast.data._functional import FunctionalTask
from holdfast.figures import Axis, Figure, Line, Panel, Points
from holdfast.nn import DiagonalSSM
from holdfast.stability.perturbation._curve import slope_of
from holdfast_papers.experiments._runs import Spectrum, record
from holdfast_papers.experiments._training import trained
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.stable import _comparison as compare
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

TRAINED_BELOW = 0.1  # of the target's mean square: what a run that trains ends below
FALLS, KEEPS = -0.5, -0.2  # slopes of log rate against log tau: below the first it falls, above the second it does not
FASTEST = 0.8  # at a rate of 1 the weight of exp is 0, and gradient over weight infinite
RECURRENT, ALL = "recurrent weights", "all weights"
STABLE = ("best", "exp", "softplus")
Rates = dict[tuple[str, str, int], np.ndarray]  # by what the rate is of, parameterization and tau; one for each seed
KEPT = ("margin.start", "margin.end", "moved", "ratio.max")


def units(config: Config) -> list[Config]:
    """One search for each set of weights, parameterization, memory length and seed."""
    names = ("states", "batch", "steps", "test", "lr", "lowest", "doublings")
    shared = {name: config[name] for name in names}
    axes = {"parameterization": compare.PARAMETERIZATIONS, "tau": config["taus"], "seed": range(config["seeds"])}
    return split(shared, of=[RECURRENT, ALL], **axes)


def run(config: Config, work: Work) -> Arrays:
    """The largest rate of the grid lowest 2^k that trains, by bisection; "largest" is 0 where not even the lowest does."""
    arrays: dict[int, Arrays] = {}

    def trains(k: int) -> bool:
        part = len(arrays) / (math.log2(config["doublings"] + 1) + 2)
        work.progress(part, f"rate {_rate(config, k):.3g}")
        arrays[k] = _train(config, _rate(config, k), work)
        return bool(arrays[k]["error"] <= TRAINED_BELOW)

    most = largest(trains, config["doublings"])
    tried = sorted(arrays)
    kept = arrays[max(most, 0)]
    return {
        "largest": np.array(_rate(config, most) if most >= 0 else 0.0),
        "tried": np.array([_rate(config, k) for k in tried]),
        "errors": np.array([float(arrays[k]["error"]) for k in tried]),
        **{key: kept[key] for key in KEPT},
    }


def largest(trains: Callable[[int], bool], most: int) -> int:
    """The largest k in 0 .. most that trains, where all below it are taken to; -1 where 0 does not.

    Args:
        trains: tries one.
        most: the largest to try.
    """
    if trains(most):
        return most
    low, high = -1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if trains(middle) else (low, middle)
    return low


def _rate(config: Config, k: int) -> float:
    return float(config["lowest"] * 2.0**k)


def _train(config: Config, rate: float, work: Work) -> Arrays:
    """One run from the same start; its error relative to the target's mean square, inf where it diverged."""
    tau, seed = config["tau"], config["seed"]
    torch.manual_seed(seed)
    lam = compare.falling(0.25 / tau, FASTEST, config["states"])
    model = DiagonalSSM(
        1,
        config["states"],
        parameterization=config["parameterization"],
        activation="identity",
        bias=False,
        eigenvalues=lam,
    )
    compare.level_(model)
    task = _task(tau, config["test"])
    settings = {
        "lr": config["lr"] if config["of"] == RECURRENT else rate, "recurrent_lr": rate, "weight_decay": 0.0,
        "batch": config["batch"], "steps": config["steps"], "seed": seed, "warmup": config["steps"] // 10,
        "log_every": max(1, config["steps"] // 10), "monitor_every": max(1, config["steps"] // 10),
    }  # fmt: skip
    start = Spectrum.of(model)
    run = trained(model, task, settings, work, name=f"rate-{rate:g}")
    kept = record(run, start, Spectrum.of(model), work)
    error = float(kept["test.loss"]) / mean_square(task) if "test.loss" in kept else math.inf
    return {**kept, "error": np.array(error)}


def _task(tau: int, test: int) -> FunctionalTask:
    law = laws.ExponentialMixture((1 / tau,), (math.sqrt(-math.expm1(-2 / tau)),))
    return FunctionalTask(law, length=4 * tau, valid=0, test=test)


def mean_square(task: FunctionalTask) -> float:
    """Of the target over a sequence: the mean over t of sum_{s <= t} k_s^2, for white noise of variance 1."""
    return float(task.kernel.square().cumsum(0).mean())


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Direct's largest rate falls with memory, that of stable ones does not, and best's is the largest at long memory."""
    by_rate: Rates = {}
    for of in (RECURRENT, ALL):
        for name in compare.PARAMETERIZATIONS:
            for tau in config["taus"]:
                by_rate[of, name, tau] = np.array([float(u.arrays["largest"]) for u in _of(units, of, name, tau)])
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
        _largest(by_rate, RECURRENT, config, few),
        _largest(by_rate, ALL, config, few),
    ]
    top = _rate(config, config["doublings"])
    notes = [
        f"Rates are tried by bisection on a grid of factors of 2 from {config['lowest']:.2g} to {top:.3g}: the largest "
        "that trains, where the next does not. Where not even the lowest trains, half of it is drawn.",
        f"{config['states']} real modes, AdamW with a warm-up of a tenth of {config['steps']} steps and a cosine to 0, "
        f"clipping at 1, batch {config['batch']}, sequences of 4 tau steps. First panel: the other weights stay "
        f"at {config['lr']:g}. Eigenvalues start with rates from 1/(4 tau) to {FASTEST:g}, input weights so that "
        "every mode has the same variance.",
    ]
    return Conclusion(claims, [_figure(by_rate, config, floor)], [_table(by_rate, units, config, slopes)], notes)


def _of(units: Sequence[Unit], of: str, name: str, tau: int) -> list[Unit]:
    wanted = (of, name, tau)
    same = [u for u in units if (u.config["of"], u.config["parameterization"], u.config["tau"]) == wanted]
    return sorted(same, key=lambda u: u.config["seed"])


Slope = tuple[float, tuple[float, float]]


def _slope(by_rate: Rates, of: str, name: str, taus: Sequence[int], floor: float) -> Slope:
    """The slope of log rate against log tau over all seeds, with its 95% interval; of two points it is without end."""
    pairs = [(tau, max(rate, floor)) for tau in taus for rate in by_rate[of, name, tau]]
    if len(pairs) < 3:
        (first, low), (last, high) = pairs[0], pairs[-1]
        return math.log(high / low) / math.log(last / first), (-math.inf, math.inf)
    return slope_of(np.array([t for t, _ in pairs], float), np.array([r for _, r in pairs]), 0.95)


def _falls(slope: Slope, few: bool) -> Claim:
    value, (low, high) = slope
    return Claim.decide(
        "direct",
        "The largest recurrent rate of direct weights falls with the memory of the task, at least as its square root",
        None if few else high < FALLS,
        {"slope": value, "lower end": low, "upper end": high},
        otherwise=_few() if few else "The interval of the slope reaches above -1/2.",
        essential=True,
    )


def _keeps(name: str, slope: Slope, few: bool) -> Claim:
    value, (low, high) = slope
    return Claim.decide(
        name,
        f"The largest recurrent rate of {name} does not fall with the memory of the task",
        None if few else low > KEEPS,
        {"slope": value, "lower end": low, "upper end": high},
        otherwise=_few() if few else f"The interval of the slope reaches below {KEEPS:g}.",
        essential=True,
    )


def _largest(by_rate: Rates, of: str, config: Config, few: bool) -> Claim:
    """Paired by seed, in doublings; more than half a doubling on average, 2 standard errors from 0."""
    tau = max(config["taus"])
    floor = config["lowest"] / 2
    doublings = {n: np.log2(np.maximum(by_rate[of, n, tau], floor)) for n in compare.PARAMETERIZATIONS}
    leads = {
        n: compare.mean_and_error(doublings["best"] - doublings[n]) for n in compare.PARAMETERIZATIONS if n != "best"
    }
    numbers = {f"doublings of best above {n}": mean for n, (mean, _) in leads.items()}
    numbers |= {f"standard error, {n}": error for n, (_, error) in leads.items()}
    top = bool((by_rate[of, "best", tau] >= _rate(config, config["doublings"])).all())
    return Claim.decide(
        f"best is largest, {of}",
        f"At the longest memory, tau = {tau}, best trains at a larger rate of {of} than every other parameterization",
        None if few else all(mean > max(0.5, 2 * error) for mean, error in leads.values()),
        numbers,
        otherwise=_few()
        if few
        else "Some other trains at as large a rate, within half a doubling or 2 standard errors."
        + (" best trains at the largest rate that is tried." if top else ""),
    )


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


def _table(by_rate: Rates, units: Sequence[Unit], config: Config, slopes: dict[tuple[str, str], Slope]) -> Table:
    heads = (
        "rate of", "parameterization", "tau", "largest rate, geometric mean", "smallest", "largest", "slope in tau",
        "slowest rate, start", "slowest rate, end", "modes moved", "grad/weight, largest", "tokens/s",
    )  # fmt: skip
    rows: list[list[Any]] = []
    for (of, name, tau), rates in by_rate.items():
        runs = _of(units, of, name, tau)
        mean = float(2.0 ** np.log2(np.maximum(rates, config["lowest"] / 2)).mean())
        kept = [compare.median(runs, key) for key in KEPT]
        numbers = [mean, float(rates.min()), float(rates.max()), slopes[of, name][0], *kept]
        rows.append([of, name, tau, *numbers, round(compare.speed(runs))])
    caption = "Largest rates over the seeds (0: none trains), and what the recurrence did at that rate, medians."
    return Table("rates", caption, heads, rows)


def cost(config: Config) -> float:
    """Seconds of a unit: about five runs."""
    return 5 * config["steps"] * (0.004 + 2e-7 * 4 * config["tau"] * config["batch"] * config["states"] / 16)


EXPERIMENT = Experiment(
    id="stable-rates",
    where="Beyond the paper",
    title="The largest learning rate that still trains, by parameterization and memory length",
    summary="Layers of real modes learn linear functionals of growing memory at rising learning rates, from the same "
    "eigenvalues under five parameterizations; what is kept is the largest rate at which they still learn.",
    presets=presets(
        {
            "taus": [4, 8, 16, 32, 64, 128, 256, 512], "seeds": 10, "states": 16, "batch": 64, "steps": 1000, "test": 256,
            "lr": 0.01, "lowest": 2.0**-12, "doublings": 19,
        },
        standard={"taus": [4, 16, 64, 256], "seeds": 5, "batch": 16, "steps": 150, "test": 64},
        quick={
            "taus": [4, 32], "seeds": 1, "batch": 8, "steps": 40, "test": 16, "lowest": 2.0**-8, "doublings": 7,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
)  # fmt: skip
