"""From a batch to a loss and its metrics, by the kind of a task; how any module is called."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.data._base import AbstractTask, Batch, Split
from holdfast.errors import ArgumentError, ShapeError

Loss = Callable[[Any, Batch], Tensor]
ENDLESS_BATCHES = 16  # batches of a split that is generated endlessly


@dataclass(frozen=True)
class Totals:
    """Sums over a batch: of the loss, of the terms that it is made of, and of right answers where there are any."""

    loss: Tensor
    count: int
    right: Tensor | None = None


class Objective:
    """What a model is trained for.

    Cross-entropy of a class for each sequence ("classify") or of a token at each step that counts ("predict"), squared
    error of each number that counts ("regress"); or the user's own loss, a mean over a batch.

    Args:
        model: the module before any wrapping; it is called with the inputs, and with `lengths` and `return_state` where
            its forward has arguments of that name. Its outputs may come first in a tuple, or as `.logits`.
        task: what is asked for.
        loss: `loss(outputs, batch)`, the mean over the batch; None is the task's own.
    """

    def __init__(self, model: nn.Module, task: AbstractTask, loss: Loss | None = None) -> None:
        self.task, self._own = task, loss
        parameters = inspect.signature(model.forward).parameters
        self._names = {name for name in ("lengths", "return_state") if name in parameters}
        self._forward = type(model).__name__

    def count(self, batch: Batch) -> int:
        """How many terms the loss of a batch is the mean of."""
        if self._own is not None or self.task.kind == "classify":
            return len(batch)
        counted = _counted(batch)
        steps = batch.targets.shape[0] * batch.targets.shape[1] if counted is None else int(counted.sum())
        return steps * (batch.targets.shape[-1] if self.task.kind == "regress" else 1)

    def totals(self, model: Callable[..., Any], batch: Batch, *, score: bool = False) -> Totals:
        """Sums over a batch.

        Args:
            model: the module, as it is wrapped for training.
            batch: on the model's device.
            score: also count right answers, where answers are classes or tokens.
        """
        outputs = self._outputs(model, batch)
        if self._own is not None:
            return Totals(self._own_loss(outputs, batch) * len(batch), len(batch))
        y = _first(outputs, self._forward)
        self._check(y, batch)
        if self.task.kind == "regress":
            return self._squares(y, batch)
        return _answers(*_flat(y, batch, self.task.kind), score)

    def _outputs(self, model: Callable[..., Any], batch: Batch) -> Any:
        how: dict[str, Any] = {}
        if batch.lengths is not None:
            if "lengths" not in self._names:
                raise ArgumentError(
                    f"{self.task.name} has sequences of different lengths, which the forward of {self._forward} must "
                    "take as an argument `lengths`; add it, or use sequences of one length"
                )
            how["lengths"] = batch.lengths
        if "return_state" in self._names:
            how["return_state"] = False
        return model(batch.inputs, **how)

    def _own_loss(self, outputs: Any, batch: Batch) -> Tensor:
        assert self._own is not None
        value = self._own(outputs, batch)
        if not isinstance(value, Tensor) or value.ndim != 0:
            raise ShapeError(f"loss must return a tensor of shape (), got {_described(value)}")
        return value

    def _check(self, y: Tensor, batch: Batch) -> None:
        size = self.task.outputs.size
        head = batch.targets.shape[:1] if self.task.kind == "classify" else batch.targets.shape[:2]
        if tuple(y.shape) != (*head, size):
            words = {"classify": "batch, classes", "predict": "batch, time, tokens", "regress": "batch, time, features"}
            raise ShapeError(
                f"the task {self.task.name} expects outputs of shape {(*head, size)} ({words[self.task.kind]}) from "
                f"{self._forward}, got {tuple(y.shape)}"
            )

    def _squares(self, y: Tensor, batch: Batch) -> Totals:
        error = (y - batch.targets.to(y.dtype)).square()
        counted = _counted(batch)
        if counted is not None:
            error = error * counted.unsqueeze(-1)
        return Totals(error.sum(), self.count(batch))


def check_batch(task: AbstractTask, batch: Batch) -> None:
    """Refuses labels outside the task's own range, which a loss on a GPU would only meet as a crash."""
    if task.kind == "regress":
        return
    low, high = (int(bound) for bound in batch.targets.aminmax())
    if low < 0 or high >= task.outputs.size:
        raise ArgumentError(
            f"{task.name}: targets must be 0 to {task.outputs.size - 1}, got {low} to {high}; check the labels"
        )


def blame_data(task: AbstractTask, batch: Batch, step: int) -> None:
    """Raises where the data themselves are not finite, so that a loss which is not says nothing about training."""
    for name in ("inputs", "targets"):
        values = getattr(batch, name)
        if values.is_floating_point() and not bool(values.isfinite().all()):
            row = (~values.isfinite()).nonzero()[0, 0].item()
            raise ArgumentError(
                f"{task.name}: {name} must be finite, got NaN or infinity in example {row} of the batch of step "
                f"{step}; remove or fill such values"
            )


def _counted(batch: Batch) -> Tensor | None:
    """The steps (batch, time) that count; None is all of them."""
    if batch.mask is not None or batch.lengths is None:
        return batch.mask
    return torch.arange(batch.targets.shape[1], device=batch.targets.device) < batch.lengths.unsqueeze(-1)


def _flat(y: Tensor, batch: Batch, kind: str) -> tuple[Tensor, Tensor]:
    """Scores (terms, classes) and targets (terms,) of what counts."""
    if kind == "classify":
        return y, batch.targets
    counted = _counted(batch)
    if counted is None:
        return y.flatten(0, 1), batch.targets.flatten()
    return y[counted], batch.targets[counted]


def _answers(scores: Tensor, targets: Tensor, score: bool) -> Totals:
    # in float32 at least: half precision has three digits, and a sum over a batch would lose them
    scores = scores.float() if scores.dtype in (torch.bfloat16, torch.float16) else scores
    loss = functional.cross_entropy(scores, targets, reduction="sum")
    right = (scores.detach().argmax(-1) == targets).sum() if score else None
    return Totals(loss, len(targets), right)


def _first(outputs: Any, name: str) -> Tensor:
    answer = getattr(outputs, "logits", outputs)
    answer = answer[0] if isinstance(answer, (tuple, list)) and answer else answer
    if not isinstance(answer, Tensor):
        raise ArgumentError(
            f"forward of {name} must return a tensor, a tuple that begins with one, or an object with .logits; "
            f"got {_described(outputs)}"
        )
    return answer


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


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
    # sums and not means of batches: the last batch is shorter, and processes have different numbers of them
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
