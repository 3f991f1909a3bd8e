"""The sup over the balls: random draws and projected gradient ascent; `_modes.py` adds the intervals of modes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.stability.perturbation._balls import PerturbedWeight
from holdfast.stability.perturbation._evaluate import AbstractEvaluator
from holdfast.stability.perturbation._modes import modal_weights, search_modes
from holdfast.stability.perturbation._options import Deltas, Keeper, Search, SearchProblem, Worst

MAX_BLOCK_NUMBERS = (
    1 << 22
)  # numbers of one block of random directions, 32 MB in float64; a draw of more is a block of its own


def run_search(problem: SearchProblem, search: Search, centre: float, generator: torch.Generator) -> Worst:
    """Random draws, and what the method adds to them."""
    worst = random_search(problem, search, centre, generator)
    if search.method == "random":
        return worst
    if search.method == "modes":
        modal_weights(problem)  # refused before an ascent that may take minutes
        # modes alone are searched interval by interval; what is beside them starts where an ascent left it
        if any(w.modes is None for w in problem.weights):
            worst = adversarial_search(problem, worst, search, generator)
        return search_modes(problem, worst, search.ascent_steps)
    return adversarial_search(problem, worst, search, generator)


def centre_error(evaluator: AbstractEvaluator, weights: Sequence[PerturbedWeight]) -> float:
    """E(0), by the same evaluator as all other errors."""
    return float(evaluator.errors({w.name: w.value.unsqueeze(0) for w in weights})[0])


def random_search(problem: SearchProblem, search: Search, centre: float, generator: torch.Generator) -> Worst:
    """Draws in the ball of every radius: the same directions at each, so that the curve is not a matter of luck.

    The centre is one of the candidates: no error is below E(0).
    """
    # a random search gives errors alone: which draw gave them matters to an ascent that starts there
    draws, keep = search.draws, search.method != "random"
    radii = torch.from_numpy(problem.radii)
    numbers = sum(w.value.numel() for w in problem.weights)
    # of the weights' size alone: the draws are the same whatever the memory limit is
    block = max(1, min(draws, MAX_BLOCK_NUMBERS // max(1, numbers)))
    # perturbations, perturbed weights and their copies, in the weights' dtype
    together = int(problem.evaluator.limit // (4.0 * sum(w.value.nbytes for w in problem.weights)))
    keeper = Keeper.at_centre(problem, centre)
    columns = []
    for first in range(0, draws, block):
        count = min(block, draws - first)
        # drawn once in the unit ball and scaled: E(beta) then differs between radii by beta alone
        unit = {w.name: w.ball.draw(w.value, count, generator, search.where).to(w.value) for w in problem.weights}
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
    # the centre lies in every ball
    largest = errors.amax(1).clamp(min=centre)
    largest = largest.cummax(0).values if search.running_maximum else largest
    return Worst(largest.numpy(), errors.numpy(), keeper.best)


def adversarial_search(problem: SearchProblem, start: Worst, search: Search, generator: torch.Generator) -> Worst:
    """Projected gradient ascent at all radii at once, from the best random draw and from far points of the balls.

    Those are the gradient at the centre and its opposite, all entries up and all down (the slow and the fast end of
    many diagonal recurrences), and `restarts` random ones. A step goes along the steepest direction of each weight's
    own norm, of a length that falls from the ball's diameter to a tenth of its radius. Balls are nested, so that what
    was found in a smaller one counts in a larger one.
    """
    radii = torch.from_numpy(problem.radii).to(problem.weights[0].value.device)
    steps = search.ascent_steps
    deltas = _starts(problem, start, radii, search.starts, generator)
    # ascents at all radii run in one batch: the evaluator is fastest with many draws
    radius = radii.repeat_interleave(len(next(iter(deltas.values()))) // len(radii))
    keeper = Keeper.after(start)
    every = range(len(radii))
    for i in range(steps):
        errors, gradients = problem.evaluator.errors_and_gradients(problem.moved(deltas))
        keeper.offer(errors, deltas, every)
        # long steps first, as errors have many local maxima inside a ball; short ones settle on a boundary
        length = radius * max(2 * (1 - i / steps), 0.1)
        for w in problem.weights:
            way = w.ball.steepest(gradients[w.name].to(deltas[w.name]))
            deltas[w.name] = deltas[w.name] + way * _column(length, way)
        deltas = problem.project(deltas, radius)
        if problem.progress is not None:
            problem.progress(i + 1, steps)
    keeper.offer(problem.errors(deltas), deltas, every)
    return keeper.nested()


def _starts(problem: SearchProblem, start: Worst, radii: Tensor, restarts: int, generator: torch.Generator) -> Deltas:
    """(radii x starts, *shape) for every weight, the starts of a radius next to each other."""
    centre = {w.name: w.value.unsqueeze(0) for w in problem.weights}
    _, gradients = problem.evaluator.errors_and_gradients(centre)
    deltas = {}
    for w in problem.weights:
        up = w.ball.steepest(gradients[w.name])
        # signs of the gradient at the centre say nothing of far points: all entries up and down are tried as well
        ones = w.ball.steepest(torch.ones_like(centre[w.name]))
        far = [up, -up, ones, -ones, w.ball.draw(w.value, restarts, generator, "sphere").to(w.value)]
        others = _scaled(torch.cat(far), radii).unflatten(0, (len(radii), 4 + restarts))
        deltas[w.name] = torch.cat([start.best[w.name].unsqueeze(1), others], dim=1).flatten(0, 1)
    return deltas


def _scaled(unit: Tensor, radii: Float[Tensor, " radii"]) -> Tensor:
    """(radii x draws, *shape): every draw at every radius."""
    return (unit.unsqueeze(0) * _column(radii, unit.unsqueeze(0)).to(unit.device)).flatten(0, 1)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.real.dtype).reshape(-1, *(1,) * (like.ndim - 1))
