"""One cell of rates-rule and rates-choice: a task, steps, an optimizer and a start, at all rates and seeds at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from holdfast.nn import DiagonalSSM
from holdfast.stability import recurrent_rate
from holdfast_papers.experiments.base import Arrays, Config, Work
from holdfast_papers.experiments.rates import _linear, _stack, _tasks
from holdfast_papers.experiments.rates._copies import Recipe, Weights, grid, train

NAMES = ("direct", "best", "exp", "softplus")
SHORT = 0.1  # slowest rate at the start without the memory
LONGER = 1.05  # slowest time constant at the start with the memory, over the task's
FACTOR = 3.0  # between neighbouring rates of a sweep
SHARE = 0.25  # usual recurrent rate / rate of the other weights
LAYERS = 2  # of a stack
TEST_BATCH = 64
Losses = Callable[[Weights, Tensor], Tensor]


class Cell:
    """A task with the copies that learn it.

    Args:
        config: of a unit.
        rates: recurrent rates (parameterizations, rates).
    """

    def __init__(self, config: Config, rates: Tensor) -> None:
        self.config, self.seeds = config, config["seeds"]
        self.task = _tasks.task(config["task"])
        self.copies, self.rates = grid(NAMES, rates, self.seeds)
        self.shape = (*rates.shape, self.seeds)
        self.linear = isinstance(self.task, _tasks.LinearTask)
        modes = self.task.modes if isinstance(self.task, _tasks.LinearTask) else config["modes"]
        self.starting = starting_rates(config, modes)
        self.recurrent = _linear.RECURRENT if self.linear else _stack.recurrent_names(LAYERS)
        self.weights = self._start()

    def _start(self) -> Weights:
        lam = -self.starting
        if isinstance(self.task, _tasks.LinearTask):
            make = _linear.complex_start if self.task.oscillating else _linear.real_start
            weights = make(self.starting, self.seeds)
        else:
            inputs, outputs = self.task.sizes
            weights = _stack.start((inputs, self.config["width"], outputs), self.starting, LAYERS, self.seeds)
        weights = _linear.copies_of(weights, self.copies)
        for name in self.recurrent:
            _linear.with_free_weights(weights, NAMES, lam, self.copies, name)
        return weights

    def loss(self, weights: Weights, step: int) -> Tensor:
        """The training loss of each copy at a step."""
        if isinstance(self.task, _tasks.LinearTask):
            inputs = _linear.windows(step, self.seeds, self.config["batch"], len(self.task.rho))
            return _linear.window_loss(self._gap(weights), inputs)
        drawn = [
            self.task.draw(1_000_003 * (step + 1) % _tasks.TEST + s, self.config["batch"]) for s in range(self.seeds)
        ]
        x, y = (torch.stack(parts) for parts in zip(*drawn, strict=True))
        return _stack.losses(_stack.answers(NAMES, weights, x, LAYERS), y)

    def _gap(self, weights: Weights) -> Tensor:
        assert isinstance(self.task, _tasks.LinearTask)
        return _linear.kernel(_linear.eigenvalues(NAMES, weights["w"]), weights, len(self.task.rho)) - self.task.rho

    @torch.no_grad()
    def error(self, weights: Weights) -> Tensor:
        """On test data: squared error over the target's variance, or cross-entropy in nats."""
        if isinstance(self.task, _tasks.LinearTask):
            return _linear.relative_error(self._gap(weights), self.task.rho)
        x, y = self.task.draw(_tasks.TEST, self.config["test"])
        total = torch.zeros(self.copies, dtype=torch.float64)
        for first in range(0, len(x), TEST_BATCH):
            part = slice(first, first + TEST_BATCH)
            outputs = _stack.answers(NAMES, weights, x[part].unsqueeze(0), LAYERS)
            total += _stack.losses(outputs, y[part].unsqueeze(0)).double() * len(x[part])
        mean = total / len(x)
        if not self.task.classes:
            mean = mean / y.double().var(correction=0)
        return torch.where(mean.isfinite(), mean, torch.inf)

    @torch.no_grad()
    def slowest(self, weights: Weights) -> Tensor:
        """The longest time constant of each copy, over its layers; inf beyond the boundary."""
        rates = torch.cat([-_linear.eigenvalues(NAMES, weights[name]) for name in self.recurrent], 1).double().amin(1)
        return torch.where(rates > 0, 1 / rates, torch.inf)


