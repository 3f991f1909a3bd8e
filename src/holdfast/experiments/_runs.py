"""What a training run leaves in a unit's arrays, and the choice of a recurrent rate on short runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.data.base import AbstractTask
from holdfast.experiments._training import trained
from holdfast.experiments.base import Arrays, Work
from holdfast.training import TrainingRun

POINTS = 200  # of a curve that is kept
MOVED = 0.1  # a mode has moved when its distance to the boundary changed by more than this share


def fit_at(
    make: Callable[[], nn.Module], task: AbstractTask, settings: Mapping[str, Any], rates: Sequence[float], work: Work,
    *, short: int,
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
    """
    brief = {**settings, "steps": short, "epochs": None, "evaluate_every": short}
    share = 0.0 if len(rates) == 1 else 0.5 / len(rates)
    losses = []
    for k, rate in enumerate(rates if len(rates) > 1 else ()):
        part = (k * share, (k + 1) * share)
        losses.append(
            valid_loss(trained(make(), task, {**brief, "recurrent_lr": rate}, work, name=f"short{k}", part=part))
        )
    chosen = rates[int(np.argmin(losses))] if losses else rates[0]
    model = make()
    part = (len(losses) * share, 1.0)
    run = trained(model, task, {**settings, "recurrent_lr": chosen}, work, part=part)
    return model, run, {"rate": np.array(chosen), "short": np.array(losses)}


def valid_loss(run: TrainingRun) -> float:
    """The last weights' loss on validation data; inf of a run that diverged."""
    return run.metrics.get("valid", {}).get("loss", math.inf) if run.status != "diverged" else math.inf


def record(run: TrainingRun, before: Tensor, after: Tensor, work: Work) -> dict[str, np.ndarray]:
    """Curves thinned to POINTS, metrics of the last weights, gradient over weight, and how the modes moved.

    Args:
        run: the run; tokens in a second go to the unit's log, since they differ from machine to machine.
        before: distances of the modes to the stability boundary at the start, negative beyond it.
        after: the same at the end.
        work: the unit's.
    """
    history = run.history
    work.log(status=run.status, reason=run.reason, tokens_per_second=_median(history.tokens_per_second))
    steps, loss = thinned(history.steps, history.loss)
    at, ratio = _largest_ratio(history.gradients)
    moved = (after - before).abs() > MOVED * before.abs()
    metrics = {f"{split}.{name}": np.array(v) for split, m in run.metrics.items() for name, v in m.items()}
    return {
        "steps": steps, "loss": loss, "valid.steps": history.evaluated.astype(np.int32),
        "valid.curve": history.metrics.get("loss", np.empty(0)).astype(np.float32),
        "ratio.steps": at, "ratio": ratio, "ratio.first": np.array(ratio[0] if len(ratio) else 0.0),
        "ratio.largest": np.array(ratio.max() if len(ratio) else 0.0),
        "margin": np.array([float(before.min()), float(after.min())]), "moved": np.array(float(moved.double().mean())),
        "finished": np.array(run.status != "diverged"), **metrics,
    }  # fmt: skip


def thinned(steps: np.ndarray, values: np.ndarray, take: Callable[..., Any] = np.mean) -> tuple[np.ndarray, np.ndarray]:
    """A curve of at most POINTS points, each the mean (or what `take` says) of its neighbours, in float32."""
    if not len(steps):
        return np.empty(0, np.int32), np.empty(0, np.float32)
    groups = np.array_split(np.arange(len(steps)), min(POINTS, len(steps)))
    ends = np.array([steps[g[-1]] for g in groups], dtype=np.int32)
    return ends, np.array([take(values[g]) for g in groups], dtype=np.float32)


def failed(arrays: Arrays) -> bool:
    """Whether the run diverged."""
    return not bool(arrays["finished"])


def _largest_ratio(gradients: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The largest gradient over weight of all recurrent weights together, by step; the thinned curve keeps its peaks."""
    curves = [pair for name, pair in gradients.items() if name.endswith("/maximum")]
    if not curves:
        return thinned(np.empty(0), np.empty(0))
    length = min(len(steps) for steps, _ in curves)
    return thinned(curves[0][0][:length], np.max([values[:length] for _, values in curves], axis=0), np.max)


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else 0.0


def margins(layer: Any) -> Tensor:
    """Distances of a layer's modes to the boundary: -Re lam in continuous time, 1 - |lam| in discrete time."""
    with torch.no_grad():
        lam = layer.eigenvalues().detach()
    return -lam.real if layer.time == "continuous" else 1 - lam.abs()
