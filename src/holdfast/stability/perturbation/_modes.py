"""The sup over the modes of diagonal recurrences lam = f(w): every mode has an interval of its own, ends and inside."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from holdfast.errors import ArgumentError
from holdfast.stability.perturbation._balls import PerturbedWeight
from holdfast.stability.perturbation._options import Deltas, Keeper, SearchProblem, Worst

Ends = dict[str, tuple[Tensor, Tensor, Tensor]]
MAX_CORNER_MODES = 10  # up to 1024 corners: all are tried
MAX_GRID_MODES = 3  # up to 9^3 points inside: a grid of them
GRID_POINTS = 9
SAMPLED_POINTS = 64  # corners, and as many points inside, where these are too many
# of its error that an interval may still promise inside, by the slope at its end, for an end to count as the sup
RELATIVE_TOLERANCE = 1e-7
MIN_STEP = 1e-4  # of a radius: the last step of the search inside, whose square is what it leaves


def search_modes(problem: SearchProblem, start: Worst, steps: int) -> Worst:
    """Corners of the box that the modes' intervals make, points inside it, then ascent from the best.

    With every other weight fixed, an error of one sign grows with each mode's time constant (or falls with it), so that
    the sup lies at a corner. Where the error changes sign it need not: the box is 1024 corners (all, up to 10 modes) and
    points inside; from the best single modes are flipped while that helps, and where the slope then still points into
    the box a compass search follows it. Weights outside the recurrence start where an adversarial search left them and
    move along the steepest direction of their own ball, which never lowers an error that is convex in them (coefficients
    of a linear readout). What is found is a lower bound: a maximum over all corners of up to 10 modes, local beyond.
    """
    modal = modal_weights(problem)
    keeper = Keeper.after(start)
    # fixed: the box is sampled the same way at each radius and in each call
    generator = torch.Generator().manual_seed(0)
    for i, beta in enumerate(problem.radii):
        # ends move with beta, so that nothing but the best point is carried from one radius to the next
        ends = {w.name: _ends(w, float(beta)) for w in modal}
        _offer_box(problem, keeper, i, ends, generator)
        for _ in range(steps):
            moved = _ascend_rest(problem, keeper, i, ends, float(beta))
            flipped = _flip(problem, keeper, i, ends)
            if not moved and not flipped:
                break
        _follow_inside(problem, keeper, i, ends, float(beta))
        if problem.progress is not None:
            problem.progress(i + 1, len(problem.radii))
    return keeper.nested()


def modal_weights(problem: SearchProblem) -> list[PerturbedWeight]:
    """The weights that decide how fast modes decay; raises where the search has none to move."""
    modal = [w for w in problem.weights if w.modes is not None]
    if not modal:
        raise ArgumentError(
            "search='modes' needs the free weights of a diagonal recurrence in scope; use search='adversarial'"
        )
    if any(w.ball.name != "max-abs" for w in modal):
        raise ArgumentError(
            "search='modes' moves each mode separately and needs norm='spectral' or 'max-abs', got another norm; change "
            "norm, or use search='adversarial'"
        )
    return modal


def _ends(weight: PerturbedWeight, beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Perturbations to the slow and to the fast end of every mode, and the order of modes from slow to fast.

    f may turn inside the interval (best is even in w): the fast end is then at 0.
    """
    assert weight.modes is not None
    w = weight.value
    # as near to w = 0 as the ball allows
    zero = (-w).clamp(-beta, beta)
    tries = torch.stack([torch.full_like(w, -beta), torch.full_like(w, beta), zero])
    # by the margin and not by f: in discrete time a mode may be slow at -1 as well as at 1
    margin = weight.modes.margin(w.unsqueeze(0) + tries)
    slow = tries.gather(0, margin.argmin(0, keepdim=True)).squeeze(0)
    fast = tries.gather(0, margin.argmax(0, keepdim=True)).squeeze(0)
    return slow, fast, weight.modes.margin(w).flatten().argsort()


def _offer_box(problem: SearchProblem, keeper: Keeper, i: int, ends: Ends, generator: torch.Generator) -> None:
    """The candidates of one radius: slowest modes apart, corners, points inside."""
    rest = {w.name: keeper.best[w.name][i] for w in problem.weights if w.name not in ends}
    candidates = {name: _slowest_apart(*several) for name, several in ends.items()}
    rows = max(len(c) for c in candidates.values())
    # several layers: all take their own k-th candidate together, the shorter ones stay at their last
    padded = {name: c[torch.arange(rows, device=c.device).clamp(max=len(c) - 1)] for name, c in candidates.items()}
    _offer_with_rest(problem, keeper, i, padded, rest, rows)
    shares = _shares(sum(slow.numel() for slow, _, _ in ends.values()), generator)
    deltas, left = {}, shares
    for name, (slow, fast, _) in ends.items():
        own, left = left[:, : slow.numel()], left[:, slow.numel() :]
        deltas[name] = fast + own.reshape(-1, *slow.shape).to(slow) * (slow - fast)
    _offer_with_rest(problem, keeper, i, deltas, rest, len(shares))


