"""How the state of a recurrence moves, in float64: where it rests on a constant input, and its steps on inputs that change.

`find_rest` and `find_equilibria` are the one solver of where a state rests, with the eigenvalues of its step there (iat,
App. J); `Driven` is a step along data.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Complex, Float64
from torch import Tensor
from torch.func import jacrev, vmap

from holdfast._types import Time
from holdfast.nn.system import Motion

FOLLOWED_STEPS = 2000  # that a start is followed for before Newton's method takes over
PATIENT_STEPS = 20_000  # that the start at 0 is followed for while it still comes nearer to rest
NEWTON_STEPS = 60
FAR = 1e9  # size of a state that has left every bound
MAX_RESIDUAL = 1e-9  # largest |g| at an equilibrium
SETTLED_RESIDUAL = 1e-6  # largest |g| of a state that settles by itself, before Newton's method
SAME_STATE_DISTANCE = 1e-5  # states nearer than this are one equilibrium
JACOBIAN_NUMBERS = 4e7  # in all Jacobians held at a time


@dataclass(frozen=True, eq=False)
class StepMap:
    """How a state moves on a constant input: float64 functions of states (..., size), on the CPU.

    Args:
        motion: to the next state in discrete time, to dh/dt in continuous time.
        residual: 0 at equilibria and nowhere else: for a gated unit not dh/dt itself, which also vanishes where the gate
            closes far away from any equilibrium.
        size: numbers in the state.
        time: the kind of time.
        dt: the step by which a state is followed in continuous time.
        vectorized: whether torch.func takes its Jacobians; a fused kernel has no batching rule.
    """

    motion: Motion
    residual: Motion
    size: int
    time: Time
    dt: float = 1.0
    vectorised: bool = True

    def __call__(self, h: Tensor) -> Tensor:
        """The next state."""
        return h + self.dt * self.motion(h) if self.time == "continuous" else self.motion(h)

    def jacobians(self, function: Motion, points: Tensor) -> Tensor:
        """That of `motion` or `residual` at each point, (points, size, size)."""
        if self.vectorised:
            return vmap(jacrev(function))(points)
        # one point after the other where operators have no batching rule
        with torch.enable_grad():
            return torch.stack([torch.autograd.functional.jacobian(function, point) for point in points])


@dataclass(frozen=True, eq=False)
class Equilibrium:
    """A state that stays where it is; `reached` where the state goes from 0.

    `eigenvalues` are those of the Jacobian of dh/dt there, or of one step in discrete time; `margin` is the distance
    to the stability boundary, negative for an unstable equilibrium.
    """

    state: Float64[np.ndarray, " n"]
    eigenvalues: Complex[np.ndarray, " n"]
    margin: float
    residual: float
    reached: bool

    @property
    def stable(self) -> bool:
        """Whether small deviations die out."""
        return self.margin > 0


@dataclass(frozen=True, eq=False)
class Equilibria:
    """Those that were found, the one reached from 0 first, with the Jacobian of each; `settled` if there is one."""

    points: tuple[Equilibrium, ...]
    jacobians: tuple[Float64[np.ndarray, "n n"], ...]
    settled: bool


@torch.no_grad()
def find_equilibria(step: StepMap, *, starts: int, seed: int) -> Equilibria:
    """Equilibria of a step map, from several starts; finding all of them is not guaranteed.

    Starts are 0, uniform states in [-1, 1]^n and [-3, 3]^n and sign vectors. Each is followed for a while (stable
    equilibria attract it), and Newton's method runs from both its beginning and its end (unstable ones are found too).
    """
    generator = torch.Generator().manual_seed(seed)
    # 0 and one more at least; fewer starts where a Jacobian is large
    count = max(2, min(starts, int(JACOBIAN_NUMBERS / step.size**2)))
    # near 0, farther out, and saturated: bistable units rest at signs
    uniform = 2 * torch.rand(count - 1, step.size, generator=generator, dtype=torch.float64, device="cpu") - 1
    far = torch.arange(count - 1, device="cpu") % 3
    spread = torch.where((far == 2).unsqueeze(-1), uniform.sign(), uniform * (1 + 2 * (far == 1).unsqueeze(-1)))
    first = torch.cat([spread.new_zeros(1, step.size), spread])
    last = _follow(step, first)
    last[0] = _follow_on(step, last[:1])[0]
    # ends lie near stable equilibria, beginnings also near unstable ones, which repel
    candidates = torch.cat([last, first])
    points = _newton(step, candidates[torch.isfinite(candidates).all(-1)])
    rest = points[0] if _rests(step, last[0], points[0]) else None
    return _collect(step, points, rest)


@torch.no_grad()
def find_rest(step: StepMap, start: Tensor | None = None) -> Equilibrium | None:
    """The equilibrium that the state goes to from `start`, 0 by default: the first of `find_equilibria` from 0.

    Where the state never settles that is the first of a search; None where the search finds nothing either.
    """
    first = torch.zeros(step.size, dtype=torch.float64, device="cpu") if start is None else start
    last = _follow_on(step, _follow(step, first.unsqueeze(0)))
    if bool(torch.isfinite(last).all()):
        point = _newton(step, last)
        if _rests(step, last[0], point[0]):
            return _collect(step, point, point[0]).points[0]
    return next(iter(find_equilibria(step, starts=16, seed=0).points), None)


@torch.no_grad()
def runs_away(step: StepMap) -> bool:
    """Whether the state leaves every bound from 0: what has no state of rest may still oscillate or be chaotic."""
    last = _follow(step, torch.zeros(1, step.size, dtype=torch.float64, device="cpu"))
    return not bool((last.abs() < FAR).all())


def _rests(step: StepMap, last: Tensor, point: Tensor) -> bool:
    """Whether a state settles by itself, and Newton's method found the equilibrium there."""
    settled = bool(torch.isfinite(last).all()) and _size(step.residual(last)) < SETTLED_RESIDUAL
    return settled and _size(step.residual(point)) < MAX_RESIDUAL


