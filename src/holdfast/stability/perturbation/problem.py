"""What a search is about: weights in their balls, and the worst perturbation of every radius so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.stability.perturbation.balls import PerturbedWeight
from holdfast.stability.perturbation.evaluate import AbstractEvaluator
from holdfast.stability.perturbation.options import Progress

Deltas = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class SearchProblem:
    """Weights with their balls, the radii, and the errors of perturbed weights."""

    weights: Sequence[PerturbedWeight]
    radii: Float[np.ndarray, " radii"]
    evaluator: AbstractEvaluator
    progress: Progress | None = None

    def errors(self, deltas: Deltas) -> Float[Tensor, " draws"]:
        """The error of each perturbation."""
        return self.evaluator.errors(self.moved(deltas))

    def moved(self, deltas: Deltas) -> Deltas:
        """Weights plus perturbations, in the dtype of the weights."""
        return {w.name: w.value.unsqueeze(0) + deltas[w.name].to(w.value) for w in self.weights}

    def project(self, deltas: Deltas, radius: Float[Tensor, " draws"]) -> Deltas:
        """The perturbations moved into their balls."""
        return {w.name: w.ball.project(deltas[w.name], radius.to(deltas[w.name].real)) for w in self.weights}


@dataclass(frozen=True, eq=False)
class Worst:
    """The largest error at every radius with the perturbation that gave it, and the errors of the random draws."""

    errors: Float[np.ndarray, " radii"]
    draws: Float[np.ndarray, "radii draws"]
    best: Deltas


class Keeper:
    """The best perturbation of every radius so far."""

    def __init__(self, errors: Tensor, draws: np.ndarray, best: Deltas) -> None:
        self.errors, self.draws, self.best = errors, draws, best

    @classmethod
    def at_centre(cls, problem: SearchProblem, centre: float) -> Keeper:
        """Nothing found yet but the centre."""
        count = len(problem.radii)
        best = {w.name: w.value.new_zeros(count, *w.value.shape) for w in problem.weights}
        return cls(torch.full((count,), centre, dtype=torch.float64), np.empty((count, 0)), best)

    @classmethod
    def after(cls, start: Worst) -> Keeper:
        """What an earlier search found."""
        best = {name: d.clone() for name, d in start.best.items()}
        return cls(torch.from_numpy(start.errors.copy()), start.draws, best)

    def offer(self, errors: Tensor, deltas: Deltas, at: Sequence[int]) -> bool:
        """Candidates of the radii `at`, the same number for each; whether one was better."""
        table = errors.cpu().reshape(len(at), -1)
        top, where = table.max(1)
        better = False
        for row, i in enumerate(at):
            if top[row] > self.errors[i]:
                better = True
                self.errors[i] = top[row]
                for name, d in deltas.items():
                    self.best[name][i] = d[row * table.shape[1] + int(where[row])]
        return better

    def nested(self) -> Worst:
        """What was found in a smaller ball carried over to the larger ones."""
        return Worst(np.maximum.accumulate(self.errors.numpy()), self.draws, self.best)
