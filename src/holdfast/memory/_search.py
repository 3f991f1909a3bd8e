"""The sup over x: which inputs to try, and the best value found at each time.

For a linear model the maximiser at time t over |x|_inf = a is a times a sign vector; all of them are tried while they are
few, else `add_linear_sup` has the sup from the responses to the unit vectors. For a nonlinear model these responses point to
sign vectors worth a try, and the size of x matters: each direction is tried at a grid of amplitudes, and gradient ascent
can move on from the best. What is found there is a lower bound of the sup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.memory._probes import Measured, ProbePlan, difference, measure, output_size
from holdfast.memory._subject import Subject

FLOOR_FACTOR = 2.0  # values up to this many times their floor may be rounding alone
# floors of 4 eps that a superposition may miss: 2000 eps, as in `Subject.tolerance`
MAX_FLOORS = 500.0
MAX_WINDOW_STEPS = 256  # longest horizon for which this form is taken without being asked for


class BestResponse:
    """The largest value at each time so far, the x that gave it, and what rounding leaves unknown of it.

    Every x has a floor of its own: rounding errors of the output are divided by its size. Once the values of an x have
    sunk below that floor, the sup may be anything up to it: so the floor at a time is the largest of those of the
    winner and of all x that have sunk. Taken of the winner alone, it would jump where another amplitude wins, and the
    curve would seem to end there.
    """

    def __init__(self, times: int, inputs: int) -> None:
        self.values = np.full(times, -1.0)
        self.own = np.zeros(times)
        self.sunk = np.zeros(times)
        self.maximiser = np.zeros((times, inputs))
        self.tried = 0

    def add(self, x: Float[Tensor, "rows inputs"], measured: Measured) -> None:
        """Every x at every time."""
        tried = x.detach().cpu().double().numpy()
        values, floors = measured.values.cpu().numpy(), measured.floors.cpu().numpy()
        top = values.argmax(0)
        at = np.arange(values.shape[1])
        self.sunk = np.maximum(self.sunk, np.where(values <= FLOOR_FACTOR * floors, floors, 0.0).max(0))
        self.take(values[top, at], floors[top, at], tried[top])
        self.tried += len(tried)

    def take(self, values: np.ndarray, floors: np.ndarray, x: np.ndarray) -> None:
        """One value, its floor and its x at each time, where they are larger than those so far."""
        better = values > self.values
        self.values = np.where(better, values, self.values)
        self.own = np.where(better, floors, self.own)
        self.maximiser[better] = x[better]

    @property
    def floor(self) -> np.ndarray:
        """Size of rounding errors at each time."""
        floor = np.maximum(self.own, self.sunk)
        return np.where(np.isfinite(floor), floor, 0.0)


def directions(inputs: int, budget: int, generator: torch.Generator) -> Float[Tensor, "rows inputs"]:
    """All sign vectors and signed unit vectors if they are at most `budget`; else unit vectors; else random signs."""
    unit = torch.eye(inputs, dtype=torch.float64)
    # a convex function of x over the cube has its sup at a corner; unit vectors are for models that are not linear
    if 2**inputs <= budget:
        signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0], dtype=torch.float64)] * inputs).reshape(-1, inputs)
        return signs if inputs == 1 else torch.cat([signs, unit, -unit])[:budget]
    if inputs <= budget:
        return unit
    return torch.randint(0, 2, (budget, inputs), generator=generator).double() * 2 - 1


def at_amplitudes(
    directions: Float[Tensor, "rows inputs"], amplitudes: Sequence[float]
) -> Float[Tensor, "scaled inputs"]:
    """Every direction at every amplitude."""
    return torch.cat([a * directions for a in amplitudes])


def sign_patterns(responses: Float[Tensor, "inputs times outputs"], most: int) -> Float[Tensor, "patterns inputs"]:
    """The sign vectors that a linear model with these unit responses would need, those needed most often first.

    At each time the output with the largest |rho|_1 counts.
    """
    # a sign vector suits one output at a time: the one in which the sup may be largest
    strongest = responses.abs().sum(0).argmax(-1)
    index = strongest.view(1, -1, 1).expand(len(responses), -1, 1)
    signs = torch.where(responses.gather(-1, index).squeeze(-1) < 0, -1.0, 1.0).T.double()
    patterns, count = signs.unique(dim=0, return_counts=True)
    return patterns[count.argsort(descending=True)[:most]]


def run_all(
    subject: Subject, plan: ProbePlan, x: Float[Tensor, "rows inputs"], best: BestResponse, *, keep: bool = False
) -> list[Measured]:
    """Measures every row of x in batches that fit in memory and adds them to `best`."""
    # one row less: each batch carries the zero input too
    at_once = max(subject.rows_at_once(plan.steps) - 1, 1)
    parts = []
    with torch.no_grad():
        for part in x.split(at_once):
            measured = measure(subject, plan, part, keep=keep)
            best.add(part, measured)
            parts.append(measured)
    return parts


def ascend(
    subject: Subject,
    plan: ProbePlan,
    best: BestResponse,
    amplitudes: Sequence[float],
    *,
    steps: int = 20,
    anchors: int = 8,
) -> Float[Tensor, "anchors inputs"] | None:
    """Gradient ascent on log(value / |x|) at a few times, from the maximiser there; None if x has no gradient.

    Steps go along the sign of the gradient (steepest ascent in the sup norm) and shrink; |x|_inf stays between the
    smallest and the largest amplitude. The probe is shortened to 1000 steps, since every step is kept for the gradient.
    """
    short = replace(plan, horizon=min(plan.horizon, 1000))
    # spread over scales of time: the worst input early and late may differ
    times = np.unique(np.geomspace(1, short.horizon + 1, anchors).astype(int) - 1)
    x = torch.from_numpy(best.maximiser[times]).clone()
    low, high = min(amplitudes), max(amplitudes)
    rows = torch.arange(len(times))
    columns = torch.from_numpy(times)
    for step in range(steps):
        with torch.enable_grad():
            x.requires_grad_(True)
            values = _sizes(subject, short, x)[rows, columns]
            # a model that detaches, or counts, gives no gradient: the grid is then all there is
            if not values.requires_grad:
                return None
            # log, so that late times with small values weigh as much as early ones
            objective = torch.log(values.clamp_min(torch.finfo(torch.float64).tiny)).sum()
            (by_output,) = torch.autograd.grad(objective, x, allow_unused=True)
            (by_size,) = torch.autograd.grad(torch.log(short.divisor(x)).sum(), x)
        if by_output is None:
            return None
        # of value / |x|: growing x alone must not count as ascent
        gradient = by_output - by_size
        with torch.no_grad():
            size = x.abs().amax(-1, keepdim=True)
            moved = x + 0.5 * (1 - step / steps) * size * torch.sign(torch.nan_to_num(gradient))
            reach = moved.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
            x = moved * reach.clamp(low, high) / reach
    return x.detach()


def _sizes(subject: Subject, plan: ProbePlan, x: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows times"]:
    y = plan.outputs(subject, x)
    response = difference((y[:-1] - y[-1:].detach())[:, max(plan.lead - 1, 0) :], plan)
    return output_size(response, plan.probe.norm).double().cpu()


def superposes(subject: Subject, plan: ProbePlan, sizes: tuple[float, ...]) -> bool:
    """Whether the responses to two random x add up, at the smallest and at the largest of the sizes."""
    generator = torch.Generator().manual_seed(0)
    a, b = (_of_size(torch.randn(subject.input_size, generator=generator).double(), sizes[-1]) for _ in range(2))
    # signs turned round: one that is linear on a half-line, as relu, is not linear
    below, above = _of_size(-(a + b), sizes[0]), _of_size(a - b, sizes[-1])
    x = torch.stack([a, b, below, above])
    measured = measure(subject, plan, x, keep=True)
    assert measured.responses is not None
    first, second, *mixed = measured.responses.double()
    # rounding of the outputs themselves: responses are not divided yet
    floors = (measured.floors * plan.divisor(x).to(measured.floors.device).unsqueeze(1)).amax(1)
    if not bool(torch.isfinite(measured.responses).all() and torch.isfinite(floors).all()):
        return False
    shares = -_ratio(below, a + b), _ratio(above, a - b)
    for share, response, floor, sign in zip(shares, mixed, floors[2:], (1.0, -1.0), strict=True):
        expected = share * (first + sign * second)
        allowed = MAX_FLOORS * (floor + abs(share) * (floors[0] + floors[1]))
        if not bool(((response - expected).abs() <= allowed).all()):
            return False
    return True


def scales(plan: ProbePlan, x: Tensor, parts: list[Measured]) -> bool:
    """The same for one input, from runs at several sizes: whether the responses are proportional to |x|."""
    share = (plan.divisor(x) / x.abs().amax(-1).double()).unsqueeze(1)
    values = torch.cat([part.values.cpu() for part in parts]) * share
    floors = torch.cat([part.floors.cpu() for part in parts]) * share
    if not bool(torch.isfinite(values).all()):
        return False
    return bool((values.amax(0) - values.amin(0) <= MAX_FLOORS * floors.max()).all())


def add_linear_sup(subject: Subject, plan: ProbePlan, sizes: tuple[float, ...], best: BestResponse) -> list[Measured]:
    """Adds the sup of a linear model to `best`; for the norm inf over outputs, or one output."""
    # a linear model answers alike at every size
    size = sizes[len(sizes) // 2]
    units = size * torch.eye(subject.input_size, dtype=torch.float64)
    # x / (|x| + 1) grows with |x|: the largest size has the sup
    reached = sizes[-1] if plan.probe.normalization == "x+1" else size
    parts, signs = [], []
    total, rounding = torch.zeros(()), torch.zeros(())
    for rows in units.split(max(subject.rows_at_once(plan.steps) - 1, 1)):
        part = measure(subject, plan, rows, keep=True)
        assert part.responses is not None
        # the sup over signs of |sum_i x_i rho_i| is the sum of |x_i rho_i|
        total = total.to(part.floors.device) + part.responses.double().abs().sum(0)
        # rounding errors of all units add up, since each is taken absolutely
        rounding = rounding.to(part.floors.device) + part.floors.sum(0) * float(plan.divisor(rows)[0])
        signs.append(torch.where(part.responses < 0, -1, 1).to(torch.int8))  # an eighth of the responses in float64
        parts.append(part.without_responses())
    top, output = total.max(-1)
    at = output.view(1, -1, 1).expand(subject.input_size, -1, 1)
    x = reached * torch.cat(signs).gather(-1, at).squeeze(-1).T.double().cpu()
    scale = (reached / size / plan.divisor(x)).numpy()
    best.take(top.cpu().numpy() * scale, rounding.cpu().numpy() * scale, x.numpy())
    best.tried += len(units)
    return parts


def has_linear_sup(subject: Subject, plan: ProbePlan) -> bool:
    """Whether sup and norm over outputs change places, so that `add_linear_sup` holds for a linear model."""
    return subject.outputs == 1 or math.isinf(plan.probe.norm)


def _of_size(x: Tensor, size: float) -> Tensor:
    return x * (size / float(x.abs().max()))


def _ratio(x: Tensor, of: Tensor) -> float:
    return float(x.abs().max() / of.abs().max())


def measure_window(
    subject: Subject,
    plan: ProbePlan,
    x: Float[Tensor, "rows inputs"],
    best: BestResponse,
    progress: Callable[[int, int], None] | None = None,
) -> list[Measured]:
    """M(t_k) from H(n copies of x, then zeros) at the last of horizon + 1 steps, n = horizon + 1 - k ("IAT", App. G).

    The difference over n is exact for linear models whatever their decay, where one pass over x and then zeros would
    miss rho(k + burn-in). Costs (horizon + 2)(horizon + 1) model steps for each x, in batches.
    """
    steps = plan.horizon + 1
    total = len(x) * (steps + 1)
    parts = []
    for row, one in enumerate(x):
        last = torch.cat(list(_last_outputs(subject, one, steps, progress, row * (steps + 1), total)))
        parts.append(_values(subject, plan, one, last))
        best.add(one.unsqueeze(0), parts[-1])
    return parts


def _last_outputs(
    subject: Subject, x: Tensor, steps: int, progress: Callable[[int, int], None] | None, before: int, total: int
) -> list[Tensor]:
    """The output at the last step for n = 0, 1, ..., steps copies of x."""
    outputs = []
    # x first and zeros after it, so that the last step sees each x at its own lag
    position = torch.arange(steps, device=subject.device)
    for copies in torch.arange(steps + 1, device=subject.device).split(subject.rows_at_once(steps)):
        mask = (position < copies.unsqueeze(1)).to(subject.dtype)
        with torch.no_grad():
            # a copy, so that the outputs of all other steps are freed
            outputs.append(subject(mask.unsqueeze(-1) * x.to(mask))[:, -1].clone())
        if progress is not None:
            progress(before + int(copies[-1]) + 1, total)
    return outputs


def _values(subject: Subject, plan: ProbePlan, x: Tensor, last: Float[Tensor, "copies outputs"]) -> Measured:
    divisor = plan.divisor(x.unsqueeze(0)).to(last.device)
    # n = steps - k, so that lag k comes from the difference between n = steps - k + 1 and n = steps - k; k = 0 is the
    # jump when the newest input, too, becomes 0
    response = torch.diff(last, dim=0).flip(0)
    values = output_size(response, plan.probe.norm).double() / divisor
    # every lag compares two outputs of the same size, that of the response to n copies
    floor = torch.nan_to_num(subject.rounding(last[1:].flip(0)) / divisor, nan=torch.inf, posinf=torch.inf)
    values = torch.nan_to_num(values, nan=torch.inf, posinf=torch.inf)
    return Measured(values.unsqueeze(0), floor.unsqueeze(0), last[0], 0.0)
