"""Lightning's Trainer: a callback that logs how memory fares, acts before training diverges, and sets rates by law."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal

from torch import Tensor

from holdfast.errors import ArgumentError, BackendError
from holdfast.integrations._watch import TrainingWatch, regroup
from holdfast.stability.monitor.guard import OnDivergence

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise BackendError("lightning is not installed: pip install 'holdfast[lightning]'") from error


class HoldfastCallback(Callback):
    """Watches a Trainer with one optimizer: `Trainer(callbacks=[HoldfastCallback("rollback")])`.

    Margins, time constants, gradient over weight, step sizes, reach and memory go to the Trainer's loggers.

    Args:
        on_divergence: "warn", "stop" or "rollback", as `holdfast.stability.DivergenceGuard` has them.
        recurrent_lr: learning rate of recurrent weights, which then have no weight decay; "auto" follows from `memory` and
            the Trainer's number of steps; None leaves the optimizer as it is.
        memory: with "auto", steps that the model is to remember.
        every: optimizer steps between two records.
        folder: where `log.jsonl` for `holdfast watch` is written.
        snapshot_every: optimizer steps between two snapshots.
        inputs: a few sequences as the module's `forward` takes them, which its memory is measured on.
    """

    def __init__(
        self,
        on_divergence: OnDivergence = "warn",
        *,
        recurrent_lr: float | Literal["auto"] | None = None,
        memory: int | float | None = None,
        every: int = 10,
        folder: str | PathLike[str] | None = None,
        snapshot_every: int = 50,
        inputs: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.on_divergence, self.every, self.folder, self.snapshot_every = on_divergence, every, folder, snapshot_every
        self.recurrent_lr, self.memory, self.inputs = recurrent_lr, memory, inputs
        self.watch: TrainingWatch | None = None
        self._losses: list[float] = []
        self._windows: dict[str, list[float]] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Groups the optimizer's weights as the module makes it: before a checkpoint's state is read into it."""
        if stage != "fit" or self.recurrent_lr is None:
            return
        configure = pl_module.configure_optimizers

        def grouped() -> Any:
            made = configure()
            self._regroup(trainer, pl_module, made)
            return made

        pl_module.configure_optimizers = grouped

    def _regroup(self, trainer: Any, pl_module: Any, made: Any) -> None:
        optimizer = made["optimizer"] if isinstance(made, dict) else made[0] if isinstance(made, list | tuple) else made
        if isinstance(made, list | tuple | dict):
            # its schedule has taken the rates of the groups as they were
            raise ArgumentError(
                "recurrent_lr: expected configure_optimizers to return one optimizer, got one with a schedule; make that "
                "optimizer from holdfast.parameter_groups(self, lr=..., recurrent_lr=...) and leave recurrent_lr out here"
            )
        assert self.recurrent_lr is not None
        steps = int(trainer.estimated_stepping_batches) if self.recurrent_lr == "auto" else None
        regroup(optimizer, pl_module, recurrent_lr=self.recurrent_lr, steps=steps, memory=self.memory)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins to listen to the module."""
        steps = trainer.estimated_stepping_batches
        self.watch = TrainingWatch(
            pl_module, trainer.optimizers[0], on_divergence=self.on_divergence, every=self.every,
            steps=int(steps) if 0 < steps < float("inf") else None, folder=self.folder,
            log=lambda values, step: [logger.log_metrics(values, step) for logger in trainer.loggers],
            snapshot_every=self.snapshot_every, inputs=self.inputs,
        )  # fmt: skip
        self.watch.monitor.load_windows(self._windows)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Keeps the loss; with accumulated gradients, of each part."""
        self._losses.append(float(loss.detach()) * trainer.accumulate_grad_batches)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Decides about the step, before gradients are clipped; one that is not taken has no gradients."""
        assert self.watch is not None
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        self._losses = []
        before = self.watch.guard.rate_scale
        if not self.watch.check(loss, step=trainer.global_step):
            trainer.should_stop = trainer.should_stop or bool(self.watch.stopped)
            self.watch.rescale([config.scheduler for config in trainer.lr_scheduler_configs], before)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stops listening."""
        if self.watch is not None:
            self.watch.close()

    def state_dict(self) -> dict[str, Any]:
        """The recent values that alarms compare with, for a checkpoint."""
        return {"windows": self._windows if self.watch is None else self.watch.monitor.windows()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` gave.

        Args:
            state_dict: of a checkpoint.
        """
        self._windows = state_dict["windows"]
