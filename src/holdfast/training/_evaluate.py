"""Metrics of a model on a split, over all processes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data._base import AbstractTask, Split
from holdfast.training._objective import Objective, check_batch

ENDLESS_BATCHES = 16  # batches of a split that is generated without end


@torch.no_grad()
def evaluate(
    fabric: Any,
    model: nn.Module,
    objective: Objective,
    task: AbstractTask,
    split: Split,
    *,
    batch: int,
    most: int | None,
) -> dict[str, float]:
    """Mean loss, accuracy of answers, perplexity of tokens; a number that is not finite is left out.

    Args:
        fabric: the processes.
        model: as it is wrapped for training.
        objective: the loss.
        task: the data.
        split: its name.
        batch: examples at a time.
        most: batches at most; None is the whole split.
    """
    training = model.training
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    scored = False
    try:
        for number, indices in enumerate(_batches(task.size(split), batch, most)):
            if number % fabric.world_size != fabric.global_rank:
                continue
            made = task.batch(split, indices)
            check_batch(task, made)
            totals = objective.totals(model, made.to(fabric.device), score=True)
            scored = totals.right is not None
            right = 0.0 if totals.right is None else float(totals.right)
            sums += torch.tensor([float(totals.loss), totals.count, right], dtype=torch.float64)
    finally:
        model.train(training)
    loss, count, right = (float(v) for v in fabric.all_reduce(sums.to(fabric.device), reduce_op="sum"))
    metrics = {"loss": loss / max(count, 1)}
    if scored:
        metrics["accuracy"] = right / max(count, 1)
    if task.kind == "predict" and scored and metrics["loss"] < 700:  # the logarithm of the largest float64 is 709
        metrics["perplexity"] = math.exp(metrics["loss"])
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _batches(size: int | None, batch: int, most: int | None) -> Iterator[Tensor]:
    end = batch * (most or ENDLESS_BATCHES) if size is None else size if most is None else min(size, batch * most)
    for start in range(0, end, batch):
        yield torch.arange(start, min(start + batch, end))
