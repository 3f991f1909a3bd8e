"""The sup over the balls: random draws, projected gradient ascent, and the vertices of a diagonal recurrence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.errors import ArgumentError
from holdfast.stability.perturbation.balls import Ball, PerturbedWeight
from holdfast.stability.perturbation.evaluate import AbstractEvaluator

Search = Literal["random", "adversarial", "exact"]
SEARCHES = ("random", "adversarial", "exact")
Deltas = dict[str, Tensor]
Progress = Callable[[int, int], None]
BLOCK = 1 << 22  # numbers of one block of random directions, 32 MB in float64; a draw of more is a block of its own


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
class Found:
    """The largest error at every radius with the perturbation that gave it, and the errors of the random draws."""

    errors: Float[np.ndarray, " radii"]
    draws: Float[np.ndarray, "radii draws"]
    best: Deltas


def run_search(
    problem: SearchProblem,
    search: Search,
    centre: float,
    draws: int,
    ball: Ball,
    restarts: int,
    steps: int,
    generator: torch.Generator,
) -> Found:
    """Random draws, and what `search` adds to them."""
    found = random_search(problem, draws, ball, generator, centre, keep=search != "random")
    if search == "adversarial":
        return adversarial_search(problem, found, restarts, steps, generator)
    if search == "exact":
        if any(w.modes is None for w in problem.weights):
            _modal_weights(problem)
            found = adversarial_search(problem, found, restarts, steps, generator)
        return exact_search(problem, found, steps)
    return found


def centre_error(evaluator: AbstractEvaluator, weights: Sequence[PerturbedWeight]) -> float:
    """E(0), by the same evaluator as all other errors."""
    return float(evaluator.errors({w.name: w.value.unsqueeze(0) for w in weights})[0])


def random_search(
    problem: SearchProblem, draws: int, where: Ball, generator: torch.Generator, centre: float, *, keep: bool
) -> Found:
    """Draws in the ball of every radius: the same directions at each, so that the curve is not a matter of luck.

    The centre is one of the candidates: no error is below E(0). `keep` stores the best perturbation of every radius.
    """
    radii = torch.from_numpy(problem.radii)
    numbers = sum(w.value.numel() for w in problem.weights)
    # of the weights' size alone: the draws are the same whatever the memory limit is
    block = max(1, min(draws, BLOCK // max(1, numbers)))
    # perturbations, perturbed weights and their copies, in the weights' dtype
    together = int(problem.evaluator.limit // (4.0 * sum(w.value.nbytes for w in problem.weights)))
    keeper = _Keeper.at_centre(problem, centre)
    columns = []
    for first in range(0, draws, block):
        count = min(block, draws - first)
        unit = {w.name: w.ball.draw(w.value, count, generator, where).to(w.value) for w in problem.weights}
        rows = []
        for part in torch.arange(len(radii)).split(max(1, together // count)):
            deltas = {name: _scaled(d, radii[part]) for name, d in unit.items()}
            rows.append(problem.errors(deltas).cpu().reshape(len(part), count))
            if keep:
                keeper.offer(rows[-1], deltas, part.tolist())
            if problem.progress is not None:
                problem.progress(first + count * (int(part[-1]) + 1) // len(radii), draws)
        columns.append(torch.cat(rows))
    errors = torch.cat(columns, dim=1)
    return Found(errors.amax(1).clamp(min=centre).numpy(), errors.numpy(), keeper.best)


def adversarial_search(
    problem: SearchProblem, start: Found, restarts: int, steps: int, generator: torch.Generator
) -> Found:
    """Projected gradient ascent at all radii at once, from the best random draw and from far points of the balls.

    Those are the gradient at the centre and its opposite, all entries up and all down (the slow and the fast end of
    many diagonal recurrences), and `restarts` random ones. A step goes along the steepest direction of each weight's
    own norm, of a length that falls from the ball's diameter to a tenth of its radius. Balls are nested, so that what
    was found in a smaller one counts in a larger one.
    """
    radii = torch.from_numpy(problem.radii).to(problem.weights[0].value.device)
    deltas = _starts(problem, start, radii, restarts, generator)
    radius = radii.repeat_interleave(len(next(iter(deltas.values()))) // len(radii))
    keeper = _Keeper.after(start)
    every = range(len(radii))
    for i in range(steps):
        errors, gradients = problem.evaluator.errors_and_gradients(problem.moved(deltas))
        keeper.offer(errors, deltas, every)
        length = radius * max(2 * (1 - i / steps), 0.1)
        for w in problem.weights:
            way = w.ball.steepest(gradients[w.name].to(deltas[w.name]))
            deltas[w.name] = deltas[w.name] + way * _column(length, way)
        deltas = problem.project(deltas, radius)
        if problem.progress is not None:
            problem.progress(i + 1, steps)
    keeper.offer(problem.errors(deltas), deltas, every)
    return keeper.nested()


def _starts(problem: SearchProblem, start: Found, radii: Tensor, restarts: int, generator: torch.Generator) -> Deltas:
    """(radii x starts, *shape) for every weight, the starts of a radius next to each other."""
    centre = {w.name: w.value.unsqueeze(0) for w in problem.weights}
    _, gradients = problem.evaluator.errors_and_gradients(centre)
    deltas = {}
    for w in problem.weights:
        up = w.ball.steepest(gradients[w.name])
        ones = w.ball.steepest(torch.ones_like(centre[w.name]))
        far = [up, -up, ones, -ones, w.ball.draw(w.value, restarts, generator, "sphere").to(w.value)]
        others = _scaled(torch.cat(far), radii).unflatten(0, (len(radii), 4 + restarts))
        deltas[w.name] = torch.cat([start.best[w.name].unsqueeze(1), others], dim=1).flatten(0, 1)
    return deltas


def exact_search(problem: SearchProblem, start: Found, steps: int) -> Found:
    """The worst case of diagonal recurrences lam = f(w): every mode at its slow or its fast end, the rest by ascent.

    With every other weight fixed, an error that is of one sign grows with each mode's time constant (or falls with
    it), so that the sup lies at ends: first the k slowest modes slow and the others fast or where they are, for
    every k, then single modes are flipped while that helps. Weights outside the recurrence start where an adversarial
    search left them and move along the steepest direction of their own ball, which never lowers an error that is
    convex in them (coefficients of a linear read-out). Exact where the ends decide; in general a local maximum.
    """
    modal = _modal_weights(problem)
    keeper = _Keeper.after(start)
    for i, beta in enumerate(problem.radii):
        ends = {w.name: _ends(w, float(beta)) for w in modal}
        _vertices(problem, keeper, i, ends, float(beta), steps)
        if problem.progress is not None:
            problem.progress(i + 1, len(problem.radii))
    return keeper.nested()


def _modal_weights(problem: SearchProblem) -> list[PerturbedWeight]:
    """The weights that decide how fast modes decay; raises where the search has none to move."""
    modal = [w for w in problem.weights if w.modes is not None]
    if not modal:
        raise ArgumentError(
            "search='exact' needs the free weights of a diagonal recurrence in scope; use search='adversarial'"
        )
    if any(w.ball.name != "max-abs" for w in modal):
        raise ArgumentError("search='exact' moves every mode on its own; it needs norm='spectral' or 'max-abs'")
    return modal


class _Keeper:
    """The best perturbation of every radius so far."""

    def __init__(self, errors: Tensor, draws: np.ndarray, best: Deltas) -> None:
        self.errors, self.draws, self.best = errors, draws, best

    @classmethod
    def at_centre(cls, problem: SearchProblem, centre: float) -> _Keeper:
        """Nothing found yet but the centre."""
        count = len(problem.radii)
        best = {w.name: w.value.new_zeros(count, *w.value.shape) for w in problem.weights}
        return cls(torch.full((count,), centre, dtype=torch.float64), np.empty((count, 0)), best)

    @classmethod
    def after(cls, start: Found) -> _Keeper:
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

    def nested(self) -> Found:
        """What was found in a smaller ball carried over to the larger ones."""
        return Found(np.maximum.accumulate(self.errors.numpy()), self.draws, self.best)


def _ends(weight: PerturbedWeight, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Perturbations to the slow and to the fast end of every mode, and the order of modes from slow to fast.

    f may turn inside the interval (best is even in w): the fast end is then at 0.
    """
    assert weight.modes is not None
    w = weight.value
    zero = (-w).clamp(-beta, beta)
    tries = torch.stack([torch.full_like(w, -beta), torch.full_like(w, beta), zero])
    margin = weight.modes.margin(w.unsqueeze(0) + tries)
    slow = tries.gather(0, margin.argmin(0, keepdim=True)).squeeze(0)
    fast = tries.gather(0, margin.argmax(0, keepdim=True)).squeeze(0)
    return slow, fast, weight.modes.margin(w).flatten().argsort()


