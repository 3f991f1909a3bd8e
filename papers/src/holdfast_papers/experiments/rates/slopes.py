"""rates-slopes: how the largest learning rate that trains depends on the memory of the task, for AdamW and for plain SGD.

A mode of rate r = -f(w) feels the relative change delta = s |dw| of its rate, s = |f'(w)| / |f(w)|: 1/r for direct, 1 for
exp, about 1 for softplus, about 2 sqrt(a r) for best. AdamW moves w by about eta in a step, whatever the gradient is, so
that a bound on delta is a bound eta ~ 1/s: with r ~ 1/tau the slopes of log eta in log tau are -1, 0, 0 and 1/2.

Plain SGD moves w by eta times the gradient. Let a mode be normalized to unit variance, k(t) = C sqrt(2 r) e^(-r t). Then
dk/dw = C f' (1/(2r) - t) sqrt(2 r) e^(-r t) where the normalization follows r, and -C f' t sqrt(2 r) e^(-r t) where it
stays that of the start, as here. Its L2 norm is C |f'| sqrt(2 r) / (2 r^(3/2)) = C s / sqrt 2, for every r: the gradient of
|k - rho|^2 is at most sqrt 2 C s |k - rho| and its curvature at the minimum is C^2 s^2. A step changes the rate by delta =
eta s |gradient| ~ eta C s^2 |k - rho|, and descent is stable for eta < 2 / (C s)^2. Either way eta ~ 1/s^2, the slopes of
SGD are twice those of AdamW: -2, 0, 0 and 1. Input weights are held: those of a mode of rate r are about sqrt(2 r), so that
plain descent on them has a curvature of 1/r, which at tau = 1024 diverges before any recurrent weight does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.stability.perturbation._curve import slope_of
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.experiments.rates import _largest
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

NAMES = ("best", "exp", "softplus", "direct")
PREDICTED = {
    "adamw": {"best": 0.5, "exp": 0.0, "softplus": 0.0, "direct": -1.0},
    "sgd": {"best": 1.0, "exp": 0.0, "softplus": 0.0, "direct": -2.0},
}
MARGIN = 0.2  # of a slope
POWERS = {"adamw": 1, "sgd": 2}  # eta s^p is the size that the grid of rates is laid around
SHOWN = {"adamw": "AdamW", "sgd": "SGD"}
Rates = dict[tuple[str, str, int], np.ndarray]  # by optimizer, parameterization and tau; one for each seed


def units(config: Config) -> list[Config]:
    """One for each optimizer and memory length, with all parameterizations, rates and seeds at once."""
    shared = drop(config, "taus", "optimizers", "sgd_lr")
    axes = {"optimizer": config["optimizers"], "tau": config["taus"]}
    return [{**unit, "lr": config["sgd_lr" if unit["optimizer"] == "sgd" else "lr"]} for unit in split(shared, **axes)]


def rates_of(config: Config) -> np.ndarray:
    """Powers of sqrt 2 (parameterizations, rates), from `low` to `high` times 1/s^p of the slowest mode at the start."""
    power = POWERS[config["optimizer"]]
    scales = [_largest.relative_slope(name, _largest.SLOWEST / config["tau"]) ** -power for name in NAMES]
    first = [_largest.half_doublings(config["low"] * scale, config["high"] * scale) for scale in scales]
    count = min(len(row) for row in first)
    return np.stack([row[:count] for row in first])


def run(config: Config, work: Work) -> Arrays:
    """The largest rate that trains, for each parameterization and seed."""
    rates = rates_of(config)
    clip = math.inf if config["optimizer"] == "sgd" else 1.0
    settings = {**config, "clip": clip, "train_inputs": False}
    errors = _largest.errors(settings, NAMES, torch.from_numpy(rates), progress=lambda done: work.progress(done))
    return {
        "rates": rates,
        "errors": errors,
        "largest": np.stack([_largest.largest(r, e) for r, e in zip(rates, errors, strict=True)]),
    }


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Slopes of log rate in log tau with their intervals, against the predictions."""
    found: Rates = {
        (unit.config["optimizer"], name, unit.config["tau"]): unit.arrays["largest"][k]
        for unit in units
        for k, name in enumerate(NAMES)
    }
    slopes = {(o, n): _slope(found, o, n, config["taus"]) for o in config["optimizers"] for n in NAMES}
    few = len(config["taus"]) < 5 or config["seeds"] < 3
    claims = [_claim(optimizer, name, slope, few) for (optimizer, name), slope in slopes.items()]
    edges = sum(int(_at_edge(unit)) for unit in units)
    notes = [
        f"{config['states']} real modes started with rates from 1/(4 tau) to 0.8, windows of 4 tau inputs, batch "
        f"{config['batch']}, "
        f"{config['steps']} steps with a warm-up of a tenth and a cosine to 0; readouts at {config['lr']:g} (AdamW) "
        f"and {config['sgd_lr']:g} (SGD), input "
        "weights stay as they "
        "are; SGD without clipping. Rates are powers of sqrt 2; the largest is the upper end of the longest row that trains.",
        f"Runs whose largest rate lies at an end of the rates that were tried: {edges} of "
        f"{len(units) * len(NAMES) * config['seeds']}.",
    ]
    return Conclusion(claims, [_figure(found, config)], [_table(found, slopes, config)], notes)


