"""TrainingWatch: what every adapter does before an optimizer step, and what a loop of one's own calls."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError
from holdfast.memory import memory_on_data
from holdfast.stability import DivergenceGuard, DivergenceWarning, GradientMonitor, RecurrentRate, parameter_groups
from holdfast.stability.monitor.guard import OnDivergence
from holdfast.stability.monitor.vitals import reach_ahead, vitals
from holdfast.training._log import LOG, Log, continued_log

RECORDS_BETWEEN_REACHES = 10  # a reach solves for where the model rests, which a step should not pay for
MEMORY_PLACES = 8  # inputs that are exchanged for one number of memory: as many runs of one row
Logger = Callable[[dict[str, float], int], Any]


class TrainingWatch:
    """Watches a loop of yours: `if watch.check(loss): optimizer.step()`, between backward and clipping.

    It records margins, time constants, gradient over weight, step sizes, reach and memory, warns before training diverges,
    and stops or rolls back as `holdfast.stability.DivergenceGuard` does. What it sees goes to `log`, and into a folder that
    `holdfast watch FOLDER` shows while training runs.

    Args:
        model: what is trained.
        optimizer: of its weights.
        on_divergence: "warn", "stop" or "rollback".
        every: optimizer steps between two records.
        steps: optimizer steps of the whole run, which reach is computed from; None leaves reach out.
        folder: where `log.jsonl` is written; None writes nothing.
        log: is called with the numbers of each record and its step.
        snapshot_every: optimizer steps between two snapshots that a rollback can go back to.
        inputs: a few sequences as the model takes them; with them the log has how many steps the model keeps an input of
            these data (`holdfast.memory.memory_on_data`), at one record in ten.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        on_divergence: OnDivergence = "warn",
        every: int = 10,
        steps: int | None = None,
        folder: str | PathLike[str] | None = None,
        log: Logger | None = None,
        snapshot_every: int = 50,
        inputs: Tensor | None = None,
    ) -> None:
        positive(every=every, steps=1 if steps is None else steps)
        self.monitor = GradientMonitor(model, every=every)
        self.guard = DivergenceGuard(
            model, optimizer, on_divergence=on_divergence, monitor=self.monitor, snapshot_every=snapshot_every
        )
        self.steps, self.inputs, self.values = steps, inputs, dict[str, float]()
        self._folder, self._logger = None if folder is None else Path(folder), log
        self._file: Log | None = None
        self._began = time.perf_counter()
        self._losses: list[float] = []
        self._step = 0

    def __enter__(self) -> TrainingWatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self.close("interrupted" if kind is not None else "")

    @property
    def stopped(self) -> str:
        """Why training is over; empty while it goes on."""
        return self.guard.stopped

    def check(
        self, loss: float | Tensor | None = None, *, step: int | None = None, gradient_norm: float | None = None
    ) -> bool:
        """Whether the optimizer step is to be taken; where it is not, the gradients have been dropped.

        Args:
            loss: of this step.
            step: its number; None counts.
            gradient_norm: the norm of the whole gradient, where it has been clipped already.
        """
        number = self._step if step is None else step
        self._step = number + 1
        loss = loss.detach() if isinstance(loss, Tensor) else loss
        if loss is not None and math.isfinite(float(loss)):
            self._losses.append(float(loss))
        told, rolled_back = len(self.monitor.alarms), len(self.guard.rollbacks)
        with warnings.catch_warnings():
            # reported once by this loop, with what was done about it
            warnings.simplefilter("ignore", DivergenceWarning)
            taken = self.guard.check(loss, step=number, gradient_norm=gradient_norm)
        for alarm in self.monitor.alarms[told:]:
            self._warn(number, alarm.text, alarm.warning)
        for at, kept in self.guard.rollbacks[rolled_back:]:
            self._warn(
                number,
                f"step {at}: after an alarm the weights of step {kept} were restored; learning rates are multiplied by "
                f"{self.guard.rate_scale:g}",
            )
        if self.monitor.recorded == number:
            self._report(number)
        if self.stopped:
            self.close("diverged", self.stopped)
        return taken

    def rescale(self, schedulers: Iterable[Any], before: float) -> None:
        """Passes on to schedules, which set rates at every step, what a rollback did to the rates.

        Args:
            schedulers: of the optimizer.
            before: `guard.rate_scale` before the check.
        """
        for scheduler in schedulers:
            if hasattr(scheduler, "base_lrs"):
                scheduler.base_lrs = [rate * self.guard.rate_scale / before for rate in scheduler.base_lrs]

    def close(self, status: str = "", reason: str = "") -> None:
        """Stops listening, and ends the log.

        Args:
            status: how training ended; empty is "finished".
            reason: why, where it did not finish.
        """
        self.monitor.close()
        if self._file is not None:
            self._file.write("end", step=self._step, status=status or "finished", reason=reason)
            self._file.settle()
            self._file.close()
            self._file = None
            self._folder = None

    def _report(self, step: int) -> None:
        self.values = vitals(self.monitor)
        due = step // self.monitor.every % RECORDS_BETWEEN_REACHES == 0
        if self.steps is not None and due:
            ahead = reach_ahead(self.monitor, self.guard.optimizer, self.steps - step)
            self.values |= {f"{path}/reach": steps for path, steps in ahead.items()}
            self._write("reach", step, values=ahead)
        if self.inputs is not None and due:
            kept = memory_on_data(self.guard.model, self.inputs, places=MEMORY_PLACES).steps
            # changes that outlast the sequences have no number, and a model that answers nothing has none
            if math.isfinite(kept):
                self.values["memory"] = kept
                self._write("memory", step, value=kept)
        self._write("gradients", step, values=self.monitor.newest())
        groups = self.guard.optimizer.param_groups
        norm = self.monitor.last_scalars()["gradient_norm"]
        loss = sum(self._losses) / len(self._losses) if self._losses else math.nan
        self._losses = []
        self._write(
            "train", step, loss=loss, lr=float(groups[0]["lr"]), recurrent_lr=float(groups[-1]["lr"]), norm=norm,
            seconds=time.perf_counter() - self._began,
        )  # fmt: skip
        if self._file is not None:
            self._file.flush()
        if self._logger is not None and self.values:
            self._logger({f"holdfast/{name}": value for name, value in self.values.items()}, step)

    def _warn(self, step: int, text: str, warning: str | None = None) -> None:
        warnings.warn(warning or text, DivergenceWarning, stacklevel=3)
        self._write("warning", step, text=text)

    def _write(self, event: str, step: int, **values: Any) -> None:
        if self._folder is None:
            return
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = continued_log(self._folder / LOG, step)
            self._file.write("begin", step=step, steps=self.steps)
        self._file.write(event, step=step, **values)


