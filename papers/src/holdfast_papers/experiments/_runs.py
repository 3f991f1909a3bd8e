"""What a unit keeps of a training run, and the choice of a recurrent rate on short runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.data._base import AbstractTask
from holdfast.nn import AbstractRecurrent
from holdfast.parameterizations import AbstractParameterization
from holdfast.training import TrainingRun
from holdfast_papers.experiments._training import trained
from holdfast_papers.experiments.base import Arrays, Unit, Work

POINTS = 200  # most points of a kept curve
MOVED = 0.1  # a mode has moved when its distance to the boundary, a rate, changed by more than this share


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The modes of all recurrent layers of a model, one after the other; a copy, which training does not change.

    Args:
        margin: distance of each mode to the stability boundary, -Re lam or 1 - |lam|, negative beyond it; those of a
            matrix are sorted, since its modes have no names.
        slowest: the smallest distance; where Euler's rule steps, that of its own boundary too.
        weights: names of the free weights behind them, as the gradient monitor calls them.
    """

    margin: Float[Tensor, " modes"]
    slowest: float
    weights: tuple[str, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module) -> Spectrum:
        """The spectrum as it is now."""
        found = [*_layers(model)]
        margins = torch.cat([_margins(layer) for _, layer in found])
        return cls(margins, min(layer.margin() for _, layer in found), tuple(path for path, _ in found))

    def moved(self, end: Spectrum, share: float = MOVED) -> float:
        """Share of the modes whose distance to the boundary differs at the `end` by more than `share` of it."""
        return float(((end.margin - self.margin).abs() > share * self.margin.abs()).double().mean())


def _layers(model: nn.Module) -> Iterator[tuple[str, AbstractRecurrent]]:
    for prefix, module in model.named_modules():
        if isinstance(module, AbstractRecurrent) and module.boundary_form is not None:
            yield f"{prefix}.{module.boundary_name}".removeprefix("."), module


def _margins(layer: AbstractRecurrent) -> Tensor:
    form, weight = layer.boundary_form, getattr(layer, str(layer.boundary_name))
    if isinstance(form, AbstractParameterization) and isinstance(weight, Tensor):
        return form.margin(weight).flatten().clone()  # keeps its digits near the boundary
    lam = layer.eigenvalues()
    margin = -lam.real if layer.time == "continuous" else 1 - lam.abs()
    return margin.flatten().sort().values if layer.recurrent_matrix() is not None else margin.flatten().clone()


def fit_at(
    make: Callable[[], nn.Module], task: AbstractTask, settings: Mapping[str, Any], rates: Sequence[float], work: Work,
    *, short: int, part: tuple[float, float] = (0.0, 1.0),
) -> tuple[nn.Module, TrainingRun, dict[str, np.ndarray]]:  # fmt: skip
    """A model trained at the recurrent rate that is best on validation data after short runs.

    With one rate there is nothing to choose and no short run.

    Args:
        make: builds the model, the same at each call.
        task: the data.
        settings: of a TrainingConfig, without `recurrent_lr`.
        rates: recurrent learning rates to choose from.
        work: the unit's.
        short: steps of a short run.
        part: begin and end of the unit's progress that all of this is.
    """
    tried = rates if len(rates) > 1 else ()
    long = settings["steps"]
    done, whole = 0, long + short * len(tried)

    def following(steps: int) -> tuple[float, float]:
        nonlocal done
        begin, done = done, done + steps
        return tuple(part[0] + (part[1] - part[0]) * k / whole for k in (begin, done))

    brief = {**settings, "steps": short, "evaluate_every": short}
    losses = [
        valid_loss(
            trained(make(), task, {**brief, "recurrent_lr": rate}, work, name=f"short{k}", part=following(short))
        )
        for k, rate in enumerate(tried)
    ]
    chosen = rates[int(np.argmin(losses))] if losses else rates[0]
    model = make()
    run = trained(model, task, {**settings, "recurrent_lr": chosen}, work, part=following(long))
    return model, run, {"rate": np.array(chosen), "short": np.array(losses)}


def valid_loss(run: TrainingRun) -> float:
    """The last weights' loss on validation data; inf of a run that diverged."""
    return run.metrics.get("valid", {}).get("loss", math.inf) if run.status != "diverged" else math.inf


