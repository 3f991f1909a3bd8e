"""Trying an advice before it is given: the printed call runs on a copy, and the copy is trained beside an unchanged one."""

from __future__ import annotations

import copy
import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from holdfast.diagnosis._forgetting import impulse_memory
from holdfast.diagnosis._learning import adam, release_copies
from holdfast.diagnosis._reading import LARGE, Reading, count_weights, on_our_kernels, read_model, runnable
from holdfast.diagnosis._samples import Samples
from holdfast.diagnosis._weights import look_at_edge, plain
from holdfast.errors import ArgumentError, HoldfastError
from holdfast.memory._subject import INPUT_ERRORS

# what a call is: a change of the model, the making of an optimizer, or something done before each step of it
Stage = Literal["change", "optimizer", "step"]
MAX_STEPS, MIN_STEPS = 300, 10
TRIAL_SECONDS = 6.0  # of CPU time for one copy, by which the number of steps is chosen
SLOWER = 4.0  # times as long as the unchanged copy takes: a candidate that is slower is given up
MAX_RATE, USUAL_RATE = 1e-2, 1e-3  # of Adam
MAX_TIMED_WORK = 4e9  # weights times steps of a gradient that is timed: one that takes a core more than half a second
HORIZON_WORK = 2e9  # weights times steps that the memory of a changed copy is followed for
MIN_HORIZON = 1024  # of these steps
EDGE_STEPS = 64  # of the random inputs on which selective recurrences are watched
FAILURES = (HoldfastError, *INPUT_ERRORS)


@dataclass(frozen=True)
class Outcome:
    """What became of a copy.

    Args:
        loss: on held-out sequences, the lower of before and after training; inf where neither is finite, None where there
            was nothing to train on.
        memory: steps until 1% of an input is left, before training; inf where it does not fade.
        margin: of the recurrence nearest to instability, before training.
        start: the loss before training; None where there was nothing to train on.
    """

    loss: float | None
    memory: float | None
    margin: float | None
    start: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {name: plain(getattr(self, name)) for name in ("loss", "memory", "margin", "start")}


@dataclass(frozen=True)
class Trial:
    """A copy to which a call was applied beside one that was left as it is, both trained equally.

    Args:
        unchanged: the copy as the model is.
        changed: the copy after the call.
        steps: of Adam.
        rate: learning rate of the unchanged copy.
        changed_rate: that of the changed one.
        task: what was learned, in words.
    """

    unchanged: Outcome
    changed: Outcome
    steps: int
    rate: float
    changed_rate: float
    task: str

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        same = {"steps": self.steps, "rate": self.rate, "changed_rate": self.changed_rate, "task": self.task}
        return {"unchanged": self.unchanged.to_dict(), "changed": self.changed.to_dict(), **same}