def _follow(step: StepMap, h: Tensor) -> Tensor:
    for _ in range(FOLLOWED_STEPS):
        moved = step(h)
        still = float((moved - h).abs().max()) < 1e-13
        h = moved
        if still:
            break
    return h


def _follow_on(step: StepMap, h: Tensor) -> Tensor:
    """The same state further along, where it moves ever less: slow modes take longer than most starts are given."""
    for _ in range(PATIENT_STEPS // FOLLOWED_STEPS - 1):
        moved = float((step(h) - h).abs().max())
        if not 1e-13 <= moved < math.inf:
            return h
        further = _follow(step, h)
        if not float((step(further) - further).abs().max()) < 0.9 * moved:
            return further  # it turns around, or wanders
        h = further
    return h


def _newton(step: StepMap, h: Tensor) -> Tensor:
    """Newton steps, shortened while they do not bring the residual down."""
    lengths = torch.tensor([1.0, 0.5, 0.2, 0.05, 0.01], dtype=torch.float64, device=h.device)
    parts = []
    for part in h.split(max(1, int(JACOBIAN_NUMBERS / h.shape[1] ** 2))):
        for _ in range(NEWTON_STEPS):
            g = step.residual(part)
            if float(g.abs().max()) < 1e-14:
                break
            J = step.jacobians(step.residual, part)
            change, info = torch.linalg.solve_ex(J, g.unsqueeze(-1))
            # a singular Jacobian gives no step: along the residual instead
            change = torch.where((info == 0).reshape(-1, 1), change.squeeze(-1), g)
            tries = part.unsqueeze(1) - lengths.reshape(1, -1, 1) * change.unsqueeze(1)
            sizes = step.residual(tries).norm(dim=-1)
            sizes = torch.where(torch.isfinite(sizes), sizes, torch.inf)
            best = tries[torch.arange(len(part), device=part.device), sizes.argmin(1)]
            better = sizes.amin(1) < g.norm(dim=-1)
            if not bool(better.any()):
                break
            part = torch.where(better.unsqueeze(-1), best, part)
        parts.append(part)
    return torch.cat(parts)


def _collect(step: StepMap, h: Tensor, rest: Tensor | None) -> Equilibria:
    kept: list[Tensor] = [] if rest is None else [rest]
    sizes = step.residual(h).abs().amax(-1)
    for point, size in zip(h, sizes.tolist(), strict=True):
        # Newton's method ends at one equilibrium from many starts
        apart = (float((point - k).abs().max()) > SAME_STATE_DISTANCE * (1 + float(k.abs().max())) for k in kept)
        if size < MAX_RESIDUAL and all(apart):
            kept.append(point)
    jacobians = [step.jacobians(step.motion, point.unsqueeze(0))[0].detach().numpy() for point in kept]
    points = [
        _describe(point, J, _size(step.residual(point)), rest is not None and i == 0, step.time)
        for i, (point, J) in enumerate(zip(kept, jacobians, strict=True))
    ]
    return Equilibria(tuple(points), tuple(jacobians), rest is not None)


def _describe(state: Tensor, J: np.ndarray, residual: float, reached: bool, time: Time) -> Equilibrium:
    values = np.linalg.eigvals(J).astype(complex)
    margin = -float(values.real.max()) if time == "continuous" else 1 - float(np.abs(values).max())
    return Equilibrium(state.numpy(), values, margin, residual, reached)


def _size(g: Tensor) -> float:
    return float(g.abs().max()) if g.numel() else math.inf


@dataclass(frozen=True, eq=False)
class Driven:
    """How a state moves along a sequence of inputs: float64 functions on the CPU.

    Args:
        drive: inputs of the module, (rows, time, features), to what decides each step, (rows, time, numbers), in the order in
            which steps are taken.
        step: states (rows, size) and drives (rows, numbers) to the next states.
        size: numbers in a state.
    """

    drive: Callable[[Tensor], Tensor]
    step: Callable[[Tensor, Tensor], Tensor]
    size: int

    @torch.no_grad()
    def trajectory(
        self, drives: Float64[Tensor, "rows time numbers"], start: Float64[Tensor, "rows size"] | None = None
    ) -> Float64[Tensor, "rows time size"]:
        """The states after each step.

        Args:
            drives: what `drive` gave.
            start: the first states; None is 0.
        """
        state = drives.new_zeros(len(drives), self.size) if start is None else start
        states = []
        for drive in drives.unbind(1):
            state = self.step(state, drive)
            states.append(state)
        return torch.stack(states, 1)


def layer_driven(layer: Any) -> Driven:
    """A holdfast layer by its own `step` in a float64 copy.

    Args:
        layer: an AbstractRecurrent whose state does not move linearly.
    """
    # a copy: the user's layer keeps its dtype and its mode
    own = copy.deepcopy(layer).double().eval()
    shape = tuple(own.state_shape)
    size = torch.Size(shape).numel()

    def step(state: Tensor, x: Tensor) -> Tensor:
        return own.step(x, state.reshape(-1, *shape))[1].reshape(-1, size)

    return Driven(lambda x: x.double(), step, size)
