"""The controlled Lotka-Volterra system: a nonlinear map from an input sequence to two populations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.data._base import AbstractTask, Batch, Space, Split
from holdfast.data._draws import generated_sizes, normal
from holdfast.errors import ArgumentError

A, B, C, D = 1.0, 0.6, 1.0, 0.3  # growth of the prey, what it loses, decay of the hunters, what they gain
START = (1.0, 0.5)
_MAX_NUMBERS = 1 << 30  # numbers kept in RAM


class LotkaVolterraTask(AbstractTask):
    """Euler steps of z1' = z1 (a - b z2), z2' = -z2 (c - d z1) + u (linrec, App. E.3, eq. 37 and 38).

    a = 1, b = 0.6, c = 1, d = 0.3, z(0) = (1, 0.5), as there. The input lies in the plane of two Fourier functions over the
    window, u_t = amplitude (g1 cos(2 pi t / length) + g2 sin(2 pi t / length)) with standard normal g1, g2. The paper gives
    neither the functions nor their size; ours are the slowest that are orthonormal at length 2048, where the amplitude is
    sqrt(2 / 2048) = 1/32. Much larger inputs make z2 negative, and z1 then grows without bound. The target at step t is z
    after u_t. All trajectories are made when the task is, from (seed, split, index).

    Args:
        length: steps of a trajectory.
        dt: size of an Euler step.
        amplitude: size of the input.
        train: number of training trajectories; with `valid` the paper's 70% and 30% of 1,024.
        valid: number of validation trajectories; 0: no such split.
        test: number of test trajectories; 0: no such split.
        seed: of the inputs.
    """

    @checked
    def __init__(
        self,
        length: int = 2048,
        *,
        dt: float = 0.0075,
        amplitude: float = 1 / 32,
        train: int = 717,
        valid: int = 307,
        test: int = 0,
        seed: int = 0,
    ) -> None:
        positive(length=length, train=train)
        if (train + valid + test) * length * 3 > _MAX_NUMBERS:
            raise ArgumentError(
                f"expected at most {_MAX_NUMBERS // 3:,} steps in all, which are kept in RAM, got {train + valid + test:,} "
                f"trajectories of {length:,} steps; use fewer or shorter ones"
            )
        self.dt, self.amplitude, self.seed = dt, amplitude, seed
        sizes = generated_sizes(train, valid, test)
        super().__init__("lotka-volterra", "regress", Space("features", 1), Space("features", 2), length, sizes)
        self._parts = {split: self._trajectories(split, size) for split, size in sizes.items() if size}

    def _trajectories(self, split: Split, count: int) -> tuple[Tensor, Tensor]:
        angles = 2 * math.pi / self.length * torch.arange(self.length, dtype=torch.float64)
        u = (
            normal(self.seed, split, torch.arange(count), 2)
            @ torch.stack((angles.cos(), angles.sin()))
            * self.amplitude
        )
        z = torch.from_numpy(euler(u.numpy().T, self.dt)).permute(2, 0, 1)
        # found here and not as a loss that is NaN
        if not bool(z.isfinite().all()):
            raise ArgumentError(
                f"a trajectory of {split} overflows with amplitude={self.amplitude:g}, dt={self.dt:g} and "
                f"length={self.length:,}; reduce one of them"
            )
        return u.float()[..., None], z.float().contiguous()

    def _batch(self, split: Split, indices: Int64[Tensor, " batch"]) -> Batch:
        u, z = self._parts[split]
        return Batch(u[indices], z[indices])

    def describe(self) -> str:
        sizes = ", ".join(f"{size} {split}" for split, size in self._sizes.items())
        return f"controlled Lotka-Volterra, {self.length:,} Euler steps of {self.dt:g}, trajectories: {sizes}"

    def identity(self) -> dict[str, Any]:
        return {
            "task": self.name, "length": self.length, "dt": self.dt, "amplitude": self.amplitude, "seed": self.seed,
            "sizes": dict(self._sizes),
        }  # fmt: skip


@np.errstate(all="ignore")
def euler(u: np.ndarray, dt: float) -> np.ndarray:
    """Populations (time, 2, trajectories) after each step, for inputs u (time, trajectories)."""
    z = np.empty((len(u), 2, u.shape[1]))
    z1, z2 = (np.full(u.shape[1], start) for start in START)
    for step, push in enumerate(u):
        z1, z2 = z1 + dt * z1 * (A - B * z2), z2 + dt * (push - z2 * (C - D * z1))
        z[step] = z1, z2
    return z
