"""The loop: steps, evaluations, checkpoints, and the end of a run. One for everything that is trained."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast._words import duration
from holdfast.data.base import AbstractTask, Batch
from holdfast.nn.recurrent import find_recurrent, parameter_groups
from holdfast.stability import GradientMonitor
from holdfast.training import checkpoint
from holdfast.training.config import TrainingConfig
from holdfast.training.evaluate import evaluate
from holdfast.training.fabric import check_batch_size, seed_all
from holdfast.training.folder import guarded
from holdfast.training.log import LOG, Log
from holdfast.training.objective import Objective, blame_data, check_batch
from holdfast.training.order import Order, mixed
from holdfast.training.schedule import share

Progress = Callable[[str, int | None, int | None], None]
EVERY = 0.2  # seconds between two reports of progress


@dataclass
class State:
    """Where a run stands, beside its tensors: all of it goes into a checkpoint."""

    step: int = 0
    status: str = "running"
    reason: str = ""
    first_loss: float | None = None
    best: dict[str, Any] = field(default_factory=dict)
    stale: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    busy: float = 0.0


class _Scalars:
    """Takes the monitor's numbers, to be written as one line."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        if math.isfinite(scalar_value):
            self.values[tag.removeprefix("gradient_over_weight/")] = scalar_value


