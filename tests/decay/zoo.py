"""Curves whose law is known: the zoo on which fit_decay is tuned (TUNING seeds) and judged (HELD_OUT seeds)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from holdfast.memory import MemoryCurve

# a held-out curve that leads to a change of the criterion is no longer held out: then take seeds not looked at yet
TUNING = range(0, 2_000_000)
HELD_OUT = range(3_000_000, 4_000_000)
KINDS = ("exponential", "oscillating", "settling", "sum", "imitation", "power", "finite", "periodic", "constant")
TRUTH = {
    "exponential": "exponential",
    "oscillating": "exponential",
    "settling": "exponential",
    "sum": "exponential",
    "imitation": "exponential",
    "power": "polynomial",
    "finite": "finite",
    "periodic": "periodic",
    "constant": "non-decaying",
}


@dataclass(frozen=True)
class Animal:
    kind: str
    law: str
    curve: MemoryCurve
    noise: float
    constants: dict = field(default_factory=dict)


def log_uniform(rng, low, high):
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def exponential(rng, t):
    rate = log_uniform(rng, 1e-3, 5.0)
    return np.exp(-rate * t), {"rate": rate}


def oscillating(rng, t):
    rate, frequency, phase = log_uniform(rng, 1e-3, 5.0), rng.uniform(0.05, math.pi), rng.uniform(0, 2 * math.pi)
    return np.exp(-rate * t) * np.abs(np.cos(frequency * t + phase)), {"rate": rate, "frequency": frequency}


def settling(rng, t):
    """An oscillation that dies out faster than the decay below it, as where a recurrence has modes of both kinds."""
    rate, size, frequency = log_uniform(rng, 1e-3, 1.0), log_uniform(rng, 0.3, 30), rng.uniform(0.05, math.pi)
    faster = rate * log_uniform(rng, 1.5, 20)
    wave = size * np.exp(-faster * t) * np.cos(frequency * t + rng.uniform(0, 2 * math.pi))
    return np.abs(np.exp(-rate * t) + wave), {"rate": rate, "faster": faster, "size": size, "frequency": frequency}


def sum_of_exponentials(rng, t):
    modes = round(log_uniform(rng, 2, 64))
    rates = np.exp(rng.uniform(math.log(1e-3), math.log(5.0), modes))
    # weights of equal size, of very different sizes, or growing with the rate as for a power law
    style = rng.integers(3)
    weights = rng.uniform(0.2, 1, modes)
    weights = weights if style == 0 else weights ** rng.uniform(1, 8) if style == 1 else rates ** rng.uniform(0.3, 3)
    return np.exp(-np.outer(t, rates)) @ weights, {"rate": float(rates.min()), "modes": modes}


def imitation(rng, t):
    """Rates at equal ratios, weighted so that the sum looks like t^-p between the fastest and the slowest."""
    modes, exponent = round(log_uniform(rng, 2, 64)), rng.uniform(0.3, 3.0)
    rates = np.geomspace(1e-3, 5.0, modes)
    return np.exp(-np.outer(t, rates)) @ rates**exponent, {"rate": 1e-3, "modes": modes, "exponent": exponent}


def quadrature(rng, t):
    """The same with the weights that turn it into (1 + t)^-p from t = 0 on: not in KINDS, since no window tells them."""
    modes, exponent = round(log_uniform(rng, 2, 64)), rng.uniform(0.3, 3.0)
    rates = np.geomspace(1e-3, log_uniform(rng, 5.0, 40.0), modes)
    weights = rates**exponent * np.exp(-rates)
    return np.exp(-np.outer(t, rates)) @ weights, {"rate": 1e-3, "modes": modes, "exponent": exponent}


def power(rng, t):
    exponent = rng.uniform(0.3, 3.0)
    return (1 + t) ** -exponent, {"exponent": exponent}


def finite(rng, t):
    support, order = log_uniform(rng, 2, len(t) / 2), int(rng.integers(3))
    return np.where(t < support, np.maximum(1 - t / support, 0) ** order, 0.0), {"support": support, "order": order}


def periodic(rng, t):
    style = rng.integers(3)
    if style == 0:
        frequency = rng.uniform(0.05, math.pi)
        return np.abs(np.cos(frequency * t + rng.uniform(0, 6.3))), {"frequency": frequency}
    if style == 1:
        period = log_uniform(rng, 3, min(len(t) / 5, 200))
        return 1 + rng.uniform(0.1, 0.9) * np.cos(2 * math.pi * t / period), {"period": period}
    period = int(log_uniform(rng, 2, min(len(t) / 5, 200)))
    pattern = rng.uniform(0, 1, period)
    return pattern[t.astype(int) % period], {"period": period}


def constant(rng, t):
    level = rng.uniform(0.05, 1)
    transient = rng.integers(2) * np.exp(-log_uniform(rng, 50 / len(t), 5.0) * t)
    return level + transient, {"level": level}


MAKERS = {
    "exponential": exponential,
    "oscillating": oscillating,
    "sum": sum_of_exponentials,
    "power": power,
    "finite": finite,
    "periodic": periodic,
    "constant": constant,
    "imitation": imitation,
    "quadrature": quadrature,
    "settling": settling,
}
NUMBERS = {kind: number for number, kind in enumerate(MAKERS)}  # of the random streams


def animal(kind: str, seed: int) -> Animal:
    rng = np.random.default_rng([seed, NUMBERS[kind]])
    horizon = int(log_uniform(rng, 50, 1e5))
    noise, scale = log_uniform(rng, 1e-12, 1e-4), log_uniform(rng, 1e-3, 1e3)
    t = np.arange(horizon + 1.0)
    values, constants = MAKERS[kind](rng, t)
    values = values / values.max()
    values = scale * np.abs(values + noise * rng.standard_normal(len(t)))
    constants = {"horizon": horizon, **constants}
    return Animal(kind, TRUTH.get(kind, "exponential"), MemoryCurve(time=t, values=values), noise, constants)