def _vertices(problem: SearchProblem, keeper: _Keeper, i: int, ends: dict, beta: float, steps: int) -> None:
    """All candidates of one radius."""
    rest = {w.name: keeper.best[w.name][i] for w in problem.weights if w.name not in ends}
    candidates = {}
    for name, (slow, fast, order) in ends.items():
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        count = torch.arange(len(order) + 1, device=order.device)
        slowest = (rank.unsqueeze(0) < count.unsqueeze(1)).reshape(-1, *slow.shape)
        candidates[name] = torch.cat([torch.where(slowest, slow, fast), torch.where(slowest, slow, 0.0 * slow)])
    rows = max(len(c) for c in candidates.values())
    # several layers: all take their own k-th candidate together, the shorter ones stay at their last
    padded = {name: c[torch.arange(rows, device=c.device).clamp(max=len(c) - 1)] for name, c in candidates.items()}
    _offer_with_rest(problem, keeper, i, padded, rest, rows)
    for _ in range(steps):
        moved = _ascend_rest(problem, keeper, i, ends, beta)
        flipped = _flip(problem, keeper, i, ends)
        if not moved and not flipped:
            return


def _offer_with_rest(problem: SearchProblem, keeper: _Keeper, i: int, modal: Deltas, rest: Deltas, rows: int) -> None:
    deltas = {**modal, **{name: d.unsqueeze(0).expand(rows, *d.shape) for name, d in rest.items()}}
    keeper.offer(problem.errors(deltas), deltas, [i])
    if rest:
        still = {**modal, **{name: torch.zeros_like(d) for name, d in deltas.items() if name in rest}}
        keeper.offer(problem.errors(still), still, [i])