class Loop:
    """One run on one process: `restore` and `run`.

    Args:
        fabric: the processes.
        model: what is trained; it is wrapped here.
        objective: the loss.
        task: the data.
        config: the settings.
        folder: where checkpoints and log go.
        progress: is told how far it is.
    """

    def __init__(
        self, fabric: Any, model: nn.Module, objective: Objective, task: AbstractTask, config: TrainingConfig,
        folder: Path, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.fabric, self.plain, self.objective, self.task = fabric, model, objective, task
        self.config, self.folder, self.progress = config, folder, progress
        self.part = check_batch_size(config, fabric.world_size)
        self.order = Order(task.size("train"), config.batch, config.seed)
        self.steps = config.total_steps(self.order.steps_per_epoch)
        self.model = fabric.setup_module(model)
        groups = parameter_groups(
            model, lr=config.lr, recurrent_lr=config.recurrent_lr, weight_decay=config.weight_decay
        )
        self.optimizer = torch.optim.AdamW(
            [g for g in groups if g["params"]],
            betas=(config.betas[0], config.betas[1]),
            # one pass over all weights instead of ten; it takes neither complex weights nor those that are shared out
            fused=config.strategy != "fsdp" and all(p.is_floating_point() for p in model.parameters()),
        )
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.stepper = fabric.setup_optimizers(self.optimizer)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.state = State()
        self.log: Log | None = None
        self._told, self._pace = 0.0, 0.0
        self._valid: tuple[int, dict[str, float]] = (-1, {})
        self._watch()

    def _watch(self) -> None:
        self.scalars = _Scalars()
        # shared-out weights are in pieces: gradient over weight of a piece would say nothing
        watched = self.config.monitor_every and self.config.strategy != "fsdp" and find_recurrent(self.plain)
        self.monitor = GradientMonitor(self.plain, writer=self.scalars) if watched else None

    def restore(self) -> None:
        """Goes to the last checkpoint, where there is one."""
        body = checkpoint.read_body(self.folder, "last")
        if body is not None:
            tensors = checkpoint.read_tensors(self.folder, "last", body)
            checkpoint.put_weights(self.plain, tensors)
            checkpoint.put_optimizer_state(self.plain, self.optimizer, tensors)
            self.state = State(**body["state"])
        if self.fabric.is_global_zero:
            self.log = Log(self.folder / LOG, 0 if body is None else body["log"])

    def run(self) -> None:
        """Trains to the end."""
        self.model.train()
        began, before = time.perf_counter(), self.state.seconds
        while self.state.status == "running":
            if self.state.step < self.steps:
                self.advance()
            else:
                self._finish()
            self.state.seconds = before + time.perf_counter() - began
            self._save_if_due()

    def close(self) -> None:
        """Closes the log."""
        if self.log is not None:
            self.log.close()

    def advance(self) -> None:
        """One optimizer step and what follows from it."""
        began, step, state = time.perf_counter(), self.state.step, self.state
        batches = self._batches(step)
        loss, norm = self._gradient(step, batches)
        problem = self._problem(loss, norm)
        if problem:
            for batch in batches:
                blame_data(self.task, batch, step)
            self._end("diverged", problem)
            return
        state.first_loss = loss if state.first_loss is None else state.first_loss
        self._update(step)
        state.step += 1
        state.losses.append(loss)
        state.tokens += sum(batch.tokens for batch in batches) * self.fabric.world_size
        took = time.perf_counter() - began
        state.busy += took
        self._pace = 0.9 * self._pace + 0.1 * took if self._pace else took
        if state.step % self.config.log_every == 0 or state.step == self.steps:
            self._log_losses(norm)
        self._tell(loss, sum(batch.tokens for batch in batches) * self.fabric.world_size)
        if state.step % self._evaluate_every() == 0 and "valid" in self.task.splits:
            self._validate()

    def _batches(self, step: int) -> list[Batch]:
        """This process's share of the step's examples, in as many parts as are accumulated."""
        seed_all(mixed(self.config.seed, step, self.fabric.global_rank))
        parts = self.order.indices(step).split(self.part)
        own = parts[self.fabric.global_rank :: self.fabric.world_size]
        batches = [self.task.batch("train", indices) for indices in own]
        for batch in batches:
            check_batch(self.task, batch)
        return [batch.to(self.fabric.device) for batch in batches]

    def _gradient(self, step: int, batches: list[Batch]) -> tuple[float, float]:
        """The gradient of the mean over all processes and parts; gives loss and norm."""
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
        self._record(step)
        return float(loss), self._norm()

    def _norm(self) -> float:
        clip = self.config.clip
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(self.parameters, clip)
        else:
            norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return float(whole)

    def _update(self, step: int) -> None:
        c = self.config
        now = share(step, self.steps, warmup=c.warmup, schedule=c.schedule, floor=c.final_lr)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * now
        self.stepper.step()
        self.stepper.zero_grad(set_to_none=True)

    def _problem(self, loss: float, norm: float) -> str:
        """Why this step would be the end of training; empty where it is sound."""
        first, most = self.state.first_loss, self.config.diverged_above
        if not math.isfinite(loss):
            return "the loss is not finite"
        if not math.isfinite(norm):
            return "the gradient is not finite"
        if first is not None and 0 < first * most < loss:
            return f"the loss is {loss / first:.3g} times that of the first step"
        return ""

    def _record(self, step: int) -> None:
        if self.monitor is None or step % self.config.monitor_every:
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.monitor.record(step)
        if self.log is not None:
            with guarded(self.folder):
                self.log.write("gradients", step=step, values=self.scalars.values)
                for warning in caught:
                    self.log.write("warning", step=step, text=str(warning.message))
        self.scalars.values = {}

    def _log_losses(self, norm: float) -> None:
        state = self.state
        values = {
            "loss": sum(state.losses) / len(state.losses),
            "lr": self.optimizer.param_groups[0]["lr"],
            "recurrent_lr": self.optimizer.param_groups[-1]["lr"],
            "norm": norm,
            "seconds": state.seconds,
            "tokens_per_second": state.tokens / max(state.busy, 1e-9),
        }
        self._write("train", values)
        state.losses, state.tokens, state.busy = [], 0, 0.0

    def _write(self, event: str, values: Mapping[str, Any]) -> None:
        if self.log is None:
            return
        with guarded(self.folder):
            self.log.write(event, step=self.state.step, **values)
        numbers = {f"{event}/{k}": v for k, v in values.items() if isinstance(v, float) and math.isfinite(v)}
        if self.fabric.loggers:
            self.fabric.log_dict(numbers, step=self.state.step)

    def _tell(self, loss: float, tokens: int) -> None:
        now = time.monotonic()
        if self.progress is None or not self.fabric.is_global_zero or now - self._told < EVERY:
            return
        self._told = now
        left = duration((self.steps - self.state.step) * self._pace)
        text = f"loss {loss:.4g}, {tokens / max(self._pace, 1e-9):,.0f} tokens/s, {left} left"
        self.progress(text, self.state.step, self.steps)

    def _evaluate_every(self) -> int:
        per_epoch = self.order.steps_per_epoch
        return self.config.evaluate_every or per_epoch or max(1, self.steps // 10)

    def _validate(self) -> None:
        state, name = self.state, self.config.best
        metrics = self._measure("valid")
        self._valid = (state.step, metrics)
        self._write("evaluate", {"split": "valid", **metrics})
        value = metrics.get(name)
        before = state.best.get("valid", {}).get(name)
        better = value is not None and (before is None or (value < before if name == "loss" else value > before))
        state.stale = 0 if better else state.stale + 1
        if better:
            state.best = {"step": state.step, "valid": metrics}
            self._save("best")
        if self.config.patience is not None and state.stale >= self.config.patience:
            self._finish("stopped early", f"no better {name} on valid in {state.stale} evaluations")

    def _measure(self, split: Any) -> dict[str, float]:
        return evaluate(
            self.fabric, self.model, self.objective, self.task, split,
            batch=self.part, most=self.config.evaluate_batches,
        )  # fmt: skip

    def _finish(self, status: str = "finished", reason: str = "") -> None:
        """Metrics of the final weights and, where these are others, the test metrics of the best."""
        state = self.state
        splits = [split for split in self.task.splits if split != "train"]
        fresh = {"valid": self._valid[1]} if self._valid[0] == state.step else {}
        state.metrics = {split: fresh.get(split) or self._measure(split) for split in splits}
        if state.best and "test" in splits:
            state.best["test"] = state.metrics["test"]
            if state.best["step"] != state.step:
                with self._best_weights():
                    state.best["test"] = self._measure("test")
        self._end(status, reason)

    @contextmanager
    def _best_weights(self) -> Iterator[None]:
        body = checkpoint.read_body(self.folder, "best")
        assert body is not None
        last = {name: value.clone() for name, value in checkpoint.weights_of(self.plain, everywhere=True).items()}
        checkpoint.put_weights(self.plain, checkpoint.read_tensors(self.folder, "best", body))
        yield
        checkpoint.put_weights(self.plain, last)

    def _end(self, status: str, reason: str) -> None:
        self.stepper.zero_grad(set_to_none=True)
        self.state.status, self.state.reason = status, reason
        self._write("end", {"status": status, "reason": reason, "metrics": self.state.metrics, "best": self.state.best})

    def _save_if_due(self) -> None:
        state = self.state
        evaluated = state.step % self._evaluate_every() == 0 and "valid" in self.task.splits
        if state.status != "running" or state.step % self.config.checkpoint_every == 0 or evaluated:
            self._save("last")

    def _save(self, which: checkpoint.Which) -> None:
        """Every process takes part: weights that are shared out are put together first."""
        tensors = checkpoint.weights_of(self.plain)
        if which == "last":
            tensors |= checkpoint.optimizer_state_of(self.plain, self.optimizer)
        if self.log is not None:
            kept = f"The checkpoint before step {self.state.step} is kept."
            with guarded(self.folder, kept):
                body = {"state": asdict(self.state), "log": self.log.settle()}
                checkpoint.write(self.folder, which, tensors, body)
        self.fabric.barrier()
