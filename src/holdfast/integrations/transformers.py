"""A callback of transformers' Trainer that warns, stops or rolls back by the alarms of a GradientMonitor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BackendError
from holdfast.stability import DivergenceGuard, GradientMonitor
from holdfast.stability.monitor.guard import OnDivergence

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise BackendError("transformers is not installed; get it by: pip install 'holdfast[hf]'") from error


class DivergenceCallback(TrainerCallback):
    """Watches a Trainer: `Trainer(..., callbacks=[DivergenceCallback("rollback")])`.

    The loss is that of the model's output in training; gradient norms are taken before the Trainer clips them.

    Args:
        on_divergence: "warn", "stop" or "rollback", as `holdfast.stability.DivergenceGuard` has them.
        snapshot_every: optimizer steps between two snapshots.
    """

    def __init__(self, on_divergence: OnDivergence = "warn", *, snapshot_every: int = 50) -> None:
        self.on_divergence, self.snapshot_every = on_divergence, snapshot_every
        self.guard: DivergenceGuard | None = None
        self._losses: list[Tensor] = []
        self._norms: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begins to listen to the model."""
        model: nn.Module = given["model"]
        optimizer = getattr(given["optimizer"], "optimizer", given["optimizer"])  # accelerate wraps it
        self.guard = DivergenceGuard(
            model, optimizer, on_divergence=self.on_divergence, snapshot_every=self.snapshot_every,
            monitor=GradientMonitor(model),
        )  # fmt: skip
        self._handles.append(model.register_forward_hook(self._keep_loss))
        if args.max_grad_norm:
            for p in model.parameters():
                if p.requires_grad:
                    self._handles.append(p.register_post_accumulate_grad_hook(self._keep_norm))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Decides about the step; one that is not taken has no gradients."""
        assert self.guard is not None
        loss = torch.stack(self._losses).mean() if self._losses else None
        norm = float(torch.stack([*self._norms.values()]).norm()) if self._norms else None
        self._losses, self._norms = [], {}
        before = self.guard.rate_scale
        if self.guard.check(loss, step=state.global_step, gradient_norm=norm):
            return
        if self.guard.stopped:
            control.should_training_stop = True
        scheduler: Any = given.get("lr_scheduler")
        if hasattr(scheduler, "base_lrs"):  # a schedule sets rates anew at every step
            scheduler.base_lrs = [rate * self.guard.rate_scale / before for rate in scheduler.base_lrs]

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Stops listening."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self.guard is not None:
            self.guard.monitor.close()

    def _keep_loss(self, module: nn.Module, given: Any, output: Any) -> None:
        loss = output.get("loss") if hasattr(output, "get") else None
        if module.training and isinstance(loss, Tensor):
            self._losses.append(loss.detach().float().cpu())

    def _keep_norm(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        # of what has been accumulated so far: the last part of a batch leaves the whole
        self._norms[id(parameter)] = parameter.grad.norm().float().cpu()
