"""Options of the perturbation errors, and the search problem that they make: weights in balls, and the worst so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast._arguments import checked_fields
from holdfast.errors import ArgumentError
from holdfast.stability.perturbation._balls import BallNorm, PerturbedWeight, Region, WeightScope
from holdfast.stability.perturbation._evaluate import MAX_BYTES, AbstractEvaluator, MetricName

EvaluationName = Literal["auto", "impulse", "folded", "kernel", "vmap", "loop"]
SearchName = Literal["random", "adversarial", "modes"]
Progress = Callable[[int, int], None]
DEFAULT_RESTARTS, DEFAULT_STEPS, DEFAULT_DRAWS = 3, 20, 30
Deltas = dict[str, Tensor]


@checked_fields
@dataclass(frozen=True)
class Ball:
    """The weights that move, and the norm that bounds how far.

    Args:
        norm: "spectral" is the largest singular value of a matrix, the 2-norm of a vector, and max-abs for the vector of
            a diagonal recurrence, which is diag(w); "frobenius" and "max-abs" are the same for all weights.
        scope: weights that move: "all", "recurrent", or names (or prefixes of names) of weights.
    """

    norm: BallNorm = "spectral"
    scope: WeightScope = "all"


@checked_fields
@dataclass(frozen=True)
class Metric:
    """The norm of the error on data, and how the data are laid out.

    Args:
        name: "sup" over sequences, times and outputs, "mean-square", or "sobolev" (iat, eq. 11).
        dt: time of one step, for "sobolev" alone; 1 if None.
        relative: divide each sequence's error by its largest |x|, as the functional norm does.
        layout: "batch_first", or "time_first" for models that take (time, batch, features).
    """

    name: MetricName = "sup"
    dt: float | None = None
    relative: bool = False
    layout: Literal["batch_first", "time_first"] = "batch_first"

    def __post_init__(self) -> None:
        if self.dt is not None and self.name != "sobolev":
            raise ArgumentError(f"dt is for the metric 'sobolev', got name={self.name!r}; leave it out")


@checked_fields
@dataclass(frozen=True)
class Search:
    """How the sup over a ball is searched.

    Args:
        method: "random" tries `draws` random perturbations, along the same directions at every radius. "adversarial"
            ascends by the gradient from the best of them and from other far points of the ball. "modes" goes through the
            intervals of the modes of diagonal recurrences, their ends first. Always adversarial >= random >= E(0).
        draws: number of random perturbations.
        restarts: random starting points of the gradient ascent, beside the fixed ones; 3 if None.
        steps: steps of the gradient ascent; 20 if None.
        where: where random perturbations lie: uniform in the "ball", or of exactly norm beta ("sphere").
        running_maximum: make a random curve monotone. The authors' code did so silently, with max-abs noise of size
            exactly beta (norm="max-abs", where="sphere").
        evaluation: how perturbed models are run. "impulse": impulse responses and one matrix product, for linear layers
            of ours. "folded": all perturbations at once, as channels of a real diagonal layer's scan or in the matrix
            products of ContinuousRNN. "kernel": one run of our kernel for each perturbation, for torch.nn.RNN. "vmap":
            torch.func.vmap. "loop": one run for each perturbation, for any module. "auto" takes the fastest that
            reproduces the model, and the result says which and why.
        memory_limit: bytes held at a time, about, beyond one plain run of the model and 64 MB of random directions.
        seed: number or torch.Generator for the random perturbations.
        progress: called as `progress(done, total)` along the way.
    """

    method: SearchName = "random"
    draws: int = DEFAULT_DRAWS
    restarts: int | None = None
    steps: int | None = None
    where: Region = "ball"
    running_maximum: bool = False
    evaluation: EvaluationName = "auto"
    memory_limit: float = MAX_BYTES
    seed: int | torch.Generator = 0
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.draws < 1 or self.starts < 0 or self.ascent_steps < 1 or not self.memory_limit > 0:
            raise ArgumentError(
                "expected draws >= 1, restarts >= 0, steps >= 1 and memory_limit > 0, got "
                f"draws={self.draws}, restarts={self.restarts}, steps={self.steps}, memory_limit={self.memory_limit}"
            )
        # an option that would be ignored is refused
        if self.method == "random" and not (self.restarts is None and self.steps is None):
            raise ArgumentError("restarts and steps are for gradient ascent, got method='random'; leave them out")
        if self.running_maximum and self.method != "random":
            raise ArgumentError(
                f"running_maximum is for method='random', got {self.method!r}, whose curve never falls anyway; leave it out"
            )

    @property
    def starts(self) -> int:
        """The restarts as a number."""
        return DEFAULT_RESTARTS if self.restarts is None else self.restarts

    @property
    def ascent_steps(self) -> int:
        """The steps as a number."""
        return DEFAULT_STEPS if self.steps is None else self.steps


def as_search(search: SearchName | Search, draws: int | None = None) -> Search:
    """The options of a search by name with that many draws; a `Search` has its own."""
    if isinstance(search, str):
        return Search(search, draws=DEFAULT_DRAWS if draws is None else draws)
    if draws is not None:
        raise ArgumentError(
            f"expected draws or a Search, got {draws=} and a Search with draws={search.draws}; set it in the Search"
        )
    return search


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
        # one copy to the host for all radii, not one a comparison
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
        # balls are nested: the sup cannot fall with the radius
        return Worst(np.maximum.accumulate(self.errors.numpy()), self.draws, self.best)
