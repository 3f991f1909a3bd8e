"""What a run will take before it is begun: parameters, memory, tokens per step, time."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.data._base import AbstractTask
from holdfast.stability import parameter_groups
from holdfast.training._config import TrainingConfig
from holdfast.training._descent import Order
from holdfast.training._fabric import check_batch_size, undisturbed
from holdfast.training._objective import Objective

TIMED_STEPS = 2  # steps after a first one, which loads kernels and finds memory


@dataclass(frozen=True)
class Estimate:
    """What one process of a run takes.

    Args:
        parameters: numbers that are trained.
        recurrent: those of them that decide eigenvalues.
        weights: bytes of weights, gradients and the two averages of AdamW.
        activations: bytes that a step keeps for its backward pass.
        tokens: input steps of one optimizer step, over all processes.
        steps: optimizer steps of the run.
        step_seconds: time of one step of one process here, evaluation and checkpoints left out.
    """

    parameters: int
    recurrent: int
    weights: int
    activations: int
    tokens: int
    steps: int
    step_seconds: float

    @property
    def seconds(self) -> float:
        """Time of all steps."""
        return self.steps * self.step_seconds


def estimate(model: nn.Module, task: AbstractTask, config: TrainingConfig) -> Estimate:
    """Runs three steps without an update, and counts.

    Args:
        model: its weights stay as they are.
        task: the data.
        config: the settings.
    """
    processes = config.devices * config.nodes
    part = check_batch_size(config, processes)
    order = Order(task.size("train"), config.batch, config.seed)
    objective = Objective(model, task)
    batch = task.batch("train", order.indices(0)[:part])
    groups = parameter_groups(model, lr=config.lr)
    kept: dict[int, int] = {}
    held = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def step() -> None:
        loss = objective.totals(model, batch).loss / max(1, objective.count(batch))
        loss.backward()
        model.zero_grad(set_to_none=True)

    with undisturbed(config.threads):
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            step()
        began = time.perf_counter()
        for _ in range(TIMED_STEPS):
            step()
        took = (time.perf_counter() - began) / TIMED_STEPS
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    share = processes if config.strategy == "fsdp" else 1
    return Estimate(
        parameters=sum(p.numel() for p in model.parameters()),
        recurrent=sum(p.numel() for p in groups[-1]["params"]),
        weights=4 * weights // share,
        activations=sum(kept.values()),
        tokens=batch.tokens * config.accumulate * processes,
        steps=config.total_steps(order.steps_per_epoch),
        step_seconds=took * config.accumulate,
    )