def _at_edge(unit: Unit) -> int:
    rates, largest = unit.arrays["rates"], unit.arrays["largest"]
    return int(((largest <= rates[:, :1]) | (largest >= rates[:, -1:])).sum())


Slope = tuple[float, tuple[float, float]]


def _slope(found: Rates, optimizer: str, name: str, taus: Sequence[int]) -> Slope:
    pairs = [(tau, rate) for tau in taus for rate in found[optimizer, name, tau]]
    if len(pairs) < 3:
        (first, low), (last, high) = pairs[0], pairs[-1]
        return float(np.log(high / low) / np.log(last / first)), (-np.inf, np.inf)
    return slope_of(np.array([t for t, _ in pairs], float), np.array([r for _, r in pairs]), 0.95)


def _claim(optimizer: str, name: str, slope: Slope, few: bool) -> Claim:
    value, (low, high) = slope
    wanted = PREDICTED[optimizer][name]
    inside = wanted - MARGIN <= low and high <= wanted + MARGIN
    apart = low > wanted + MARGIN or high < wanted - MARGIN
    holds = None if few else True if inside else False if apart else None
    reason = "Needs at least 5 memory lengths and 3 seeds." if few else (
        "The interval of the slope lies apart from the prediction by more than 0.2."
        if apart else "The interval of the slope reaches beyond 0.2 from the prediction, and overlaps that range."
    )  # fmt: skip
    return Claim.decide(
        f"{name}, {SHOWN[optimizer]}",
        f"The largest recurrent rate of {name} under {SHOWN[optimizer]} grows with the memory of the task as tau^({wanted:g})",
        holds,
        {"slope": value, "lower end": low, "upper end": high, "prediction": wanted},
        otherwise=reason,
        essential=True,
    )


def _figure(found: Rates, config: Config) -> Figure:
    panels = []
    for optimizer in config["optimizers"]:
        layers = []
        for k, name in enumerate(NAMES):
            logs = [np.log(found[optimizer, name, tau]) for tau in config["taus"]]
            mean = [float(np.exp(v.mean())) for v in logs]
            low, high = ([float(np.exp(end(v))) for v in logs] for end in (np.min, np.max))
            first = optimizer == config["optimizers"][0]
            layers.append(Line(name, config["taus"], mean, low=low, high=high, colour=k, markers=True, legend=first))
        axes = Axis("memory length tau of the task", log=True), Axis("largest recurrent rate that trains", log=True)
        panels.append(Panel(SHOWN[optimizer], *axes, layers))
    caption = (
        "The largest recurrent learning rate at which a layer of real modes still learns, by the memory of the task. Lines are "
        "geometric means over the seeds, bands their range. AdamW is bounded by the relative change of the slowest rate in a "
        "step, eta s; plain gradient descent by eta s^2: its lines are twice as steep."
    )
    return Figure("largest-rates", caption, panels)


def _table(found: Rates, slopes: dict[tuple[str, str], Slope], config: Config) -> Table:
    heads = (
        "optimizer", "parameterization", "tau", "largest rate, geometric mean", "smallest", "largest", "delta of the "
        "slowest mode",
        "slope in tau", "prediction",
    )  # fmt: skip
    rows: list[list[Any]] = []
    for (optimizer, name, tau), rates in found.items():
        mean = float(np.exp(np.log(rates).mean()))
        s = _largest.relative_slope(name, _largest.SLOWEST / tau) ** POWERS[optimizer]
        rows.append(
            [SHOWN[optimizer], name, tau, mean, float(rates.min()), float(rates.max()), mean * s, slopes[optimizer, name][0],
             PREDICTED[optimizer][name]]
        )  # fmt: skip
    caption = (
        "Largest rates over the seeds. delta: the rate times s of the slowest mode at the start (AdamW), times s^2 (SGD); a "
        "parameterization that follows the prediction has the same at every tau."
    )
    return Table("rates", caption, heads, rows)


def cost(config: Config) -> float:
    """Seconds of a unit."""
    copies = len(NAMES) * config["seeds"] * 2 * np.log2(config["high"] / config["low"])
    return float(config["steps"] * (0.002 + 4e-8 * copies * config["tau"]))


EXPERIMENT = Experiment(
    id="rates-slopes",
    where="Beyond the papers",
    title="The largest learning rate that trains, against its prediction, for AdamW and plain SGD",
    summary="Layers of real modes learn e^{-t/tau} at rising recurrent rates; the slopes of the largest rate that trains, in "
    "tau, are compared with those that follow from the relative change of the slowest rate in a step.",
    presets=presets(
        {
            "taus": [4, 8, 16, 32, 64, 128, 256, 512, 1024], "seeds": 8, "states": 16, "batch": 64, "steps": 1000, "lr": 0.01,
            "sgd_lr": 0.06, "low": 2.0**-6, "high": 2.0**10, "optimizers": ["adamw", "sgd"],
        },
        # 150 steps of 32 windows: as many as stable-rates takes; all 9 memory lengths stay; 8 seeds leave exp under SGD open
        standard={"batch": 32, "steps": 150, "seeds": 32},
        quick={"taus": [4, 32], "seeds": 1, "batch": 8, "steps": 40, "low": 2.0**-2, "high": 2.0**6},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
)  # fmt: skip
