"""Sequences and targets that copies of a model are trained on: the user's own, or a stand-in, with a part held out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.diagnosis._reading import Reading, runnable
from holdfast.diagnosis._weights import random_inputs
from holdfast.errors import ArgumentError
from holdfast.memory._subject import INPUT_ERRORS, first_output

Unit = Literal["mean squared error", "cross entropy"]
HELD_OUT = 0.25  # share of the sequences on which errors are reported
MAX_HELD_ROWS = 256
MAX_PIECE_STEPS = 512  # longer sequences with a target at each step are cut
MIN_ROWS = 4  # fewer sequences are cut, so that some can be held out
PIECES = 16  # of each of them
STAND_IN_ROWS, MIN_STAND_IN_ROWS = 64, 8
STAND_IN_STEPS = 20.0  # over which the stand-in averages its inputs, if not stated how far the task reaches
BATCH_ROWS, MIN_BATCH_ROWS = 16, 2
MIN_STEPS = 32  # of a stand-in sequence of a large model
STEP_WORK = 5e8  # weights times steps of one gradient, from which on there are fewer and shorter sequences
HELD_WORK = 1e10  # weights times steps of one look at what is held out
LOG100 = math.log(100.0)


@dataclass(frozen=True, eq=False)
class Samples:
    """What copies are trained on and judged by.

    Args:
        inputs: (rows, time, features), or tokens (rows, time).
        targets: (rows, time, outputs) or (rows, outputs); class labels (rows, time) or (rows,).
        unit: of the loss.
        given: whether they are the user's; the stand-in is read through the adapters of `Reading`.
        words: what they are, for the screen.
        batch: sequences of one gradient.
        held: how many of the last sequences are held out.
        last: whether the model answers at each step and the targets are about the last one.
    """

    inputs: Tensor
    targets: Tensor
    unit: Unit
    given: bool
    words: str
    batch: int
    held: int
    last: bool = False

    @property
    def training(self) -> tuple[Tensor, Tensor]:
        """The sequences that are trained on."""
        return self.inputs[: -self.held], self.targets[: -self.held]

    @property
    def held_out(self) -> tuple[Tensor, Tensor]:
        """The sequences that errors are reported on."""
        return self.inputs[-self.held :], self.targets[-self.held :]

    def random_batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Some of the sequences that are trained on.

        Args:
            generator: on the CPU, so that every copy gets the same ones.
        """
        x, y = self.training
        rows = torch.randperm(len(x), generator=generator)[: self.batch].to(x.device)
        return x[rows], y[rows]

    @property
    def once(self) -> bool:
        """Whether a sequence has one target, at its end."""
        return self.targets.ndim < (2 if self.unit == "cross entropy" else 3)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""
        out = self.answers(model, x, y)
        if self.unit == "mean squared error":
            return (out - y).square().mean()
        return functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))

    def answers(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The outputs in the shape of the targets, with the classes behind them where those are labels."""
        weight = next((p for p in model.parameters() if p.is_floating_point()), x)
        out = first_output(model(x.to(weight.dtype) if x.is_floating_point() else x))
        out = out[:, -1] if self.last else out
        return out.reshape(y.shape if self.unit == "mean squared error" else (*y.shape, -1))

    @torch.no_grad()
    def error(self, model: nn.Module) -> float:
        """The loss on what is held out, in evaluation mode."""
        training = model.training
        model.eval()
        x, y = self.held_out
        total = 0.0
        for first in range(0, len(x), self.batch):
            part = slice(first, first + self.batch)
            total += float(self.loss(model, x[part], y[part])) * len(x[part])
        model.train(training)
        return total / len(x)

    @torch.no_grad()
    def error_beside_kernel(self, model: nn.Module, lags: int) -> float:
        """The error on the last quarter of the sequences, as that of a kernel of `lags` steps is reported.

        Args:
            model: what is run.
            lags: steps before the first that the kernel answers for.
        """
        first = min(int((1 - HELD_OUT) * len(self.inputs)), len(self.inputs) - 1)
        total = count = 0.0
        model.eval()
        for start in range(first, len(self.inputs), self.batch):
            x, y = (part[start : start + self.batch] for part in (self.inputs, self.targets))
            out = self.answers(model, x, y)
            if not self.once and lags < x.shape[1]:
                out, y = out[:, lags:], y[:, lags:]
            missed = (out - y).square() if self.unit == "mean squared error" else (out.argmax(-1) != y)[y >= 0].double()
            total, count = total + float(missed.double().sum()), count + missed.numel()
        return total / max(count, 1.0)

    def trivial_error(self) -> float:
        """Of the answer that does not look at the inputs: the mean of the targets, or the share of each class."""
        (_, y), (_, held) = self.training, self.held_out
        if self.unit == "mean squared error":
            return float((held - y.mean(tuple(range(y.ndim - 1)))).double().square().mean())
        seen, asked = y[y >= 0], held[held >= 0]
        counts = torch.bincount(seen.flatten(), minlength=int(max(seen.max(), asked.max())) + 1) + 1.0
        return float(-(counts / counts.sum()).log()[asked].mean())


def data_samples(model: nn.Module, reading: Reading, data: tuple[Tensor, Tensor]) -> Samples:
    """The user's data in the form that the model takes; ArgumentError where it takes or answers something else.

    Args:
        model: the user's model, or a copy.
        reading: how it is read.
        data: as they were given.
    """
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    x, y = _inputs(data[0], reading, weight), data[1].to(weight.device)
    out, each_step = _tried(runnable(model).eval(), x)
    if each_step and out.ndim == 2:
        out = out.unsqueeze(-1)
    y = y.squeeze(-1) if not y.is_floating_point() and out.shape[-1] > 1 and y.shape[-1:] == (1,) else y
    labels = not y.is_floating_point() and out.shape[-1] > 1 and y.shape[1:] in (out.shape[1:-1], ())
    y = y.long() if labels else y.to(weight.dtype)
    if not labels and (y.ndim == 1 or (each_step and y.shape[1:] == out.shape[1:-1])):
        y = y.unsqueeze(-1)
    last = each_step and y.ndim < (2 if labels else 3)
    asked = (out[:, -1] if last else out)[0].numel()
    if asked % max(y[0].numel(), 1) or (not labels and asked != y[0].numel()):
        raise ArgumentError(
            f"expected outputs that fit the targets, of shape {tuple(y.shape[1:])} per sequence, got {tuple(out.shape[1:])}"
        )
    return _with_held_out(model, x, y, "cross entropy" if labels else "mean squared error", last, each_step)


@torch.no_grad()
def _tried(model: nn.Module, x: Tensor) -> tuple[Tensor, bool]:
    """The outputs of two sequences, and whether there is one at each step."""
    try:
        out, shorter = first_output(model(x[:2])), first_output(model(x[:2, : max(1, x.shape[1] // 2)]))
    except INPUT_ERRORS as error:
        line = (str(error).strip().splitlines() or [""])[0]
        raise ArgumentError(f"the model does not run on the data: {type(error).__name__}: {line}") from error
    return out, x.shape[1] > 1 and out.shape != shorter.shape


def _inputs(x: Tensor, reading: Reading, weight: Tensor) -> Tensor:
    if not x.is_floating_point() and reading.inputs == "tokens":
        return x.to(weight.device).long()
    x = x.to(weight.device, weight.dtype)
    return x.unsqueeze(-1) if x.ndim == 2 else x


def _with_held_out(model: nn.Module, x: Tensor, y: Tensor, unit: Unit, last: bool, each_step: bool) -> Samples:
    if each_step and not last and (len(x) < MIN_ROWS or x.shape[1] > MAX_PIECE_STEPS):
        steps = min(MAX_PIECE_STEPS, max(MIN_STEPS, x.shape[1] // PIECES) if len(x) < MIN_ROWS else MAX_PIECE_STEPS)
        x, y = _pieces(x, steps), _pieces(y, steps)
    if len(x) < MIN_ROWS:
        raise ArgumentError(f"data must have at least {MIN_ROWS} sequences, so that some can be held out; got {len(x)}")
    weights = max(sum(p.numel() for p in model.parameters()), 1)
    affordable = max(MIN_ROWS, int(HELD_WORK / (weights * x.shape[1])))
    held = min(MAX_HELD_ROWS, affordable, max(1, int(HELD_OUT * len(x))))
    return Samples(x, y, unit, True, "your data", _batch(model, x.shape[1]), held, last)


def _pieces(values: Tensor, steps: int) -> Tensor:
    """Each sequence cut into pieces, one after the other; what is left at the end is not used."""
    count = values.shape[1] // steps
    return values[:, : count * steps].reshape(-1, steps, *values.shape[2:])


def _batch(model: nn.Module, steps: int) -> int:
    affordable = int(STEP_WORK / max(sum(p.numel() for p in model.parameters()), 1))
    return min(BATCH_ROWS, max(MIN_BATCH_ROWS, affordable // steps))


def stand_in_samples(reading: Reading, needs: int | None, seed: int) -> Samples:
    """Random inputs, and their running mean over as many steps as the memory that was asked for keeps 1/e of.

    Args:
        reading: the model.
        needs: steps that it is to remember; None: 92, of which a mean over 20 keeps 1%.
        seed: of the inputs.
    """
    average = STAND_IN_STEPS if needs is None else max(2.0, needs / LOG100)
    length = max(128, min(MAX_PIECE_STEPS, int(6 * average)))
    rows, length = _affordable(reading.model, length)
    length = length if reading.longest is None else min(length, reading.longest)
    x = random_inputs(reading, rows, length, seed)
    y = _running_mean(x, average, _outputs(reading, x))
    words = f"a stand-in task (the mean of random inputs over the last {average:.0f} steps)"
    return Samples(x, y, "mean squared error", False, words, _batch(reading.model, length), max(1, rows // 4))


def _affordable(model: nn.Module, length: int) -> tuple[int, int]:
    """Sequences and steps of the stand-in, so that a gradient of a large model is no long wait."""
    steps = int(STEP_WORK / max(sum(p.numel() for p in model.parameters()), 1))
    rows = STAND_IN_ROWS if steps >= BATCH_ROWS * length else MIN_STAND_IN_ROWS
    return rows, min(length, max(MIN_STEPS, steps // MIN_BATCH_ROWS))


def _outputs(reading: Reading, x: Tensor) -> int:
    with torch.no_grad():
        y = first_output(reading.model(x[:1, :2]))
    return y.shape[-1] if y.ndim == 3 else 1


def _running_mean(x: Tensor, average: float, outputs: int) -> Tensor:
    keep = math.exp(-1 / average)
    mean, means = torch.zeros_like(x[:, 0]), []
    for step in x.unbind(1):
        mean = keep * mean + (1 - keep) * step
        means.append(mean)
    y = torch.stack(means, 1)
    y = y / y.std().clamp(min=1e-6)
    return y[..., torch.arange(outputs, device=x.device) % y.shape[-1]]


def task_form(data: tuple[Tensor, Tensor], samples: Samples | None) -> tuple[Tensor, Tensor]:
    """Inputs and targets as `study_task` reads them: tokens and labels as integers where the model takes them as such."""
    x, y = data
    if samples is None:
        return x, y
    labels = samples.targets if len(samples.targets) == len(x) else y.long()
    y = y.double() if samples.unit == "mean squared error" else labels
    return (x.double() if samples.inputs.is_floating_point() else x), y