def regroup(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    recurrent_lr: float | Literal["auto"] | RecurrentRate,
    steps: int | None = None,
    memory: int | float | None = None,
) -> None:
    """Gives an optimizer that has not taken a step the groups of `holdfast.parameter_groups`.

    Parameters that it does not hold, such as frozen ones, stay out; those that are not the model's keep their group.

    Args:
        optimizer: one group or several; learning rate and weight decay are those that it was made with.
        model: whose recurrent weights get a rate of their own.
        recurrent_lr: their learning rate; "auto" follows from `steps` and `memory`.
        steps: optimizer steps of the run.
        memory: steps that the model is to remember.

    Raises:
        ArgumentError: an optimizer that has taken a step, or "auto" without `steps` and `memory`.
        UnknownNameError: another text than "auto" as rate.

    Example:
        >>> import torch, holdfast.integrations
        >>> model = torch.nn.GRU(1, 8)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> holdfast.integrations.regroup(optimizer, model, recurrent_lr=1e-4)
        >>> [(group["name"], group["lr"]) for group in optimizer.param_groups]
        [('decayed', 0.001), ('exempt', 0.001), ('recurrent', 0.0001)]
    """
    if optimizer.state:
        raise ArgumentError(
            "optimizer must not have taken a step yet, got one with a state; make the watch before training begins"
        )
    rate = float(optimizer.defaults["lr"])
    decay = max(float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups)
    auto = recurrent_lr == "auto"
    groups = parameter_groups(
        model, lr=rate, recurrent_lr=recurrent_lr, weight_decay=decay, steps=steps if auto else None,
        memory=memory if auto else None,
    )  # fmt: skip
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    own = {id(p) for group in groups for p in group["params"]}
    foreign = [_without(group, own) for group in optimizer.param_groups]
    optimizer.param_groups.clear()
    for group in [*groups, *foreign]:
        params = [p for p in group["params"] if id(p) in held]
        if params:
            optimizer.add_param_group({**group, "params": params})


def _without(group: Mapping[str, Any], own: set[int]) -> dict[str, Any]:
    return {**group, "params": [p for p in group["params"] if id(p) not in own]}
