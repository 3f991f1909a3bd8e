"""Equilibria of a recurrence on constant input, and the eigenvalues of its Jacobian at each ("iat", App. J)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Complex, Float64
from torch import Tensor
from torch.func import jacrev, vmap

from holdfast._types import Time
from holdfast.nn.system import Motion

SETTLE = 2000  # steps that a start is followed before Newton's method takes over
NEWTON = 60
FOUND = 1e-9  # largest |g| at an equilibrium
SAME = 1e-5  # states nearer than this are one equilibrium
BUDGET = 4e7  # numbers in all Jacobians held at a time


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


def find_equilibria(
    motion: Motion, residual: Motion, size: int, time: Time, *, dt: float, starts: int, seed: int
) -> Equilibria:
    """Equilibria of `motion`, float64 functions of states (..., size), from several starts.

    `residual` is 0 at equilibria and nowhere else: for a gated unit not dh/dt itself, which also vanishes where the
    gate closes far away from any equilibrium.

    Starts are 0, uniform states in [-1, 1]^n and [-3, 3]^n and sign vectors. Each is followed for a while (stable
    equilibria attract it), and Newton's method runs from both its beginning and its end (unstable ones are found too).
    Finding all of them is not guaranteed.
    """
    generator = torch.Generator().manual_seed(seed)
    count = max(2, min(starts, int(BUDGET / size**2)))
    uniform = 2 * torch.rand(count - 1, size, generator=generator, dtype=torch.float64) - 1
    far = torch.arange(count - 1) % 3
    spread = torch.where((far == 2).unsqueeze(-1), uniform.sign(), uniform * (1 + 2 * (far == 1).unsqueeze(-1)))
    first = torch.cat([torch.zeros(1, size, dtype=torch.float64), spread])
    with torch.no_grad():
        last = _follow(motion, first, time, dt)
        candidates = torch.cat([last, first])
        candidates = candidates[torch.isfinite(candidates).all(-1)]
        points = _newton(residual, candidates)
    at_rest = bool(torch.isfinite(last[0]).all()) and _size(residual(last[:1])) < 1e-6
    rest = points[0] if at_rest and _size(residual(points[:1])) < FOUND else None
    return _collect(motion, residual, points, rest, time)


def _follow(motion: Motion, h: Tensor, time: Time, dt: float) -> Tensor:
    for _ in range(SETTLE):
        moved = h + dt * motion(h) if time == "continuous" else motion(h)
        still = float((moved - h).abs().max()) < 1e-13
        h = moved
        if still:
            break
    return h


def _newton(residual: Motion, h: Tensor) -> Tensor:
    """Newton steps, shortened while they do not bring the residual down."""
    lengths = torch.tensor([1.0, 0.5, 0.2, 0.05, 0.01], dtype=torch.float64)
    parts = []
    for part in h.split(max(1, int(BUDGET / h.shape[1] ** 2))):
        for _ in range(NEWTON):
            g = residual(part)
            if float(g.abs().max()) < 1e-14:
                break
            J = vmap(jacrev(residual))(part)
            step, info = torch.linalg.solve_ex(J, g.unsqueeze(-1))
            step = torch.where((info == 0).reshape(-1, 1), step.squeeze(-1), g)
            tries = part.unsqueeze(1) - lengths.reshape(1, -1, 1) * step.unsqueeze(1)
            sizes = residual(tries).norm(dim=-1)
            sizes = torch.where(torch.isfinite(sizes), sizes, torch.inf)
            best = tries[torch.arange(len(part)), sizes.argmin(1)]
            better = sizes.amin(1) < g.norm(dim=-1)
            if not bool(better.any()):
                break
            part = torch.where(better.unsqueeze(-1), best, part)
        parts.append(part)
    return torch.cat(parts)


def _collect(motion: Motion, residual: Motion, h: Tensor, rest: Tensor | None, time: Time) -> Equilibria:
    kept: list[Tensor] = [] if rest is None else [rest]
    sizes = residual(h).abs().amax(-1)
    for point, size in zip(h, sizes.tolist(), strict=True):
        if size < FOUND and all(float((point - k).abs().max()) > SAME * (1 + float(k.abs().max())) for k in kept):
            kept.append(point)
    jacobians = [jacrev(motion)(point).detach().numpy() for point in kept]
    points = [
        _describe(point, J, _size(residual(point)), rest is not None and i == 0, time)
        for i, (point, J) in enumerate(zip(kept, jacobians, strict=True))
    ]
    return Equilibria(tuple(points), tuple(jacobians), rest is not None)


def _describe(state: Tensor, J: np.ndarray, residual: float, reached: bool, time: Time) -> Equilibrium:
    values = np.linalg.eigvals(J).astype(complex)
    margin = -float(values.real.max()) if time == "continuous" else 1 - float(np.abs(values).max())
    return Equilibrium(state.numpy(), values, margin, residual, reached)


def _size(g: Tensor) -> float:
    return float(g.abs().max()) if g.numel() else math.inf