def starting_rates(config: Config, modes: int) -> Tensor:
    """Of the modes: without the memory from SHORT up, with it from just below 1/T."""
    memory = _tasks.task(config["task"]).memory
    return _linear.starting_rates(SHORT if config["start"] == "short" else 1 / (LONGER * memory), modes)


def rule(name: str, config: Config, start: str, gradient: float | None = None) -> float:
    """The library's rate for a layer that starts so and has to learn the memory of the task."""
    lam = -starting_rates({**config, "start": start}, 2)
    layer = DiagonalSSM(1, 2, parameterization=name, eigenvalues=lam).double()
    memory = float(_tasks.task(config["task"]).memory)
    optimizer: Literal["adam", "sgd"] = "adam" if gradient is None else "sgd"
    found = recurrent_rate(layer, steps=config["steps"], memory=memory, optimizer=optimizer, gradient=gradient)
    return float(f"{found.rate:.6g}")


def gradients(config: Config) -> list[float]:
    """Size of a slowest mode's gradient at the start, clipped as in training, by parameterization: mean over the seeds."""
    cell = Cell(config, torch.zeros(len(NAMES), 1))
    for weight in cell.weights.values():
        weight.requires_grad_(True)
    found = torch.autograd.grad(cell.loss(cell.weights, 0).sum(), list(cell.weights.values()))
    norm = torch.stack([g.flatten(1).square().sum(1) for g in found]).sum(0).sqrt()
    own = dict(zip(cell.weights, found, strict=True))
    sizes = torch.stack([own[name][:, 0].abs() / norm.clamp(min=1.0) for name in cell.recurrent]).mean(0)
    return [float(x) for x in sizes.unflatten(0, (len(NAMES), -1)).mean(1)]


def sweep(config: Config) -> Tensor:
    """Rates (parameterizations, exponents + 2): around the rule for a start without the memory, lr / 4, the rule's own."""
    sizes: Sequence[float | None] = [None] * len(NAMES) if config["optimizer"] == "adamw" else gradients(config)
    rows = []
    for name, size in zip(NAMES, sizes, strict=True):
        centre = rule(name, config, "short", size)
        rates = [centre * FACTOR**k for k in config["exponents"]]
        rows.append([*rates, SHARE * config["lr"], rule(name, config, config["start"], size)])
    return torch.tensor(rows)


def run(config: Config, work: Work) -> Arrays:
    """Errors of every parameterization, rate and seed of a cell, and the longest time constants after training."""
    rates = sweep(config)
    cell = Cell(config, rates)
    before = cell.error(cell.weights)
    recipe = Recipe(config["optimizer"], config["steps"], config["lr"])
    alive = train(cell.loss, cell.weights, cell.recurrent, cell.rates, recipe, lambda done: work.progress(done))
    after = torch.where(alive, cell.error(cell.weights), torch.inf)
    return {
        "rates": rates.numpy().astype(np.float64),
        "start": before.reshape(cell.shape)[0, 0].numpy(),
        "error": after.reshape(cell.shape).numpy(),
        "slowest": cell.slowest(cell.weights).reshape(cell.shape).numpy(),
    }


def cost(config: Config) -> float:
    """Seconds of a unit."""
    copies = len(NAMES) * (len(config["exponents"]) + 2) * config["seeds"]
    stack = config["task"] in (*_tasks.STACK_SEEN, *_tasks.STACK_HELD_OUT)
    lengths = {
        "delay-30": 60,
        "adding-50": 50,
        "recall-16": 18,
        "recall-64": 66,
        "digits": 64,
        "pixels": 196,
        "adding-200": 200,
    }
    each = (
        7e-8 * copies * config["batch"] * lengths.get(config["task"], 0) * config["width"] if stack else 1e-4 * copies
    )
    return math.ceil(config["steps"] * each)