def _slowest_apart(slow: Tensor, fast: Tensor, order: Tensor) -> Tensor:
    """The k slowest modes slow and the others fast, or where they are, for every k."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    count = torch.arange(len(order) + 1, device=order.device)
    slowest = (rank.unsqueeze(0) < count.unsqueeze(1)).reshape(-1, *slow.shape)
    # errors of one sign have their sup here: time constants all up, or all down
    return torch.cat([torch.where(slowest, slow, fast), torch.where(slowest, slow, 0.0 * slow)])


def _shares(modes: int, generator: torch.Generator) -> Tensor:
    """Points of the unit cube: 0 is the fast end of a mode, 1 the slow one."""
    if modes <= MAX_GRID_MODES:
        axis = torch.linspace(0, 1, GRID_POINTS, dtype=torch.float64)
        return torch.tensor(list(itertools.product(axis.tolist(), repeat=modes)), dtype=torch.float64)
    # a grid grows like 9^modes: beyond three random points stand for it
    inside = torch.rand(SAMPLED_POINTS, modes, generator=generator, dtype=torch.float64)
    if modes <= MAX_CORNER_MODES:
        corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=modes)), dtype=torch.float64)
    else:
        corners = torch.randint(0, 2, (SAMPLED_POINTS, modes), generator=generator).double()
    return torch.cat([corners, inside])


def _follow_inside(problem: SearchProblem, keeper: Keeper, i: int, ends: Ends, beta: float) -> None:
    """Steps along single modes, up and down, halved when none helps; nothing where every slope points out of the box."""
    if not _points_inside(problem, keeper, i, ends, beta):
        return
    # a quarter of the radius, halved to 1e-4: the error of a smooth maximum is then 1e-8 of its curvature
    step = beta / 4
    while step > MIN_STEP * beta:
        better = False
        # one layer after another: all modes of one at once are a batch of 2n runs
        for name in ends:
            now = keeper.best[name][i]
            n = now.numel()
            moves = step * torch.eye(n, dtype=now.dtype, device=now.device).reshape(n, *now.shape)
            deltas = {w.name: _repeated(keeper.best[w.name][i], 2 * n) for w in problem.weights}
            deltas[name] = (now + torch.cat([moves, -moves])).clamp(-beta, beta)
            better = keeper.offer(problem.errors(deltas), deltas, [i]) or better
        step = step if better else step / 2


def _points_inside(problem: SearchProblem, keeper: Keeper, i: int, ends: Ends, beta: float) -> bool:
    """Whether the error grows, to first order, from the best point into the box."""
    deltas = {w.name: keeper.best[w.name][i].unsqueeze(0) for w in problem.weights}
    errors, gradients = problem.evaluator.errors_and_gradients(problem.moved(deltas))
    if not bool(torch.isfinite(errors).all()):
        return False  # nothing is larger than what is not finite
    for name in ends:
        slope, at = gradients[name][0], deltas[name][0]
        # the slope times the way that is left bounds to first order what the inside may add
        room = torch.where(slope > 0, beta - at, beta + at).clamp(min=0)
        if float((slope.abs() * room).max()) > RELATIVE_TOLERANCE * float(errors.max()):
            return True
    return False


def _repeated(delta: Tensor, rows: int) -> Tensor:
    return delta.unsqueeze(0).repeat(rows, *(1,) * delta.ndim)


def _offer_with_rest(problem: SearchProblem, keeper: Keeper, i: int, modal: Deltas, rest: Deltas, rows: int) -> None:
    deltas = {**modal, **{name: d.unsqueeze(0).expand(rows, *d.shape) for name, d in rest.items()}}
    keeper.offer(problem.errors(deltas), deltas, [i])
    if rest:
        # the other weights at their centre too: where the ascent left them may be worse for these modes
        still = {**modal, **{name: torch.zeros_like(d) for name, d in deltas.items() if name in rest}}
        keeper.offer(problem.errors(still), still, [i])


def _ascend_rest(problem: SearchProblem, keeper: Keeper, i: int, ends: Ends, beta: float) -> bool:
    """Weights outside the recurrence to the far point of their balls along the gradient."""
    others = [w for w in problem.weights if w.name not in ends]
    if not others:
        return False
    deltas = {w.name: keeper.best[w.name][i].unsqueeze(0) for w in problem.weights}
    _, gradients = problem.evaluator.errors_and_gradients(problem.moved(deltas))
    # the far point and not a step: an error that is convex in them has its maximum on the boundary
    for w in others:
        deltas[w.name] = beta * w.ball.steepest(gradients[w.name].to(deltas[w.name]))
    return keeper.offer(problem.errors(deltas), deltas, [i])


def _flip(problem: SearchProblem, keeper: Keeper, i: int, ends: Ends) -> bool:
    """Modes to their other ends: each alone, then the k that help most together, for every k."""
    better = False
    for name, (slow, fast, _) in ends.items():
        now = keeper.best[name][i].clone()
        other = torch.where((now - slow).abs() <= (now - fast).abs(), fast, slow)
        n = now.numel()
        alone = torch.eye(n, dtype=torch.bool, device=now.device)
        deltas = {w.name: _repeated(keeper.best[w.name][i], n) for w in problem.weights}
        deltas[name] = torch.where(alone.reshape(n, *now.shape), other, now)
        errors = problem.errors(deltas)
        better = keeper.offer(errors, deltas, [i]) or better
        rank = torch.empty(n, dtype=torch.long, device=now.device)
        # flips that help alone mostly help together; trying all subsets would cost 2^n runs
        rank[errors.argsort(descending=True)] = torch.arange(n, device=now.device)
        together = rank.unsqueeze(0) <= torch.arange(n, device=now.device).unsqueeze(1)
        deltas[name] = torch.where(together.reshape(n, *now.shape), other, now)
        better = keeper.offer(problem.errors(deltas), deltas, [i]) or better
    return better
