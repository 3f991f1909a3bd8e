"""The superposition of `kolmogorov_arnold` as tables, and the five layers that compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from holdfast.nn import AbstractRecurrent
from holdfast.nn._from_weights import diagonal_layer
from holdfast_papers.constructions.inner_function import decay_factors, inner_values, plateaus, weights
from holdfast_papers.constructions.network import ByChannel, Chain

Points = Float64[np.ndarray, "points length"]

_SATURATED = 20.0  # tanh is exactly 1 in float64 from here on
_INNER = 0.1  # share of the distance between steps of different copies that a step of phi takes
_OUTER = 0.5  # share of the distance between plateaus that a step of Phi takes


@dataclass(frozen=True, eq=False)
class Staircase:
    """sum_q Phi_q(sum_p lambda_p phi(x_p + q a)) with phi and Phi_q staircases of sigmoids.

    `phi` has the base^digits + 1 levels of phi, `xi` the plateaus in order, `outer[q]` the value of Phi_q on each.
    """

    length: int
    digits: int
    base: int
    phi: np.ndarray
    xi: np.ndarray
    outer: np.ndarray

    @classmethod
    def build(cls, f: Callable[[Points], np.ndarray], length: int, digits: int, base: int, count: int) -> Staircase:
        """Phi_q = f / count at the centre of each plateau's cell."""
        xi, order = plateaus(base, digits, length)
        steps = base**digits
        outer = np.empty((count, len(xi)))
        for q in range(count):
            # centres in x of the cells of x + q a, those outside of [0, 1] moved to its ends
            centres = np.clip((np.arange(steps + 1) + 0.5 - q / count) / steps, 0, 1)
            mesh = np.stack(np.meshgrid(*[centres] * length, indexing="ij"), axis=-1).reshape(-1, length)
            # the most significant coordinate of a cell is the last input
            outer[q] = f(np.ascontiguousarray(mesh[:, ::-1]))[order] / count
        return cls(length, digits, base, inner_values(base, digits, length), xi, outer)

    @property
    def count(self) -> int:
        """The number of terms, copies of the inputs."""
        return len(self.outer)

    @property
    def steps(self) -> int:
        """Steps of phi on [0, 1]."""
        return self.base**self.digits

    @property
    def shift(self) -> float:
        """a: how far one copy is shifted against the next."""
        return 1 / (self.steps * self.count)

    @property
    def _steepness(self) -> float:
        return 2 * _SATURATED / (_INNER * self.shift)

    def __call__(self, x: Points) -> np.ndarray:
        """The superposition by table look-up: equal to the network's last output to rounding."""
        lam = weights(self.base, self.digits, self.length)[::-1]
        middles, gaps = (self.xi[1:] + self.xi[:-1]) / 2, np.diff(self.xi)
        total = np.zeros(len(x))
        for q, values in enumerate(self.outer):
            y = self._inner(x + q * self.shift) @ lam
            j = np.clip(np.searchsorted(self.xi, y, side="right") - 1, 0, len(gaps) - 1)
            risen = (1 + np.tanh(2 * _SATURATED / (_OUTER * gaps[j]) * (y - middles[j]))) / 2
            total += values[j] + (values[j + 1] - values[j]) * risen
        return total

    def _inner(self, z: Points) -> Points:
        """phi: between two half-steps only the step in the middle is not saturated."""
        edge = np.clip(np.rint(z * self.steps).astype(int), 1, self.steps)
        risen = (1 + np.tanh(self._steepness * (z - edge / self.steps))) / 2
        return self.phi[edge - 1] + (self.phi[edge] - self.phi[edge - 1]) * risen

    def points_on_steps(self, count: int, generator: np.random.Generator) -> Points:
        """Points with most coordinates in the middle of a step of some copy, coarse steps as often as fine ones."""
        shape = (count, self.length)
        level = self.base ** generator.integers(0, self.digits, shape)
        edge = np.maximum(generator.integers(1, self.steps + 1, shape) // level, 1) * level
        copy = generator.integers(0, self.count, shape)
        # |argument of tanh| < 3: where a step is neither down nor up
        inside = generator.uniform(-3, 3, shape) / self._steepness
        on = edge / self.steps - copy * self.shift + inside
        return np.clip(np.where(generator.random(shape) < 0.9, on, generator.random(shape)), 0, 1)

    def network(self) -> Chain:
        """The five layers: phi (two), the convolution with lambda, Phi (two)."""
        constant = float(0.5 * (self.outer[:, 0] + self.outer[:, -1]).sum())
        return Chain(
            *self._inner_layers(),
            self._convolution_layer(),
            ByChannel(self._outer_layer(values) for values in self.outer),
            diagonal_layer([0.0], np.ones((1, self.count)), [[1.0]], b=[constant]),
        )

    def _inner_layers(self) -> tuple[AbstractRecurrent, AbstractRecurrent]:
        """phi(x + q a) for every copy: one sigmoid a step and copy, then the constants."""
        copies = np.arange(self.count)
        positions = (np.arange(1, self.steps + 1) / self.steps - copies[:, None] * self.shift).ravel()
        rises = np.diff(self.phi) / 2
        C = np.kron(np.eye(self.count), rises[None, :])
        U = np.full((len(positions), 1), self._steepness)
        first = diagonal_layer(np.zeros(len(positions)), U, C, b=-self._steepness * positions, activation="tanh")
        eye = np.eye(self.count)
        constant = np.full(self.count, self.phi[0] + rises.sum())
        return first, diagonal_layer(np.zeros(self.count), eye, eye, b=constant)

    def _convolution_layer(self) -> AbstractRecurrent:
        """lambda_1 x_T + lambda_2 x_{T-1} + ... for each copy: modes with factors g^-beta(r), and one without memory.

        The modes sum to R at lag 0, where lambda_1 = 1 is wanted: the mode with eigenvalue 0 takes R - 1 off.
        """
        factors = decay_factors(self.base, self.digits, self.length)
        modes = np.append(factors, 0.0)
        read = np.append(np.ones(len(factors)), 1.0 - len(factors))
        U = np.kron(np.eye(self.count), np.ones((len(modes), 1)))
        return diagonal_layer(np.tile(modes, self.count), U, np.kron(np.eye(self.count), read[None, :]))

    def _outer_layer(self, values: np.ndarray) -> AbstractRecurrent:
        """Phi_q without its constant: one sigmoid between neighbouring plateaus, as steep as their distance asks for."""
        gaps = np.diff(self.xi)
        steepness = 2 * _SATURATED / (_OUTER * gaps)
        middles = (self.xi[:-1] + self.xi[1:]) / 2
        rises = np.diff(values)[None, :] / 2
        return diagonal_layer(np.zeros(len(gaps)), steepness[:, None], rises, b=-steepness * middles, activation="tanh")
