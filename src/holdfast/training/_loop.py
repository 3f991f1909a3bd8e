"""The loop: steps, evaluations, checkpoints, and the end of a run. One for everything that is trained."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast._words import duration
from holdfast.data._base import Batch
from holdfast.nn import recurrences
from holdfast.stability import DivergenceGuard, GradientMonitor
from holdfast.stability.monitor.vitals import reach_ahead
from holdfast.training import _checkpoint as checkpoint
from holdfast.training._descent import Descent
from holdfast.training._folder import guarded
from holdfast.training._log import EMPTY_MARK, LOG, Log
from holdfast.training._objective import blame_data, evaluate
from holdfast.training._threads import ThreadChoice

Progress = Callable[[str, int | None, int | None], None]
SECONDS_BETWEEN_REPORTS = 0.2
# records of the monitor between two with eigenvalues of dense matrices: a 256 x 256 one takes 60 ms. By count and not
# by the clock, so that a continued run writes the lines of an uninterrupted one
RECORDS_BETWEEN_EIGENVALUES = 10
MONITOR = "monitor.rows"


@dataclass
class State:
    """Where a run stands, beside its tensors: all of it goes into a checkpoint."""

    step: int = 0
    status: str = "running"
    reason: str = ""
    finite: bool = True
    first_loss: float | None = None
    best: dict[str, Any] = field(default_factory=dict)
    # evaluations since the best one
    stale: int = 0
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    # since the last line of the log; in checkpoints too, so that a line is the same with a kill in between
    losses: list[float] = field(default_factory=list)
    tokens: int = 0
    busy: float = 0.0
    monitor: dict[str, Any] = field(default_factory=dict)
    rate_scale: float = 1.0


class Loop:
    """One run on one process: `restore` and `run`.

    Args:
        descent: its steps, with the processes, the model, the data and the settings.
        folder: where checkpoints and log go.
        progress: receives how far it is.
        notes: lines that begin the log.
    """

    def __init__(self, descent: Descent, folder: Path, progress: Progress | None, notes: Sequence[str] = ()) -> None:
        self.descent, self.folder, self.progress, self.notes = descent, folder, progress, notes
        self.fabric, self.plain, self.objective = descent.fabric, descent.plain, descent.objective
        self.task, self.config = descent.task, descent.config
        self.state = State()
        self.log: Log | None = None
        # when progress was last reported, and seconds per step as a running mean: only for people, so not in a checkpoint
        self._told, self._pace = 0.0, 0.0
        self._saved: int | None = None
        self._valid: tuple[int, dict[str, float]] = (-1, {})
        # a number that the config names is kept; processes that share the cores have one thread each as a rule
        chooses = self.config.threads is None and self.fabric.device.type == "cpu"
        self._threads = ThreadChoice(torch.get_num_threads() if chooses else 1)
        self._watch()

    def _watch(self) -> None:
        # shared-out weights are in pieces: gradient over weight of a piece would say nothing
        watched = self.config.monitor_every and self.config.strategy != "fsdp" and recurrences(self.plain)
        every, acts = max(1, self.config.monitor_every), self.config.on_divergence != "warn"
        self.monitor = GradientMonitor(self.plain, every=every) if watched or acts else None
        self.guard = (
            None
            if self.monitor is None
            else DivergenceGuard(
                self.plain, self.descent.optimizer, on_divergence=self.config.on_divergence, monitor=self.monitor
            )
        )

    def restore(self) -> None:
        """Goes to the last checkpoint, where there is one."""
        body = checkpoint.read_body(self.folder, "last")
        if body is not None:
            tensors = checkpoint.read_tensors(self.folder, "last", body)
            checkpoint.put_weights(self.plain, tensors)
            checkpoint.put_optimizer_state(self.plain, self.descent.optimizer, tensors)
            self.state = State(**body["state"])
            self._saved = self.state.step
            if self.monitor is not None and MONITOR in tensors:
                self.monitor.restore(self.state.monitor, tensors[MONITOR].numpy())
            self.descent.rate_scale = self.state.rate_scale
            if self.guard is not None and self.config.on_divergence == "rollback":
                self.guard.keep(self.state.step)
        if self.fabric.is_global_zero:
            self.log = Log(self.folder / LOG, EMPTY_MARK if body is None else body["log"])
            for text in self.notes if body is None else ():
                self._write("note", {"text": text})

    def run(self) -> None:
        """Trains to the end."""
        self.descent.model.train()
        began, before = time.perf_counter(), self.state.seconds
        while self.state.status == "running":
            if self.state.step < self.descent.steps:
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
        batches = self.descent.batches(step)
        loss = self.descent.gradient(batches)
        # before clipping, which would hide how large the gradient was
        taken = self._record(step, loss)
        norm = self.descent.norm() if taken else math.nan
        problem = self._problem(loss, norm) if taken or not math.isfinite(loss) else ""
        if not taken and self.guard is not None and self.config.on_divergence == "rollback" and not self.guard.stopped:
            self._roll_back(batches)
            return
        if not taken and self.guard is not None:
            problem = self.guard.stopped
        if problem:
            # a NaN that was in the data is an error of the data, and no divergence
            for batch in batches:
                blame_data(self.task, batch, step)
            state.finite = math.isfinite(loss) and (not taken or math.isfinite(norm))
            self._end("diverged", problem)
            return
        # of a step that was taken: a first loss that is not finite is none to compare with
        state.first_loss = loss if state.first_loss is None else state.first_loss
        self.descent.update(step)
        state.step += 1
        state.losses.append(loss)
        tokens = sum(batch.tokens for batch in batches)
        state.tokens += tokens * self.fabric.world_size
        took = time.perf_counter() - began
        state.busy += took
        changed = self._threads.after_step(took, tokens)
        if changed:
            self._write("threads", {"text": changed})
        self._pace = 0.9 * self._pace + 0.1 * took if self._pace else took
        if state.step % self.config.log_every == 0 or state.step == self.descent.steps:
            self._log_losses(norm)
        self._tell(loss, tokens * self.fabric.world_size)
        if state.step % self._evaluate_every() == 0 and "valid" in self.task.splits:
            self._validate()

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

    def _roll_back(self, batches: list[Batch]) -> None:
        """Continues with the next batch from the weights of a snapshot; a NaN in the data is still an error."""
        assert self.guard is not None
        for batch in batches:
            blame_data(self.task, batch, self.state.step)
        step, kept = self.guard.rollbacks[-1]
        self.state.rate_scale *= self.guard.rate_factor
        self.descent.rate_scale = self.state.rate_scale
        self.descent.forget()
        self.state.step += 1
        text = f"step {step}: back to the weights of step {kept}, learning rates times {self.state.rate_scale:g}"
        self._write("warning", {"text": text})

    def _record(self, step: int, loss: float) -> bool:
        """Whether the step is to be taken."""
        if self.guard is None:
            return True
        # into the log, where they stay with the run; the same warning of a later step is shown again
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            due = step // max(1, self.config.monitor_every) % RECORDS_BETWEEN_EIGENVALUES == 0
            taken = self.guard.check(loss, step=step, dense=due)
        assert self.monitor is not None
        values = self.monitor.newest() if self.monitor.recorded == step else {}
        ahead = reach_ahead(self.monitor, self.descent.optimizer, self.descent.steps - step) if values and due else {}
        if self.log is not None:
            with guarded(self.folder):
                for event, numbers in (("gradients", values), ("reach", ahead)):
                    if numbers:
                        self.log.write(event, step=step, values=numbers)
                for warning in caught:
                    self.log.write("warning", step=step, text=str(warning.message))
            if self.fabric.loggers and values:
                named = {f"gradients/{name}": value for name, value in values.items()}
                self.fabric.log_dict(named | {f"reach/{path}": steps for path, steps in ahead.items()}, step=step)
        return taken

    def _log_losses(self, norm: float) -> None:
        state = self.state
        values = {
            "loss": sum(state.losses) / len(state.losses),
            "lr": self.descent.optimizer.param_groups[0]["lr"],
            "recurrent_lr": self.descent.optimizer.param_groups[-1]["lr"],
            "norm": norm,
            "seconds": state.seconds,
            "tokens_per_second": state.tokens / max(state.busy, 1e-9),
        }
        self._write("train", values)
        if self.log is not None:
            with guarded(self.folder):
                self.log.flush()  # `holdfast watch` reads along
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
        if self.progress is None or not self.fabric.is_global_zero or now - self._told < SECONDS_BETWEEN_REPORTS:
            return
        self._told = now
        # what the last steps took says more than the mean of all: the first ones compile and warm caches
        left = duration((self.descent.steps - self.state.step) * self._pace)
        text = f"loss {loss:.4g}, {tokens / max(self._pace, 1e-9):,.0f} tokens/s, {left} left"
        self.progress(text, self.state.step, self.descent.steps)

    def _evaluate_every(self) -> int:
        per_epoch = self.descent.order.steps_per_epoch
        return self.config.evaluate_every or per_epoch or max(1, self.descent.steps // 10)

    def _validate(self) -> None:
        state, name = self.state, self.config.best
        metrics = self._measure("valid")
        # kept, so that the end of a run does not measure the same weights again
        self._valid = (state.step, metrics)
        self._write("evaluate", {"split": "valid", **metrics})
        value = metrics.get(name)
        before = state.best.get("valid", {}).get(name)
        better = value is not None and (before is None or (value < before if name == "loss" else value > before))
        state.stale = 0 if better else state.stale + 1
        if better:
            state.best = {"step": state.step, "valid": metrics}
            # at once: the weights of the best evaluation are gone with the next step
            self._save("best")
        if self.config.patience is not None and state.stale >= self.config.patience:
            self._finish("stopped early", f"no better {name} on valid in {state.stale} evaluations")

    def _measure(self, split: Any) -> dict[str, float]:
        return evaluate(
            self.fabric, self.descent.model, self.objective, self.task, split,
            batch=self.descent.part, most=self.config.evaluate_batches,
        )  # fmt: skip

    def _finish(self, status: str = "finished", reason: str = "") -> None:
        """Metrics of the final weights and, where these are others, the test metrics of the best."""
        state = self.state
        splits = [split for split in self.task.splits if split != "train"]
        # a run whose last step was evaluated has these numbers already
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
        # on every process, and cloned: the tensors are those of the model, which are overwritten next
        last = {name: value.clone() for name, value in checkpoint.weights_of(self.plain, everywhere=True).items()}
        checkpoint.put_weights(self.plain, checkpoint.read_tensors(self.folder, "best", body))
        yield
        checkpoint.put_weights(self.plain, last)

    def _end(self, status: str, reason: str) -> None:
        self.descent.forget()
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
            tensors |= checkpoint.optimizer_state_of(self.plain, self.descent.optimizer)
            if self.monitor is not None:
                self.state.monitor, rows = self.monitor.state()
                tensors[MONITOR] = torch.from_numpy(rows)
        if self.log is not None:
            kept = "" if self._saved is None else f"The checkpoint of step {self._saved} is kept."
            with guarded(self.folder, kept):
                # the log first: a checkpoint names only lines that are on disk
                body = {"state": asdict(self.state), "log": self.log.settle()}
                checkpoint.write(self.folder, which, tensors, body)
        if which == "last":
            self._saved = self.state.step
            # a continued run begins with this snapshot, so an uninterrupted one takes it too
            if self.guard is not None and self.config.on_divergence == "rollback":
                self.guard.keep(self.state.step)
        self.fabric.barrier()
