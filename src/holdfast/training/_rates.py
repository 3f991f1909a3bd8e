"""The learning rates of a run's recurrent weights, where its config says recurrent_lr = "auto"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from holdfast.data._base import AbstractTask
from holdfast.decay import study_task
from holdfast.errors import ArgumentError
from holdfast.stability import RecurrentRate, recurrent_rate
from holdfast.training._config import TrainingConfig
from holdfast.training._descent import Order, share

RATES = "recurrent_rates"  # key in run.json
STUDIED_SEQUENCES = 512  # of the training split: enough for a kernel of some hundred steps


def resolved_rate(
    model: nn.Module, task: AbstractTask, config: TrainingConfig, saved: Mapping[str, Any] | None
) -> float | RecurrentRate | None:
    """What `parameter_groups` takes as recurrent_lr; of a run that is continued, what it was begun with.

    Args:
        model: before its first step.
        task: the data, whose length is the memory to be learned where the config names none.
        config: the settings.
        saved: what run.json says; None where the run begins.
    """
    if config.recurrent_lr != "auto":
        return config.recurrent_lr
    if saved is not None:
        return _read(saved[RATES])
    steps = config.total_steps(Order(task.size("train"), config.batch, config.seed).steps_per_epoch)
    c = config
    shares = [share(k, steps, warmup=c.warmup, schedule=c.schedule, floor=c.final_lr) for k in range(steps)]
    if config.memory != "data":
        return recurrent_rate(model, steps=steps, memory=config.memory or task.length, schedule=shares)
    memory, reason = _memory_in(task)
    rate = recurrent_rate(model, steps=steps, memory=memory, schedule=shares)
    parts = tuple(replace(part, reason=f"{reason}; {part.reason}") for part in rate.parts)
    return replace(rate, reason=f"{reason}; {rate.reason}", parts=parts)


def _memory_in(task: AbstractTask) -> tuple[float, str]:
    """The steps back that targets of the training split depend on, and where that number comes from."""
    count = min(task.size("train") or STUDIED_SEQUENCES, STUDIED_SEQUENCES)
    batch = task.batch("train", torch.arange(count))
    targets = batch.targets
    if batch.mask is not None and not targets.is_floating_point():
        targets = targets.masked_fill(~batch.mask, -1)  # steps that do not count are not asked for
    try:
        study = study_task(batch.inputs, targets, lengths=batch.lengths)
    except ArgumentError as error:
        return float(task.length), f"the length of the task, since its data cannot be studied ({error})"
    if study.status == "undecided":
        return float(task.length), f"the length of the task, since its data do not tell ({study.reason})"
    return max(float(study.steps), 1.0), f"the data need the last {study.steps} steps"


def kept(rate: float | RecurrentRate | None) -> dict[str, Any]:
    """What run.json says of it; nothing where the config has a number."""
    if not isinstance(rate, RecurrentRate):
        return {}
    return {RATES: [{"path": p.path, "rate": p.rate, "reason": p.reason} for p in _parts(rate)]}


def told(rate: float | RecurrentRate | None) -> list[str]:
    """A line for each recurrence: its rate and where that comes from."""
    parts = _parts(rate) if isinstance(rate, RecurrentRate) else []
    return [f"recurrent_lr {part.rate:.4g}: {part.reason}" for part in parts]


def _parts(rate: RecurrentRate) -> Iterator[RecurrentRate]:
    yield from rate.parts or (rate,)


def _read(rows: list[dict[str, Any]]) -> RecurrentRate:
    parts = tuple(RecurrentRate(row["path"], row["rate"], 0.0, float("inf"), row["reason"]) for row in rows)
    smallest = min(parts, key=lambda part: part.rate)
    return smallest if len(parts) == 1 else replace(smallest, parts=parts)