def record(
    run: TrainingRun, start: Spectrum, end: Spectrum, work: Work,
    statistic: Literal["maximum", "norm_ratio"] = "maximum",
) -> dict[str, np.ndarray]:  # fmt: skip
    """What `outcome` keeps, and what the recurrences did.

    "ratio.steps" and "ratio" are the largest |gradient| / |weight| of the recurrences by step; "ratio.start" and "ratio.max"
    its first and largest value, inf where a gradient was not finite; "margin.start" and "margin.end" the distance of the
    slowest mode to the boundary; "moved" the share of modes that moved.

    Args:
        run: the finished or diverged run.
        start: the spectrum before it.
        end: the spectrum after it.
        work: the unit's.
        statistic: of the gradient monitor: over single weights, or of norms where weights may start at 0.
    """
    steps, ratio = largest_ratio(run, start.weights, statistic)
    at, peaks = thinned(steps, ratio, _group(run, "monitor_every"), np.max)
    return {
        **outcome(run, work),
        "ratio.steps": at,
        "ratio": peaks,
        "ratio.start": np.array(ratio[0] if len(ratio) else math.inf),
        "ratio.max": np.array(math.inf if not run.finite or not len(ratio) else ratio.max()),
        "margin.start": np.array(start.slowest),
        "margin.end": np.array(end.slowest),
        "moved": np.array(start.moved(end)),
    }


def outcome(run: TrainingRun, work: Work) -> dict[str, np.ndarray]:
    """The arrays that a unit keeps of any run; equal runs give equal arrays, so times go to the unit's log.

    "steps" and "loss" are the loss curve; "valid.steps" and "valid.curve" that of the validation loss; "done" the optimizer
    steps; "diverged" 1 for a run that did; "<split>.<metric>" the metrics at the end, none of a run that diverged.

    Args:
        run: the finished or diverged run.
        work: the unit's.
    """
    history = run.history
    speeds = history.tokens_per_second
    speed = float(np.median(speeds)) if len(speeds) else 0.0
    work.log(status=run.status, reason=run.reason, step=run.step, tokens_per_second=speed)
    steps, loss = thinned(history.steps, history.loss, _group(run, "log_every"))
    metrics = {f"{split}.{name}": np.array(v) for split, found in run.metrics.items() for name, v in found.items()}
    return {
        "steps": steps,
        "loss": loss,
        "valid.steps": history.evaluated.astype(np.int32),
        "valid.curve": history.metrics.get("loss", np.empty(0)).astype(np.float32),
        "done": np.array(run.step),
        "diverged": np.array(int(run.status == "diverged")),
        **metrics,
    }


def _group(run: TrainingRun, every: str) -> int:
    """Records in a point of a kept curve: by the steps asked for, so that runs that ended early have the same points."""
    return math.ceil(run.steps / max(run.config[every], 1) / POINTS)


def thinned(
    steps: np.ndarray, values: np.ndarray, size: int, take: Callable[..., Any] = np.mean
) -> tuple[np.ndarray, np.ndarray]:
    """A curve with one point for each `size` records: their last step, and their mean or what `take` says, in float32."""
    starts = range(0, len(steps), size)
    ends = [steps[min(start + size, len(steps)) - 1] for start in starts]
    return np.array(ends, np.int32), np.array([take(values[start : start + size]) for start in starts], np.float32)


def largest_ratio(run: TrainingRun, weights: Sequence[str], statistic: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the largest |gradient| / |weight| over these weights at each; inf where one was not finite.

    Args:
        run: the run, recorded with `monitor_every`.
        weights: names of the weights, as in `Spectrum.weights`.
        statistic: the gradient monitor's name of what is read.
    """
    recorded = [run.history.gradients.get(f"{name}/{statistic}") for name in weights]
    steps = sorted({int(step) for pair in run.history.gradients.values() for step in pair[0]})
    largest = dict.fromkeys(steps, 0.0)
    for pair in recorded:
        # the log leaves out what is not finite: a step without a number had such a one
        known = {} if pair is None else dict(zip(pair[0].tolist(), pair[1].tolist(), strict=True))
        for step in steps:
            largest[step] = max(largest[step], known.get(step, math.inf))
    return np.array(steps), np.array([largest[step] for step in steps])


def failed(arrays: Arrays) -> bool:
    """Whether the run diverged."""
    return bool(arrays["diverged"])


def kept(arrays: Arrays, key: str) -> float:
    """A number of a run; inf where the run has none, since it diverged."""
    return float(arrays.get(key, math.inf))


def speed(units: Sequence[Unit]) -> float:
    """Tokens a second, the median over runs; 0 where nothing was logged."""
    key = "tokens_per_second"
    return float(np.median([entry[key] for u in units for entry in u.log if key in entry] or [0.0]))
