"""What a training run says about its recurrence: distance to the boundary, modes that moved, gradient over weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from holdfast.experiments.base import Arrays
from holdfast.nn import AbstractRecurrent
from holdfast.parameterizations import AbstractParameterization
from holdfast.training import TrainingRun

POINTS = 200  # most points of a kept curve
MOVED = 0.1  # a mode has moved when its eigenvalue did by more than this share of its distance to the boundary


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The eigenvalues of all diagonal recurrent layers of a model, one after the other.

    Args:
        lam: eigenvalues (modes,).
        margin: distance of each to the stability boundary, negative beyond it.
        weights: names of the free weights that they are made of, as the gradient monitor calls them.
    """

    lam: Shaped[Tensor, " modes"]
    margin: Float[Tensor, " modes"]
    weights: tuple[str, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module) -> Spectrum:
        """The spectrum as it is now; a copy, which training does not change."""
        found = [*_layers(model)]
        lam = [layer.eigenvalues().flatten() for _, layer, _ in found]
        margin = [form.margin(getattr(layer, str(layer.boundary_name))).flatten() for _, layer, form in found]
        return cls(torch.cat(lam).clone(), torch.cat(margin).clone(), tuple(path for path, _, _ in found))

    @property
    def slowest(self) -> float:
        """Distance of the slowest eigenvalue to the boundary."""
        return float(self.margin.min())

    def moved(self, end: Spectrum, share: float = MOVED) -> float:
        """Share of the modes whose eigenvalue differs at the `end` by more than `share` of its distance to the boundary."""
        return float(((end.lam - self.lam).abs() > share * self.margin.abs()).double().mean())


def traces(run: TrainingRun, start: Spectrum, end: Spectrum) -> Arrays:
    """The arrays that a unit keeps of a run; equal runs give equal arrays, so times are not among them.

    "steps" and "loss" are the thinned loss curve; "ratio.steps" and "ratio" the largest |gradient| / |weight| over all free
    weights of the recurrences; "ratio.start" and "ratio.max" its first and largest value, inf where a gradient was not
    finite; "margin.start" and "margin.end" the distance of the slowest eigenvalue to the boundary; "moved" the share of
    modes that moved; "done" the optimizer steps; "diverged" 1 for a run that did; "<split>.<metric>" the metrics at the end.

    Args:
        run: the finished or diverged run.
        start: the spectrum before it.
        end: the spectrum after it.
    """
    kept = _thinned(len(run.history.steps))
    at, ratio = largest_ratio(run, start.weights)
    few = _thinned(len(at))
    broken = run.status == "diverged" and "not finite" in run.reason
    arrays = {
        "steps": run.history.steps[kept].astype(np.int32),
        "loss": run.history.loss[kept].astype(np.float32),
        "ratio.steps": at[few].astype(np.int32),
        "ratio": ratio[few].astype(np.float32),
        "ratio.start": np.array(ratio[0] if len(ratio) else math.inf),
        "ratio.max": np.array(math.inf if broken or not len(ratio) else ratio.max()),
        "margin.start": np.array(start.slowest),
        "margin.end": np.array(end.slowest),
        "moved": np.array(start.moved(end)),
        "done": np.array(run.step),
        "diverged": np.array(int(run.status == "diverged")),
    }
    metrics = {f"{s}.{name}": np.array(v) for s, found in run.metrics.items() for name, v in found.items()}
    return arrays | metrics


def largest_ratio(run: TrainingRun, weights: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the largest |gradient| / |weight| over these weights at each; inf where one was not finite.

    Args:
        run: the run, recorded with `monitor_every`.
        weights: names of the weights, as in `Spectrum.weights`.
    """
    recorded = [run.history.gradients.get(f"{name}/maximum") for name in weights]
    steps = sorted({int(step) for pair in run.history.gradients.values() for step in pair[0]})
    largest = dict.fromkeys(steps, 0.0)
    for pair in recorded:
        # the log leaves out what is not finite: a step without a number had such a one
        known = {} if pair is None else dict(zip(pair[0].tolist(), pair[1].tolist(), strict=True))
        for step in steps:
            largest[step] = max(largest[step], known.get(step, math.inf))
    return np.array(steps), np.array([largest[step] for step in steps])


def tokens_per_second(run: TrainingRun) -> float:
    """Input steps taken in a second of training, the median over the log's lines; NaN where nothing was logged."""
    rates = run.history.tokens_per_second
    return float(np.median(rates)) if len(rates) else math.nan


def _layers(model: nn.Module) -> Iterator[tuple[str, AbstractRecurrent, AbstractParameterization]]:
    for prefix, module in model.named_modules():
        if isinstance(module, AbstractRecurrent) and isinstance(module.boundary_form, AbstractParameterization):
            yield f"{prefix}.{module.boundary_name}".removeprefix("."), module, module.boundary_form


def _thinned(count: int) -> np.ndarray:
    """At most POINTS indices, evenly, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int)) if count else np.empty(0, int)
