"""transformers' Trainer: `attach(trainer)` logs how memory fares, acts before training diverges, and sets rates by law."""

from __future__ import annotations

import functools
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from holdfast.errors import ArgumentError, BackendError
from holdfast.integrations._watch import TrainingWatch, regroup
from holdfast.stability._checkpoints import free_weights, restore_free_weights
from holdfast.stability.monitor.guard import OnDivergence

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise BackendError("transformers is not installed: pip install 'holdfast[hf]'") from error

# in TrainerState.stateful_callbacks. Not transformers' ExportableState: that one makes a new callback of a checkpoint, and
# cannot save in a run that was resumed from a checkpoint without it
STATE_KEY = "holdfast"
FREE_WEIGHTS = "holdfast.safetensors"  # in a checkpoint's folder


def attach(
    trainer: Any,
    on_divergence: OnDivergence = "warn",
    *,
    recurrent_lr: float | Literal["auto"] | None = None,
    memory: int | float | None = None,
    every: int = 10,
    folder: str | PathLike[str] | None = None,
    snapshot_every: int = 50,
    inputs: Tensor | None = None,
) -> HoldfastCallback:
    """Watches a Trainer, before its `train()` is called: `attach(trainer, "rollback", recurrent_lr="auto", memory=200)`.

    Margins, time constants, gradient over weight, step sizes, reach and memory go through `trainer.log` to wherever it
    reports: TensorBoard, W&B, MLflow, `trainer.state.log_history`.

    Args:
        trainer: a Trainer that makes its optimizer itself, unless `recurrent_lr` is None.
        on_divergence: "warn", "stop" or "rollback", as `holdfast.stability.DivergenceGuard` has them.
        recurrent_lr: learning rate of recurrent weights, which then have no weight decay; "auto" follows from `memory` and
            the Trainer's number of steps; None leaves the optimizer as it is.
        memory: with "auto", steps that the model is to remember.
        every: optimizer steps between two records.
        folder: where `log.jsonl` for `holdfast watch` is written.
        snapshot_every: optimizer steps between two snapshots.
        inputs: a few sequences as the model takes them, such as tokens (rows, time), which its memory is measured on.
    """
    callback = HoldfastCallback(on_divergence, every=every, folder=folder, snapshot_every=snapshot_every, inputs=inputs)
    callback.trainer = trainer
    trainer.add_callback(callback)
    if recurrent_lr is not None:
        if trainer.optimizer is not None:
            raise ArgumentError(
                "recurrent_lr: expected a Trainer that makes its own optimizer, got one with an optimizer; make that optimizer "
                "from holdfast.parameter_groups and leave recurrent_lr out"
            )
        _group_later(trainer, recurrent_lr, memory)
    return callback


def _group_later(trainer: Any, recurrent_lr: float | Literal["auto"], memory: int | float | None) -> None:
    """Groups the optimizer once it is there: before its schedule is made, and before a checkpoint is read into it."""
    make_schedule = trainer.create_scheduler

    @functools.wraps(make_schedule)
    def grouped(num_training_steps: int, *given: Any, **named: Any) -> Any:
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # accelerate wraps it
        if not optimizer.state:  # a second `train()` continues with the same one
            steps = num_training_steps if recurrent_lr == "auto" else None
            regroup(optimizer, trainer.model, recurrent_lr=recurrent_lr, steps=steps, memory=memory)
        return make_schedule(num_training_steps, *given, **named)

    trainer.create_scheduler = grouped


class HoldfastCallback(TrainerCallback):
    """What `attach` adds to a Trainer; alone, in `Trainer(callbacks=[...])`, it acts and writes its folder, and logs nothing.

    The loss is that of the model's output in training; gradient norms are taken before the Trainer clips them. The medians
    that alarms compare with are in the Trainer's checkpoints, so that a resumed run raises the same alarms.

    Args:
        on_divergence: "warn", "stop" or "rollback", as `holdfast.stability.DivergenceGuard` has them.
        every: optimizer steps between two records.
        folder: where `log.jsonl` for `holdfast watch` is written.
        snapshot_every: optimizer steps between two snapshots.
        inputs: a few sequences as the model takes them, which its memory is measured on.
    """

    def __init__(
        self,
        on_divergence: OnDivergence = "warn",
        *,
        every: int = 10,
        folder: str | PathLike[str] | None = None,
        snapshot_every: int = 50,
        inputs: Tensor | None = None,
    ) -> None:
        self.on_divergence, self.every, self.folder, self.snapshot_every = on_divergence, every, folder, snapshot_every
        self.inputs = inputs
        self.watch: TrainingWatch | None = None
        self.trainer: Any = None
        self._losses: list[Tensor] = []
        self._norms: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begins to listen to the model, which may be made only now."""
        model: nn.Module = given["model"]
        optimizer = getattr(given["optimizer"], "optimizer", given["optimizer"])  # accelerate wraps it
        self.watch = TrainingWatch(
            model, optimizer, on_divergence=self.on_divergence, every=self.every, steps=state.max_steps or None,
            folder=self.folder, log=self._log, snapshot_every=self.snapshot_every, inputs=self.inputs,
        )  # fmt: skip
        saved = state.stateful_callbacks.get(STATE_KEY) if state.global_step else None
        if saved is not None:
            self.watch.monitor.load_windows(saved["windows"])
            file = _checkpoint(args, state) / FREE_WEIGHTS
            restore_free_weights(model, load_file(file) if file.is_file() else {})
        self._handles.append(model.register_forward_hook(self._keep_loss))
        if args.max_grad_norm:
            for p in model.parameters():
                if p.requires_grad:
                    self._handles.append(p.register_post_accumulate_grad_hook(self._keep_norm))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Decides about the step; one that is not taken has no gradients."""
        assert self.watch is not None
        loss = torch.stack(self._losses).mean() if self._losses else None
        norm = float(torch.stack([*self._norms.values()]).norm()) if self._norms else None
        self._losses, self._norms = [], {}
        before = self.watch.guard.rate_scale
        if not self.watch.check(loss, step=state.global_step, gradient_norm=norm):
            control.should_training_stop = control.should_training_stop or bool(self.watch.stopped)
            self.watch.rescale([given.get("lr_scheduler")], before)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Puts the recent values that alarms compare with where the Trainer's next checkpoint keeps them."""
        assert self.watch is not None
        state.stateful_callbacks[STATE_KEY] = {"windows": self.watch.monitor.windows()}

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Adds the free weights of a stabilized model to a checkpoint, which has the plain ones: an inverse rounds."""
        free = {name: p.detach().contiguous() for name, p in free_weights(given["model"]).items()}
        if free and state.is_world_process_zero and _checkpoint(args, state).is_dir():
            save_file(free, _checkpoint(args, state) / FREE_WEIGHTS)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Stops listening."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self.watch is not None:
            self.watch.close()

    def _log(self, values: dict[str, float], step: int) -> None:
        if self.trainer is not None:
            self.trainer.log(values)

    def _keep_loss(self, module: nn.Module, given: Any, output: Any) -> None:
        loss = output.get("loss") if hasattr(output, "get") else None
        if module.training and isinstance(loss, Tensor):
            self._losses.append(loss.detach().float().cpu())

    def _keep_norm(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        # of what has been accumulated so far: the last part of a batch leaves the whole
        self._norms[id(parameter)] = parameter.grad.norm().float().cpu()


def _checkpoint(args: Any, state: Any) -> Path:
    """Where a Trainer keeps the checkpoint of the present step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