def _ascend_rest(problem: SearchProblem, keeper: _Keeper, i: int, ends: dict, beta: float) -> bool:
    """Weights outside the recurrence to the far point of their balls along the gradient."""
    others = [w for w in problem.weights if w.name not in ends]
    if not others:
        return False
    deltas = {w.name: keeper.best[w.name][i].unsqueeze(0) for w in problem.weights}
    _, gradients = problem.evaluator.errors_and_gradients(problem.moved(deltas))
    for w in others:
        deltas[w.name] = beta * w.ball.steepest(gradients[w.name].to(deltas[w.name]))
    return keeper.offer(problem.errors(deltas), deltas, [i])


def _flip(problem: SearchProblem, keeper: _Keeper, i: int, ends: dict) -> bool:
    """Modes to their other ends: each alone, then the k that help most together, for every k."""
    better = False
    for name, (slow, fast, _) in ends.items():
        now = keeper.best[name][i].clone()
        other = torch.where((now - slow).abs() <= (now - fast).abs(), fast, slow)
        n = now.numel()
        alone = torch.eye(n, dtype=torch.bool, device=now.device)
        deltas = {w.name: keeper.best[w.name][i].unsqueeze(0).repeat(n, *(1,) * w.value.ndim) for w in problem.weights}
        deltas[name] = torch.where(alone.reshape(n, *now.shape), other, now)
        errors = problem.errors(deltas)
        better = keeper.offer(errors, deltas, [i]) or better
        rank = torch.empty(n, dtype=torch.long, device=now.device)
        rank[errors.argsort(descending=True)] = torch.arange(n, device=now.device)
        together = rank.unsqueeze(0) <= torch.arange(n, device=now.device).unsqueeze(1)
        deltas[name] = torch.where(together.reshape(n, *now.shape), other, now)
        better = keeper.offer(problem.errors(deltas), deltas, [i]) or better
    return better


def _scaled(unit: Tensor, radii: Float[Tensor, " radii"]) -> Tensor:
    """(radii x draws, *shape): every draw at every radius."""
    return (unit.unsqueeze(0) * _column(radii, unit.unsqueeze(0)).to(unit.device)).flatten(0, 1)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.real.dtype).reshape(-1, *(1,) * (like.ndim - 1))
