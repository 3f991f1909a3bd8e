"""One step of training: which examples, their gradient, and the move of the weights by the rates of that step.

All of it is a function of the seed and the number of the step: nothing is remembered, so that a run can continue anywhere.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data._base import AbstractTask, Batch
from holdfast.errors import ArgumentError
from holdfast.stability import RecurrentRate, parameter_groups
from holdfast.training._config import Schedule, TrainingConfig
from holdfast.training._fabric import check_batch_size, seed_all
from holdfast.training._objective import Objective, check_batch


def share(step: int, steps: int, *, warmup: int, schedule: Schedule, floor: float) -> float:
    """The share of its full value that a learning rate has at a step.

    (step + 1) / warmup during the warm-up; after it 1, or floor + (1 - floor)(1 + cos(pi p)) / 2 with p from 0 to 1
    over the rest.

    Args:
        step: number of the step, from 0.
        steps: number of steps of the whole run.
        warmup: number of steps of the warm-up.
        schedule: "cosine" or "constant".
        floor: the share that the cosine ends at.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    done = (step - warmup) / max(1, steps - warmup)
    return floor + (1 - floor) * (1 + math.cos(math.pi * min(1.0, done))) / 2


def mixed(*numbers: int) -> int:
    """A seed made of several numbers, such that neighbours have nothing in common."""
    text = ":".join(str(number) for number in numbers)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Order:
    """Batches of one split for training: a new permutation in every epoch, or ever new numbers where it is endless.

    Args:
        size: number of examples; None if they are generated endlessly.
        batch: examples per step; what is left over at the end of an epoch is dropped.
        seed: of the permutations.
    """

    def __init__(self, size: int | None, batch: int, seed: int) -> None:
        if size is not None and size < batch:
            raise ArgumentError(
                f"the split 'train' must hold at least one batch of {batch} examples, got {size}; "
                f"{'use a smaller run.batch' if size else 'check the data'}"
            )
        self.size, self.batch, self.seed = size, batch, seed
        self._epoch, self._permutation = -1, torch.empty(0, dtype=torch.int64)

    @property
    def steps_per_epoch(self) -> int | None:
        """Whole batches in the split; None where it is endless."""
        return None if self.size is None else self.size // self.batch

    def indices(self, step: int) -> Tensor:
        """The examples of a step."""
        if self.steps_per_epoch is None:
            return torch.arange(step * self.batch, (step + 1) * self.batch)
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(mixed(self.seed, epoch))
            assert self.size is not None
            self._epoch, self._permutation = epoch, torch.randperm(self.size, generator=generator)
        return self._permutation[place * self.batch : (place + 1) * self.batch]


class Descent:
    """The steps of a run on one process, each a function of its number alone.

    Args:
        fabric: the processes.
        model: what is trained; it is wrapped here.
        objective: the loss.
        task: the data.
        config: the settings.
        recurrent_lr: learning rate of the recurrent weights, as `parameter_groups` takes it.
    """

    def __init__(
        self, fabric: Any, model: nn.Module, objective: Objective, task: AbstractTask, config: TrainingConfig,
        recurrent_lr: float | RecurrentRate | None = None,
    ) -> None:  # fmt: skip
        self.fabric, self.plain, self.objective, self.task, self.config = fabric, model, objective, task, config
        self.part = check_batch_size(config, fabric.world_size)
        self.order = Order(task.size("train"), config.batch, config.seed)
        self.steps = config.total_steps(self.order.steps_per_epoch)
        self.model = fabric.setup_module(model)
        # after setup_module, which may move weights to a device: the optimizer must hold those
        groups = parameter_groups(model, lr=config.lr, recurrent_lr=recurrent_lr, weight_decay=config.weight_decay)
        self.optimizer = torch.optim.AdamW(
            [g for g in groups if g["params"]],
            betas=(config.betas[0], config.betas[1]),
            # one pass over all weights instead of ten; it takes neither complex weights nor those that are shared out
            fused=config.strategy != "fsdp" and all(p.is_floating_point() for p in model.parameters()),
        )
        self.rate_scale = 1.0
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.stepper = fabric.setup_optimizers(self.optimizer)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]

    def batches(self, step: int) -> list[Batch]:
        """This process's share of the step's examples, in as many parts as are accumulated."""
        # each step and process has random numbers of its own, whatever was drawn before: dropout is the same after a kill
        seed_all(mixed(self.config.seed, step, self.fabric.global_rank))
        parts = self.order.indices(step).split(self.part)
        own = parts[self.fabric.global_rank :: self.fabric.world_size]
        batches = [self.task.batch("train", indices) for indices in own]
        for batch in batches:
            check_batch(self.task, batch)
        return [batch.to(self.fabric.device) for batch in batches]

    def gradient(self, batches: list[Batch]) -> float:
        """Sets the gradient of the mean over all processes and parts; gives the loss."""
        several = self.fabric.world_size > 1
        count = float(sum(self.objective.count(batch) for batch in batches))
        if several:  # averaged gradients of sums over this are the gradient of the mean
            count = float(self.fabric.all_reduce(torch.tensor(count, device=self.fabric.device), reduce_op="mean"))
        losses: list[Tensor] = []
        for i, batch in enumerate(batches):
            with self.fabric.no_backward_sync(self.model, enabled=several and i < len(batches) - 1):
                part = self.objective.totals(self.model, batch).loss / max(count, 1.0)
                self.fabric.backward(part)
            losses.append(part.detach())
        loss = torch.stack(losses).sum()
        loss = self.fabric.all_reduce(loss, reduce_op="mean") if several else loss
        return float(loss)

    def norm(self) -> float:
        """The gradient's norm; where the settings have a largest one, the gradient is cut down to that."""
        clip = self.config.clip
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(self.parameters, clip)
        else:
            norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        # a norm over shared-out weights is a DTensor
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return float(whole)

    def update(self, step: int) -> None:
        """Moves the weights by the learning rates of a step."""
        c = self.config
        now = share(step, self.steps, warmup=c.warmup, schedule=c.schedule, floor=c.final_lr)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * now * self.rate_scale
        self.stepper.step()
        self.forget()

    def forget(self) -> None:
        """Drops the gradient."""
        self.stepper.zero_grad(set_to_none=True)
