"""One step of training: which examples, their gradient, and the move of the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.data._base import AbstractTask, Batch
from holdfast.stability import RecurrentRate, parameter_groups
from holdfast.training._config import TrainingConfig
from holdfast.training._fabric import check_batch_size, seed_all
from holdfast.training._objective import Objective, check_batch
from holdfast.training._order import Order, mixed
from holdfast.training._schedule import share


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
