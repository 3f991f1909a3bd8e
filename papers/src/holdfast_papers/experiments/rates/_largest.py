"""The largest recurrent rate at which a layer of real modes still learns e^(-t/tau), for all rates and seeds at once.

The layer starts with rates from 1/(4 tau) to 0.8, so that it has the memory already: what is asked is how large a rate it
survives. A run trains when |k - rho|^2 ends below a tenth of |rho|^2 and its loss never rose above a thousand times the first,
where `holdfast.training` ends a run as diverged. The largest rate is the upper end of the longest row of neighbouring rates
that train: below it a rate may be too small to learn anything, above it one may train by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast import parameterizations
from holdfast_papers.experiments.base import Config
from holdfast_papers.experiments.rates import _linear
from holdfast_papers.experiments.rates._copies import Recipe, Weights, grid, train

TRAINED_BELOW = 0.1  # of the target's mean square
DIVERGED_ABOVE = 1e3  # times the first loss, as in a TrainingConfig
LAGS_PER_TAU = 4
SLOWEST = 0.25  # slowest rate at the start, times tau


def relative_slope(name: str, rate: float) -> float:
    """|f'(w)| / |f(w)| where f(w) = -rate: the relative change of a mode's rate for a unit of its free weight."""
    f = parameterizations.get(name)
    lam = torch.tensor([-rate], dtype=torch.float64)
    return float((f.derivative(f.inverse(lam)) / lam).abs())


def errors(
    config: Config,
    names: Sequence[str],
    rates: Tensor,
    all_weights: bool = False,
    progress: Callable[[float], None] = lambda done: None,
) -> np.ndarray:
    """Relative errors (parameterizations, rates, seeds) after training; inf for a copy that diverged.

    Args:
        config: tau, seeds, states, batch, steps, lr, optimizer, clip, and whether input weights are trained (train_inputs).
        names: the parameterizations.
        rates: learning rates (parameterizations, rates).
        all_weights: whether the rate is that of all weights, not of the recurrent ones alone.
        progress: called with the share that is done.
    """
    tau, seeds = config["tau"], config["seeds"]
    start = _linear.starting_rates(SLOWEST / tau, config["states"])
    copies, every = grid(names, rates.float(), seeds)
    weights = _linear.copies_of(_linear.real_start(start, seeds), copies)
    _linear.with_free_weights(weights, names, -start, copies)
    held = {} if config["train_inputs"] else {"U": weights.pop("U")}
    lags = LAGS_PER_TAU * tau
    rho = torch.exp(-torch.arange(lags, dtype=torch.float64) / tau)
    rho = (rho / rho.norm()).float()

    def gap(weights: Weights) -> Tensor:
        return _linear.kernel(_linear.eigenvalues(names, weights["w"]), weights | held, lags) - rho

    def loss(weights: Weights, step: int) -> Tensor:
        return _linear.window_loss(gap(weights), _linear.windows(step, seeds, config["batch"], lags))

    recipe = Recipe(config["optimizer"], config["steps"], config["lr"], config["clip"], diverged_above=DIVERGED_ABOVE)
    alive = train(loss, weights, tuple(weights) if all_weights else _linear.RECURRENT, every, recipe, progress)
    found = torch.where(alive, _linear.relative_error(gap(weights), rho), torch.inf)
    return found.reshape(*rates.shape, seeds).numpy()


def largest(rates: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """The upper end of the longest row of rates that train, for each seed; half the lowest rate where none does.

    Args:
        rates: rising (rates,).
        errors: relative errors (rates, seeds).
    """
    found = np.full(errors.shape[1], rates[0] / 2)
    longest, current = np.zeros(errors.shape[1]), np.zeros(errors.shape[1])
    for rate, trained in zip(rates, errors <= TRAINED_BELOW, strict=True):
        current = np.where(trained, current + 1, 0)
        found = np.where(trained & (current >= longest), rate, found)
        longest = np.maximum(longest, current)
    return found


def half_doublings(low: float, high: float) -> np.ndarray:
    """The powers of sqrt 2 from `low` to `high`, both rounded to the nearest."""
    first, last = (round(2 * math.log2(value)) for value in (low, high))
    return 2.0 ** (np.arange(first, last + 1) / 2)
