"""Experiments by hand that confirm holdfast's measurements of a model; nothing here calls the library.

They simulate an impulse after a long rest, a small change of a state at rest and along data, and the exchange of one
input of the data for another.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from specimen import Specimen
from torch import Tensor, nn

SMALL = 1e-7  # size of a deviation: 1e-14 of rounding is left below it
RESTING_STEPS = 2000  # on zeros, before a model counts as resting
SHARE = 0.01  # of the largest change: below that an input counts as forgotten
QUIET_END = 0.1  # share of the steps at the end in which nothing may be seen of what is gone
SEGMENT = 10  # steps between two times that a deviation is made small again; fewer of short sequences


def double(specimen: Specimen) -> tuple[nn.Module, Tensor]:
    """A float64 copy of the model, and its inputs."""
    return copy.deepcopy(specimen.model).double().eval(), specimen.inputs.double()


def steps_until_gone(sizes: np.ndarray) -> float:
    """Steps until less than 1% of the largest is left for good; inf where it was seen again shortly before the end.

    An output that saturates hides a change for a while, and shows it again later.
    """
    above = np.flatnonzero(sizes > SHARE * sizes.max())
    return math.inf if above[-1] >= (1 - QUIET_END) * len(sizes) else float(above[-1] + 1)


@torch.no_grad()
def impulses(specimen: Specimen, x: np.ndarray, horizon: int, settle: int = 500) -> float:
    """Rests on zeros, is given each of the inputs x for one step, then zeros: steps until 1% of the largest effect is left."""
    model, _ = double(specimen)
    rows = torch.zeros(len(x) + 1, settle + 1 + horizon, x.shape[1], dtype=torch.float64)
    rows[1:, settle] = torch.from_numpy(x)
    y = model(rows)[:, settle:]
    sizes = (y[1:] - y[:1]).abs().amax(2).numpy() / np.abs(x).max(1, keepdims=True)
    return steps_until_gone(sizes.max(0))


@torch.no_grad()
def reads(specimen: Specimen, inputs: Tensor) -> Tensor:
    """What the recurrence reads while the model runs on these inputs, in float64."""
    seen: list[Tensor] = []
    model = specimen.model
    if specimen.core not in list(model.modules()):
        return inputs.double()
    hook = specimen.core.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))  # type: ignore[union-attr]
    try:
        model(inputs)
    finally:
        hook.remove()
    return seen[0].double()


@torch.no_grad()
def time_constant_at_rest(specimen: Specimen, steps: int = 2000) -> float:
    """Rests on zeros, is moved a little, and its distance from rest is followed: steps in which it falls to 1/e."""
    zeros = torch.zeros(1, 8, specimen.inputs.shape[2])
    at_rest = reads(specimen, zeros)[:, -1:]
    return -1 / _growth(specimen, at_rest.expand(1, RESTING_STEPS + steps, -1).contiguous(), RESTING_STEPS)


@torch.no_grad()
def exponent_along(specimen: Specimen) -> float:
    """Two nearby states of the recurrence on the same data: mean growth of the log of their distance, per step."""
    return _growth(specimen, reads(specimen, specimen.inputs[:1]), SEGMENT)


def _growth(specimen: Specimen, u: Tensor, first: int) -> float:
    """Runs the recurrence up to `first`, moves the whole state a little, and follows how far the two are apart.

    The distance is made small again now and then, so that it stays in proportion; cells count as outputs do, since a
    saturated output hides what its cell still holds.
    """
    core = copy.deepcopy(specimen.core).double()  # type: ignore[union-attr]
    pace = min(SEGMENT, max(1, u.shape[1] // 10))
    first = first if 2 * first <= u.shape[1] else u.shape[1] // 5
    _, state = core(u[:, :first])
    own = _parts(state)
    near = [part + SMALL * torch.randn_like(part) for part in own]
    logs: list[np.ndarray] = []
    for start in range(first, u.shape[1] - pace + 1, pace):
        both = [torch.cat([a, b], 1) for a, b in zip(own, near, strict=True)]
        _, after = core(torch.cat([u[:, start : start + pace]] * 2), _state(both))
        halves = [part.chunk(2, 1) for part in _parts(after)]
        apart = _distance(halves)
        logs.append(torch.log(apart / _distance(list(zip(own, near, strict=True)))).numpy() / pace)
        own = [a for a, _ in halves]
        near = [a + (SMALL / apart)[None, :, None] * (b - a) for a, b in halves]
    # the first half turns the deviation towards the direction that lasts longest
    return float(np.mean(logs[len(logs) // 2 :]))


def _distance(pairs: list[tuple[Tensor, ...]]) -> Tensor:
    """Of two states, one number per row."""
    return torch.stack([(b - a).pow(2).sum((0, 2)) for a, b in pairs]).sum(0).sqrt()


@torch.no_grad()
def exchanged(specimen: Specimen, places: int = 16, seed: int = 1) -> np.ndarray:
    """One input of the data is exchanged for another, at many places: steps until 1% of the largest change is left."""
    model, x = double(specimen)
    rng = np.random.default_rng(seed)
    rows, steps, _ = x.shape
    follow = 3 * steps // 4
    plain, found = model(x), []
    for _ in range(places):
        row, at = int(rng.integers(rows)), int(rng.integers(steps - follow))
        changed = x[row : row + 1].clone()
        other = int(rng.integers(rows)), int(rng.integers(steps))
        changed[0, at] = x[other]
        sizes = (model(changed)[0] - plain[row]).abs().amax(-1)[at : at + follow].numpy()
        if sizes.max() > 1e-12:
            found.append(steps_until_gone(sizes))
    return np.array(found)


def median(steps: np.ndarray) -> float:
    """One of the values: infinite ones are no trouble."""
    return float(np.quantile(steps, 0.5, method="inverted_cdf"))


def _parts(state: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return list(state) if isinstance(state, tuple) else [state]


def _state(parts: list[Tensor]) -> Tensor | tuple[Tensor, ...]:
    return parts[0] if len(parts) == 1 else tuple(parts)
