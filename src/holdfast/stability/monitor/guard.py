"""DivergenceGuard: warns, stops or goes back to the last good step when training is about to diverge."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError
from holdfast.stability.monitor._signals import Alarm
from holdfast.stability.monitor.monitor import GradientMonitor

OnDivergence = Literal["warn", "stop", "rollback"]


class DivergenceGuard:
    """Decides before each optimizer step whether it is taken: `if guard.check(loss): optimizer.step()`.

    Every `snapshot_every` steps without an alarm, weights, buffers and the optimizer's state are copied to main memory:
    one copy, which the next replaces. At an acute alarm of the monitor "rollback" puts the copy back and multiplies the
    learning rates by `rate_factor`; after `max_rollbacks` without a new snapshot in between it stops. "stop" keeps the
    weights before the step. "warn" lets the step be taken. Processes of torch.distributed decide together.

    Args:
        model: what is trained.
        optimizer: of its weights.
        on_divergence: what an acute alarm leads to.
        monitor: records the gradients; None makes one with its usual settings.
        snapshot_every: steps between two snapshots.
        rate_factor: by which a rollback multiplies the learning rates, in (0, 1].
        max_rollbacks: rollbacks to one snapshot after which training stops.
    """

    @checked
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        on_divergence: OnDivergence = "rollback",
        monitor: GradientMonitor | None = None,
        snapshot_every: int = 50,
        rate_factor: float = 0.5,
        max_rollbacks: int = 5,
    ) -> None:
        positive(snapshot_every=snapshot_every, max_rollbacks=max_rollbacks)
        if not 0 < rate_factor <= 1:
            raise ArgumentError(f"rate_factor must be in (0, 1], got {rate_factor}")
        self.model, self.optimizer = model, optimizer
        self.monitor = GradientMonitor(model) if monitor is None else monitor
        self.on_divergence: OnDivergence = on_divergence
        self.snapshot_every, self.rate_factor, self.max_rollbacks = snapshot_every, rate_factor, max_rollbacks
        self.stopped = ""
        self.rollbacks: list[tuple[int, int]] = []
        self.rate_scale = 1.0
        self._snapshot: tuple[int, dict[str, Any], dict[str, Any]] | None = None
        self._attempts = 0
        self._step = 0

    @checked
    def check(
        self,
        loss: float | Tensor | None = None,
        *,
        step: int | None = None,
        gradient_norm: float | None = None,
        dense: bool | None = None,
    ) -> bool:
        """Whether the step is to be taken; call it between backward and step, before gradients are clipped.

        Where it is False the gradients are dropped. `stopped` then has the reason if training is over; after a rollback
        it is empty, `rollbacks` has the step and that of the snapshot, and training continues with the next batch.

        Args:
            loss: of this step.
            step: its number; None counts.
            gradient_norm: the norm of the whole gradient, where it has been clipped already.
            dense: compute the margins of dense matrices; None decides by the time that they took so far.
        """
        number = self._step if step is None else step
        self._step = number + 1
        alarms = self.monitor.record(number, loss=loss, gradient_norm=gradient_norm, dense=dense)
        acute = [alarm for alarm in alarms if alarm.acute]
        if self.on_divergence == "warn":
            return True
        if not self._agreed(bool(acute)):
            if self.on_divergence == "rollback" and (self._snapshot is None or number % self.snapshot_every == 0):
                self.keep(number)
            return True
        self._act(number, acute)
        self.optimizer.zero_grad(set_to_none=True)
        return False

    def keep(self, step: int) -> None:
        """Takes a snapshot, which replaces the last one.

        Args:
            step: the number that it has in `rollbacks`.
        """
        self._snapshot = (step, _on_cpu(self._tensors()), _on_cpu(self.optimizer.state_dict()))
        self._attempts = 0

    def _act(self, step: int, acute: list[Alarm]) -> None:
        reason = acute[0].text if acute else "another process saw training diverge"
        self.monitor.forgive()
        if self.on_divergence == "stop":
            self.stopped = reason
        elif self._snapshot is None:
            self.stopped = f"{reason}; there is no good step to go back to"
        else:
            self._restore(step)
            if self._attempts > self.max_rollbacks:
                self.stopped = f"{reason}; {self.max_rollbacks} rollbacks to step {self._snapshot[0]} did not help"

    def _restore(self, step: int) -> None:
        assert self._snapshot is not None
        kept, weights, state = self._snapshot
        # not by state_dict: forms of `stabilize` save plain weights, and an inverse rounds
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(weights[name])
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(copy.deepcopy(state))
        # rates belong to the present step of a schedule, not to that of the snapshot
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * self.rate_factor
        self.rate_scale *= self.rate_factor
        self._attempts += 1
        self.rollbacks.append((step, kept))

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    def _agreed(self, acute: bool) -> bool:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return acute
        flag = torch.tensor(float(acute), device=next(self.model.parameters()).device)
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        return bool(flag)


def _on_cpu(value: Any) -> Any:
    """A copy in main memory of every tensor in nested dictionaries and lists."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_cpu(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(part) for part in value)
    return copy.deepcopy(value)
