"""Trains many independent copies of a small model at once, each with its own recurrent learning rate.

Weights are tensors with a leading axis of copies. Copies share no number: the gradient of the sum of their losses is each one's
own, clipped by its own norm. The steps are those of torch.optim (a test compares them), with a warm-up over the first tenth of
the steps and a cosine to 0, so that the shares of the rate sum to half the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Optimizer = Literal["adamw", "sgd"]
BETAS, EPS = (0.9, 0.999), 1e-8  # torch's own
CLIP_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds to the norm


@dataclass(frozen=True)
class Recipe:
    """How a batch of copies is trained.

    Args:
        optimizer: "adamw" (without weight decay) or "sgd".
        steps: optimizer steps.
        lr: learning rate of all but the recurrent weights.
        clip: largest norm of a copy's gradient; inf does not clip.
        warmup: share of the steps in which the rate rises.
        diverged_above: a loss this many times that of the first step ends a copy, as in `holdfast.training`.
    """

    optimizer: Optimizer
    steps: int
    lr: float
    clip: float = 1.0
    warmup: float = 0.1
    diverged_above: float = math.inf


def share(step: int, steps: int, warmup: float) -> float:
    """Of the learning rate at `step`, counted from 0: linear up, then a cosine to 0."""
    rise = max(1, round(warmup * steps)) if warmup > 0 else 0
    if step < rise:
        return (step + 0.5) / rise
    return 0.5 * (1 + math.cos(math.pi * (step + 0.5 - rise) / (steps - rise)))


def grid(parameterizations: Sequence[str], rates: Tensor, seeds: int) -> tuple[int, Tensor]:
    """Number of copies, and the recurrent rate of each, for rates (parameterizations, rates): the seed varies fastest."""
    assert rates.shape[0] == len(parameterizations)
    every = rates.unsqueeze(-1).expand(*rates.shape, seeds).reshape(-1)
    return len(every), every


class CopyTrainer:
    """Steps of AdamW or SGD on copies; a copy whose loss or gradient is not finite is dead and stays at its start.

    Args:
        weights: by name, (copies, ...); they are trained in place.
        recurrent: names of the recurrent weights.
        rates: learning rate of the recurrent weights, one for each copy.
        recipe: everything else.
    """

    def __init__(self, weights: Weights, recurrent: Sequence[str], rates: Tensor, recipe: Recipe) -> None:
        self.weights, self.recipe = weights, recipe
        self.start = {name: weight.detach().clone() for name, weight in weights.items()}
        self.copies = len(rates)
        other = torch.full_like(rates, recipe.lr)
        self.rates = {
            name: (rates if name in recurrent else other).reshape(-1, *(1,) * (w.ndim - 1))
            for name, w in weights.items()
        }
        self.alive = torch.ones(self.copies, dtype=torch.bool)
        self.limits = torch.full_like(rates, math.inf)  # of the copies' losses
        self._first = {name: torch.zeros_like(w) for name, w in weights.items()}
        self._second = {name: torch.zeros_like(w) for name, w in weights.items()}

    def step(self, k: int, losses: Tensor) -> None:
        """One step along the gradient of the copies' losses.

        Args:
            k: number of the step, from 0.
            losses: one for each copy.
        """
        names = list(self.weights)
        gradients = dict(zip(names, torch.autograd.grad(losses.sum(), [self.weights[n] for n in names]), strict=True))
        with torch.no_grad():
            if k == 0 and self.recipe.diverged_above < math.inf:
                self.limits = losses.detach() * self.recipe.diverged_above
            norm = torch.stack([g.flatten(1).double().square().sum(1) for g in gradients.values()]).sum(0).sqrt()
            self.alive &= losses.isfinite() & norm.isfinite() & (losses <= self.limits)
            scale = (
                (self.recipe.clip / (norm + CLIP_EPS)).clamp(max=1.0) if self.recipe.clip < math.inf else norm * 0 + 1
            )
            part = share(k, self.recipe.steps, self.recipe.warmup)
            for name in names:
                shape = (-1, *(1,) * (gradients[name].ndim - 1))
                gradient = gradients[name] * scale.to(gradients[name]).reshape(shape)
                self._move(name, gradient, part, k + 1)
                if not bool(self.alive.all()):
                    self._bury(name)

    def _move(self, name: str, gradient: Tensor, part: float, count: int) -> None:
        weight, rate = self.weights[name], self.rates[name]
        if self.recipe.optimizer == "sgd":
            weight.sub_(part * rate * gradient)
            return
        first, second = self._first[name], self._second[name]
        first.lerp_(gradient, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        size = (second / (1 - BETAS[1] ** count)).sqrt_().add_(EPS)
        weight.sub_(part / (1 - BETAS[0] ** count) * rate * first / size)

    def _bury(self, name: str) -> None:
        """Puts dead copies back to their start, where their numbers are plain: NaN would slow every kernel down."""
        dead = ~self.alive
        for tensor, value in (
            (self.weights[name], self.start[name][dead]),
            (self._first[name], 0.0),
            (self._second[name], 0.0),
        ):
            tensor[dead] = value


def train(
    loss: Callable[[Weights, int], Tensor],
    weights: Weights,
    recurrent: Sequence[str],
    rates: Tensor,
    recipe: Recipe,
    progress: Callable[[float], None] = lambda done: None,
) -> Tensor:
    """Trains the copies in place and tells which of them stayed finite.

    Args:
        loss: of the weights and the number of the step: one loss for each copy, differentiable.
        weights: by name, (copies, ...).
        recurrent: names of the recurrent weights.
        rates: their learning rate, one for each copy.
        recipe: everything else.
        progress: called with the share that is done.
    """
    for weight in weights.values():
        weight.requires_grad_(True)
    trainer = CopyTrainer(weights, recurrent, rates, recipe)
    for k in range(recipe.steps):
        trainer.step(k, loss(weights, k))
        if k % 20 == 0:
            progress(k / recipe.steps)
    for weight in weights.values():
        weight.requires_grad_(False)
    return trainer.alive
