"""Products of linear functionals as networks: exactly, or through powers made of sigmoids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast.nn import AbstractRecurrent
from holdfast.nn._from_weights import dense_layer, diagonal_layer
from holdfast_papers.constructions.network import Chain, Pointwise
from holdfast_papers.constructions.sigmoids import Sigmoids, sigmoids_for_power


def real_modes(modes: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Columns z^lag of real modes, Re and Im of z^lag for one of each pair of complex ones (in the layer's order)."""
    columns = []
    for z in modes:
        powers = np.power(complex(z), lags)
        columns += [powers.real] if z.imag == 0 else [powers.real, powers.imag]
    return np.stack(columns, axis=1)


@dataclass(frozen=True, eq=False)
class Factorised:
    """Weights of the linear functionals on the states: order 1 (m,), squares (m, R2) with signs, triples 3 of (m, R3)."""

    modes: np.ndarray
    linear: np.ndarray
    square: np.ndarray
    signs: np.ndarray
    triple: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def basis_size(self) -> int:
        """States of the linear layer."""
        return len(self.linear)

    def linear_layer(self, read: np.ndarray) -> AbstractRecurrent:
        """One input, states z^tau, outputs `read` (outputs, states): diagonal for real modes, else with 2 x 2 blocks."""
        if not self.modes.imag.any():
            return diagonal_layer(self.modes.real, np.ones((len(self.modes), 1)), read)
        size = self.basis_size
        W, U = np.zeros((size, size)), np.zeros((size, 1))
        at = 0
        for z in self.modes:
            if z.imag == 0:
                W[at, at], U[at] = z.real, 1
                at += 1
            else:
                W[at : at + 2, at : at + 2], U[at] = [[z.real, -z.imag], [z.imag, z.real]], 1
                at += 2
        return dense_layer(W, U, read)

    def exact_network(self, constant: float) -> Chain:
        """The linear layer, then products."""
        read = np.concatenate([self.linear[:, None], self.square, *self.triple], axis=1).T
        rank = self.triple[0].shape[1]
        return Chain(self.linear_layer(read), Pointwise(Products(constant, self.signs, rank)))

    def sigmoid_network(self, constant: float, amplitude: float, length: int, budget: float) -> tuple[Chain, float]:
        """The linear layer, then powers of each functional by sigmoids; and a bound on what that adds to the error."""
        states = real_modes(self.modes, np.arange(length))
        a, b, c = _balanced(states, self.triple)
        # 24 a b c = (a+b+c)^3 - (a+b-c)^3 - (a-b+c)^3 - (-a+b+c)^3
        cubes = np.concatenate([a + b + c, a + b - c, a - b + c, b + c - a], axis=1)
        rank = a.shape[1]
        read = np.concatenate([self.linear[:, None], self.square, cubes], axis=1)
        powers = np.array([1] + [2] * self.square.shape[1] + [3] * 4 * rank)
        scales = np.concatenate([[1.0], self.signs, np.ones(rank) / 24, -np.ones(3 * rank) / 24])
        # |functional| <= amplitude * sum over lags; each is brought to [-1, 1] first
        ranges = amplitude * np.abs(states @ read).sum(axis=0)
        ranges = np.where(ranges > 0, ranges, 1)
        sizes = np.abs(scales) * ranges**powers
        each = budget / max(float(sizes.sum()), 1e-300)
        fits = {int(p): sigmoids_for_power(int(p), each) for p in np.unique(powers)}
        made = _power_layers(powers, scales * ranges**powers, {p: fit for p, (fit, _) in fits.items()}, constant)
        network = Chain(self.linear_layer((read / ranges).T), *made)
        return network, float(sum(size * fits[int(p)][1] for size, p in zip(sizes, powers, strict=True)))


def _balanced(
    states: np.ndarray, triple: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same products from factors of equal size: a large and a small one would be lost in cubes of their sum."""
    sizes = np.stack([np.abs(states @ part).sum(axis=0) for part in triple])
    sizes = np.where(sizes > 0, sizes, 1)
    mean = sizes.prod(axis=0) ** (1 / 3)
    a, b, c = (part * (mean / size) for part, size in zip(triple, sizes, strict=True))
    return a, b, c


def _power_layers(
    powers: np.ndarray, scales: np.ndarray, fits: dict[int, Sigmoids], constant: float
) -> tuple[AbstractRecurrent, AbstractRecurrent]:
    """sum_j scales_j u_j^powers_j + constant of channels in [-1, 1]: one layer of sigmoids, one that adds the constant."""
    U, b, C = [], [], []
    for channel, (power, scale) in enumerate(zip(powers, scales, strict=True)):
        fit = fits[int(power)]
        block = np.zeros((len(fit.positions), len(powers)))
        block[:, channel] = fit.steepness
        U.append(block)
        b.append(-fit.steepness * fit.positions)
        C.append(scale * fit.weights)
        constant += scale * fit.constant
    width = sum(len(part) for part in b)
    first = diagonal_layer(
        np.zeros(width), np.concatenate(U), np.concatenate(C)[None, :], b=np.concatenate(b), activation="tanh"
    )
    return first, diagonal_layer([0.0], [[1.0]], [[1.0]], b=[constant])


class Products(nn.Module):
    """constant + u_0 + sum_r signs_r u_r^2 + sum_r a_r b_r c_r of channels [u_0, squares, a, b, c]."""

    def __init__(self, constant: float, signs: np.ndarray, triples: int) -> None:
        super().__init__()
        self.triples = triples
        self.constant = nn.Parameter(torch.tensor(constant, dtype=torch.float64))
        self.signs = nn.Parameter(torch.as_tensor(signs, dtype=torch.float64))

    def forward(self, u: Float[Tensor, "*any channels"]) -> Float[Tensor, "*any 1"]:
        """The value at each position, as one channel."""
        linear, square, a, b, c = u.split([1, len(self.signs), *[self.triples] * 3], dim=-1)
        total = self.constant + linear.squeeze(-1) + (self.signs * square**2).sum(-1) + (a * b * c).sum(-1)
        return total.unsqueeze(-1)