@dataclass(eq=False)
class Trials:
    """Tries calls on copies of one model.

    Args:
        model: the user's model, which stays as it is.
        input_size: as `read_model` takes it.
        samples: what is trained on; None where the model cannot be trained.
        rate: learning rate of Adam.
        memory: of the model as it is, steps until 1% is left.
        margin: of the model as it is.
        horizon: most steps to follow a memory for.
        seed: of batches and inputs.
    """

    model: nn.Module
    input_size: int | None
    samples: Samples | None
    rate: float
    memory: float | None
    margin: float | None
    horizon: int
    seed: int
    steps: int = MAX_STEPS
    _unchanged: Outcome | None = field(default=None, init=False)
    _seconds: float = field(default=math.inf, init=False)
    _measured: dict[str, tuple[float | None, float | None]] = field(default_factory=dict, init=False)

    def copied(self) -> nn.Module:
        """A copy of the model, on our kernels where those know it."""
        return on_our_kernels(copy.deepcopy(self.model))

    @property
    def unchanged(self) -> Outcome:
        """The copy that nothing was done to."""
        if self._unchanged is None:
            loss = begun = None
            if self.samples is not None:
                model, _ = self._trainable(self.copied())
                self.steps = _affordable_steps(model, self.samples, self.rate)
                start = time.process_time()
                loss, begun = self._trained(model, adam(_moving(model), self.rate))
                del model
                self._seconds = max(time.process_time() - start, 0.5)
            self._unchanged = Outcome(loss, self.memory, self.margin, begun)
        return self._unchanged

    def attempt(self, call: str, stage: Stage = "change", rate: float | None = None) -> Trial:
        """Runs the call and trains; raises one of FAILURES where the call or the changed copy does not run.

        Args:
            call: the very text that is printed.
            stage: when it is to be run.
            rate: learning rate of the changed copy; None is that of the unchanged one.
        """
        rate = self.rate if rate is None else rate
        unchanged = self.unchanged
        release_copies(self.model)
        model = self.copied()
        memory, margin = self.memory, self.margin
        if stage == "change":
            model = execute(call, model)["model"]
            memory, margin = self.measured(call, model)
        loss, begun = (None, None) if self.samples is None else self._loss(model, call, stage, rate)
        assert unchanged is not None
        words = "" if self.samples is None else self.samples.words
        return Trial(unchanged, Outcome(loss, memory, margin, begun), self.steps, self.rate, rate, words)

    def measured(self, call: str, model: nn.Module) -> tuple[float | None, float | None]:
        """Memory and margin of a changed copy, measured once for each call."""
        if call not in self._measured:
            reading = read_model(model, self.input_size, self.seed, in_place=count_weights(model) > LARGE)
            weights = max(count_weights(model), 1)
            horizon = min(self.horizon, max(MIN_HORIZON, int(HORIZON_WORK / weights)))
            self._measured[call] = impulse_memory(reading, horizon, self.seed), self._margin(reading)
        return self._measured[call]

    def _margin(self, reading: Reading) -> float | None:
        try:
            return look_at_edge(reading, EDGE_STEPS, self.seed, run=False).worst.margin
        except FAILURES:
            return None

    def _loss(self, model: nn.Module, call: str, stage: Stage, rate: float) -> tuple[float, float]:
        trained, inner = self._trainable(model)
        if stage == "optimizer":
            return self._trained(trained, execute(call, inner)["optimizer"])
        optimizer = adam(_moving(trained), rate)
        before_step = (lambda: execute(call, inner)) if stage == "step" else None
        return self._trained(trained, optimizer, before_step)

    def _trainable(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        """What is run on the samples, and the user's model inside it, which a printed call is about."""
        assert self.samples is not None
        if self.samples.given:
            return runnable(model), model
        reading = read_model(model, self.input_size, self.seed, in_place=True)
        own = reading.model
        return own, own.get_submodule(reading.prefix.removesuffix("."))

    def _trained(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, before_step: Callable[[], Any] | None = None
    ) -> tuple[float, float]:
        """The lower of the losses before and after training, and the one before."""
        assert self.samples is not None
        start = self.samples.error(
            model
        )  # of a trained model often the lowest: training on is no improvement by itself
        train(model, self.samples, optimizer, self.steps, self.seed, before_step, SLOWER * self._seconds)
        errors = [error for error in (start, self.samples.error(model)) if math.isfinite(error)]
        return min(errors, default=math.inf), start


def execute(call: str, model: nn.Module) -> dict[str, Any]:
    """Runs the text of a call as a user would who pastes it, and gives the names that it leaves.

    Args:
        call: the text, which we wrote.
        model: what it calls `model`.
    """
    names: dict[str, Any] = {"model": model, "torch": torch, "holdfast": importlib.import_module("holdfast")}
    exec(call, names)
    return names


def train(
    model: nn.Module,
    samples: Samples,
    optimizer: torch.optim.Optimizer,
    steps: int,
    seed: int,
    before_step: Callable[[], Any] | None = None,
    seconds: float = math.inf,
) -> None:
    """Trains in place on batches drawn alike for every copy; ends early where the loss is not finite.

    Args:
        model: what is run on the samples.
        samples: inputs, targets and loss.
        optimizer: of its weights.
        steps: of the optimizer.
        seed: of the batches.
        before_step: done between the gradient and the step, such as clipping.
        seconds: of CPU time after which ArgumentError is raised.
    """
    generator = torch.Generator().manual_seed(seed)
    model.train()
    start = time.process_time()
    with torch.enable_grad():
        for _ in range(steps):
            model.zero_grad(set_to_none=True)
            loss = samples.loss(model, *samples.random_batch(generator))
            if not math.isfinite(float(loss.detach())):
                return
            loss.backward()
            if before_step is not None:
                before_step()
            optimizer.step()
            if time.process_time() - start > seconds:
                raise ArgumentError(f"training is more than {SLOWER:g} times slower")


def _moving(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _affordable_steps(model: nn.Module, samples: Samples, rate: float) -> int:
    """Steps that fit the time of a trial, by the cost of two; the first one of all allocates and is not counted."""
    if count_weights(model) * samples.batch * samples.inputs.shape[1] > MAX_TIMED_WORK:
        return MIN_STEPS  # three steps and a copy to find that out would cost a third as much again
    model = copy.deepcopy(model)
    optimizer = adam(_moving(model), rate)
    train(model, samples, optimizer, 1, 0)
    start = time.process_time()
    train(model, samples, optimizer, 2, 0)
    seconds = max((time.process_time() - start) / 2, 1e-6)
    return min(MAX_STEPS, max(MIN_STEPS, int(TRIAL_SECONDS / seconds)))
