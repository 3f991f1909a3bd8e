"""A callback of Lightning's Trainer that warns, stops or rolls back by the alarms of a GradientMonitor."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from holdfast.errors import BackendError
from holdfast.stability import DivergenceGuard, GradientMonitor
from holdfast.stability.monitor.guard import OnDivergence

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise BackendError("lightning is not installed; get it by: pip install lightning") from error


class DivergenceCallback(Callback):
    """Watches a Trainer with one optimizer: `Trainer(callbacks=[DivergenceCallback("rollback")])`.

    Args:
        on_divergence: "warn", "stop" or "rollback", as `holdfast.stability.DivergenceGuard` has them.
        snapshot_every: optimizer steps between two snapshots.
    """

    def __init__(self, on_divergence: OnDivergence = "warn", *, snapshot_every: int = 50) -> None:
        super().__init__()
        self.on_divergence, self.snapshot_every = on_divergence, snapshot_every
        self.guard: DivergenceGuard | None = None
        self._losses: list[float] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins to listen to the module."""
        self.guard = DivergenceGuard(
            pl_module, trainer.optimizers[0], on_divergence=self.on_divergence, snapshot_every=self.snapshot_every,
            monitor=GradientMonitor(pl_module),
        )  # fmt: skip

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Keeps the loss; with accumulated gradients, of each part."""
        self._losses.append(float(loss.detach()) * trainer.accumulate_grad_batches)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Decides about the step, before gradients are clipped; one that is not taken has no gradients."""
        assert self.guard is not None
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        self._losses = []
        before = self.guard.rate_scale
        if self.guard.check(loss, step=trainer.global_step):
            return
        trainer.should_stop = trainer.should_stop or bool(self.guard.stopped)
        for config in trainer.lr_scheduler_configs:
            if hasattr(config.scheduler, "base_lrs"):  # a schedule sets rates anew at every step
                scale = self.guard.rate_scale / before
                config.scheduler.base_lrs = [rate * scale for rate in config.scheduler.base_lrs]

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stops listening."""
        if self.guard is not None:
            self.guard.monitor.close()
