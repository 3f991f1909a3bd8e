"""The settings of a training run, apart from its task and its model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from holdfast._arguments import checked_fields, positive
from holdfast._codec import plain
from holdfast.errors import ArgumentError, unknown_name

Schedule = Literal["cosine", "constant"]
# what may change when a run is continued: where it runs and how often it is saved, not what is computed
FREE_SETTINGS = ("checkpoint_every", "accelerator", "strategy", "devices", "nodes", "threads", "tensorboard")
OPTIMIZER = ("lr", "recurrent_lr", "memory", "weight_decay", "betas", "warmup", "schedule", "final_lr", "clip")


@checked_fields
@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training run; give `steps` or `epochs`.

    Args:
        lr: learning rate of the weights that are not recurrent (AdamW).
        recurrent_lr: learning rate of the recurrent weights, which have no weight decay; None is `lr`. "auto" is the rate
            with which this run can learn the memory that it needs (`holdfast.recurrent_rate`), for each recurrence its own.
        memory: with "auto", steps that the model is to remember; None is the length of the task's sequences, "data" what
            `holdfast.study_task` finds in some of them, or their length where it is undecided.
        weight_decay: of the weights that are not recurrent.
        betas: the two decay rates of AdamW's averages.
        warmup: steps over which the learning rates rise to their full value.
        schedule: "cosine" lets them fall after the warm-up to `final_lr`; "constant" leaves them.
        final_lr: share of the learning rates that the cosine ends at.
        clip: largest norm of the gradient; None does not clip.
        batch: examples of one step, over all processes.
        accumulate: parts that each process cuts its share of a batch into, one after the other, to save memory.
        steps: number of optimizer steps.
        epochs: number of passes over the training split, instead of `steps`.
        seed: of the order of examples and of dropout.
        evaluate_every: steps between two evaluations on "valid"; None is once per epoch, or ten times per run where
            examples are generated endlessly.
        evaluate_batches: most batches of one evaluation; None is the whole split, 16 batches of an endless one.
        best: which validation metric decides about the best weights and early stopping.
        patience: evaluations without a better one after which training stops; None never stops early.
        checkpoint_every: steps between two checkpoints; there is one after each evaluation too.
        log_every: steps that a line of the log is the mean of.
        monitor_every: steps between two records of gradient over weight; 0 keeps none.
        on_divergence: what an acute alarm of the monitor leads to: "warn" goes on, "stop" ends the run as diverged before
            the step, "rollback" goes back to the last snapshot (every 50 steps), halves the learning rates and goes on.
        diverged_above: a loss this many times that of the first step ends the run as diverged.
        precision: of the computation: "32-true", "64-true", "bf16-mixed" or "bf16-true".
        accelerator: "auto", "cpu" or "gpu".
        strategy: "auto" for one device, "ddp" copies the model to each, "fsdp" shares its weights out among them.
        devices: number of devices, or of processes on a CPU, of one machine.
        nodes: number of machines.
        threads: threads of one process; None leaves torch's number.
        tensorboard: also write the log for TensorBoard.
    """

    lr: float = 1e-3
    recurrent_lr: float | Literal["auto"] | None = None
    memory: int | float | Literal["data"] | None = None
    weight_decay: float = 0.01
    betas: Sequence[float] = (0.9, 0.999)
    warmup: int = 0
    schedule: Schedule = "cosine"
    final_lr: float = 0.0
    clip: float | None = 1.0
    batch: int = 32
    accumulate: int = 1
    steps: int | None = None
    epochs: int | None = None
    seed: int = 0
    evaluate_every: int | None = None
    evaluate_batches: int | None = None
    best: Literal["loss", "accuracy"] = "loss"
    patience: int | None = None
    checkpoint_every: int = 500
    log_every: int = 10
    monitor_every: int = 10
    on_divergence: Literal["warn", "stop", "rollback"] = "warn"
    diverged_above: float = 1e3
    precision: Literal["32-true", "64-true", "bf16-mixed", "bf16-true"] = "32-true"
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    devices: int = 1
    nodes: int = 1
    threads: int | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(float(beta) for beta in self.betas))
        positive(
            batch=self.batch, accumulate=self.accumulate, steps=self.steps, epochs=self.epochs,
            evaluate_every=self.evaluate_every, evaluate_batches=self.evaluate_batches, patience=self.patience,
            checkpoint_every=self.checkpoint_every, log_every=self.log_every, devices=self.devices, nodes=self.nodes,
            threads=self.threads,
        )  # fmt: skip
        if (self.steps is None) == (self.epochs is None):
            raise ArgumentError(f"expected steps or epochs, one of them, got steps={self.steps}, epochs={self.epochs}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ArgumentError(f"betas must be two numbers in [0, 1), got {self.betas}")
        if self.on_divergence != "warn" and (not self.monitor_every or self.strategy == "fsdp"):
            raise ArgumentError(
                f"on_divergence = {self.on_divergence!r} needs the monitor: monitor_every >= 1 and a strategy other than "
                f"'fsdp', got monitor_every={self.monitor_every}, strategy={self.strategy!r}"
            )
        self._check_rates()

    def _check_rates(self) -> None:
        for name in ("lr", "recurrent_lr", "weight_decay", "warmup", "monitor_every"):
            value = getattr(self, name)
            if value is not None and value != "auto" and not 0 <= value < math.inf:
                raise ArgumentError(f"{name} must be a finite number >= 0, got {value!r}")
        known = self.memory is None or self.memory == "data" or 1 <= self.memory < math.inf
        if not known or (self.memory is not None and self.recurrent_lr != "auto"):
            raise ArgumentError(
                "memory must be 'data' or at least 1 step, and needs recurrent_lr = 'auto'; got "
                f"memory={self.memory!r}, recurrent_lr={self.recurrent_lr!r}"
            )
        for name in ("clip", "diverged_above"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ArgumentError(f"{name} must be above 0, got {value!r}")
        if not 0 <= self.final_lr <= 1:
            raise ArgumentError(f"final_lr must be a share of lr from 0 to 1, got {self.final_lr!r}")
        if self.strategy == "auto" and self.devices * self.nodes > 1:
            raise ArgumentError(
                f"strategy must be 'ddp' or 'fsdp' for devices = {self.devices} and nodes = {self.nodes}, got 'auto'"
            )

    @classmethod
    def of(cls, given: TrainingConfig | Mapping[str, Any]) -> TrainingConfig:
        """`given` itself, or the config made of it where it is a mapping; an unknown name meets the nearest known one."""
        if isinstance(given, TrainingConfig):
            return given
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise unknown_name("setting of a training run", name, known)
        return cls(**given)

    def identity(self) -> dict[str, Any]:
        """The settings that decide what is computed: two runs with equal ones compute the same."""
        settings = {name: value for name, value in plain(self).items() if name not in FREE_SETTINGS}
        # without "auto" it decides nothing, and runs that were begun before it was there go on
        return settings if self.memory is not None else {n: v for n, v in settings.items() if n != "memory"}

    def total_steps(self, per_epoch: int | None) -> int:
        """The number of optimizer steps, where `per_epoch` of them pass over the data; None where that never ends."""
        if self.steps is not None:
            return self.steps
        if per_epoch is None:
            raise ArgumentError(
                "epochs needs a task of fixed size, got one that generates examples endlessly; use steps"
            )
        assert self.epochs is not None
        return self.epochs * per_epoch
