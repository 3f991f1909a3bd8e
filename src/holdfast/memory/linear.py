"""The exact sup of a linear model over |x|_inf <= a, from its responses to the unit vectors.

At each time and output the response to x is sum_i x_i rho_i, whose sup over signs is sum_i |rho_i|; the largest output of
the sup is the sup of the largest output. d runs give what 2^d sign vectors would.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.memory.probes import Measured, Plan, measure
from holdfast.memory.search import Best
from holdfast.memory.subject import Subject

# floors of 4 eps that a superposition may miss: 2000 eps, as in `Subject.tolerance`
MAX_FLOORS = 500.0


def superposes(subject: Subject, plan: Plan, sizes: tuple[float, ...]) -> bool:
    """Whether the responses to two random x add up, at the smallest and at the largest of the sizes."""
    generator = torch.Generator().manual_seed(0)
    a, b = (_of_size(torch.randn(subject.input_size, generator=generator).double(), sizes[-1]) for _ in range(2))
    # signs turned round: one that is linear on a half-line, as relu, is not linear
    below, above = _of_size(-(a + b), sizes[0]), _of_size(a - b, sizes[-1])
    x = torch.stack([a, b, below, above])
    measured = measure(subject, plan, x, keep=True)
    assert measured.responses is not None
    first, second, *mixed = measured.responses.double()
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


def scales(plan: Plan, x: Tensor, parts: list[Measured]) -> bool:
    """The same for one input, from runs at several sizes: whether the responses are proportional to |x|."""
    share = (plan.divisor(x) / x.abs().amax(-1).double()).unsqueeze(1)
    values = torch.cat([part.values.cpu() for part in parts]) * share
    floors = torch.cat([part.floors.cpu() for part in parts]) * share
    if not bool(torch.isfinite(values).all()):
        return False
    return bool((values.amax(0) - values.amin(0) <= MAX_FLOORS * floors.max()).all())


def add_linear_sup(subject: Subject, plan: Plan, sizes: tuple[float, ...], best: Best) -> list[Measured]:
    """Adds the sup of a linear model to `best`; for the norm inf over outputs, or one output."""
    size = sizes[len(sizes) // 2]
    units = size * torch.eye(subject.input_size, dtype=torch.float64)
    # x / (|x| + 1) grows with |x|: the largest size has the sup
    reached = sizes[-1] if plan.probe.normalization == "x+1" else size
    parts, signs = [], []
    total, rounding = torch.zeros(()), torch.zeros(())
    for rows in units.split(max(subject.rows_at_once(plan.steps) - 1, 1)):
        part = measure(subject, plan, rows, keep=True)
        assert part.responses is not None
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


def has_linear_sup(subject: Subject, plan: Plan) -> bool:
    """Whether sup and norm over outputs change places, so that `add_linear_sup` holds for a linear model."""
    return subject.outputs == 1 or math.isinf(plan.probe.norm)


def _of_size(x: Tensor, size: float) -> Tensor:
    return x * (size / float(x.abs().max()))


def _ratio(x: Tensor, of: Tensor) -> float:
    return float(x.abs().max() / of.abs().max())
