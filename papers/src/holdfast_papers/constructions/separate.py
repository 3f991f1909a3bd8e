"""Symmetric kernels of several variables as sums of products of functions of one variable."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
from jaxtyping import Float64

Matrix = Float64[np.ndarray, "n n"]
Cube = Float64[np.ndarray, "n n n"]
Factors = Float64[np.ndarray, "n rank"]

_SWEEPS = 300
_RESTARTS = 3


def symmetric(tensor: np.ndarray) -> np.ndarray:
    """The mean over all orders of the axes: the part of a kernel that a product of equal inputs sees."""
    axes = list(permutations(range(tensor.ndim)))
    return np.sum([tensor.transpose(order) for order in axes], axis=0) / len(axes)


def squares(
    core: Matrix, size: Callable[[Matrix], float], budget: float
) -> tuple[Factors, Float64[np.ndarray, " rank"]]:
    """core = sum_r signs_r v_r v_r' with as few terms as leave `size(rest) <= budget`: eigenvectors, largest first."""
    values, vectors = np.linalg.eigh(symmetric(core))
    order = np.argsort(-np.abs(values))
    values, vectors = values[order], vectors[:, order]
    factors = vectors * np.sqrt(np.abs(values))
    signs = np.where(values >= 0, 1.0, -1.0)
    for rank in range(len(values) + 1):
        if size(core - (factors[:, :rank] * signs[:rank]) @ factors[:, :rank].T) <= budget:
            break
    return factors[:, :rank], signs[:rank]


def triples(core: Cube, size: Callable[[Cube], float], budget: float) -> tuple[Factors, Factors, Factors]:
    """core = sum_r a_r b_r c_r with few terms and `size(rest) <= budget`.

    Alternating least squares (CP) of rank 1, 2, ...; where these stall, the eigenvectors of the slices, at most n^2
    terms, which always get there.
    """
    n = len(core)
    if size(core) <= budget:
        empty = np.zeros((n, 0))
        return empty, empty, empty
    for rank in range(1, min(2 * n, n * n) + 1):
        factors = _alternating(core, rank, size, budget)
        if factors is not None:
            return factors
    return _slices(core)


def product(a: Factors, b: Factors, c: Factors) -> Cube:
    """sum_r a_r b_r c_r, made symmetric."""
    return symmetric(np.einsum("ir,jr,kr->ijk", a, b, c))


def _alternating(
    core: Cube, rank: int, size: Callable[[Cube], float], budget: float
) -> tuple[Factors, Factors, Factors] | None:
    n = len(core)
    for seed in range(_RESTARTS):
        generator = np.random.default_rng(seed)
        parts = [generator.standard_normal((n, rank)) for _ in range(3)]
        before = np.inf
        for sweep in range(_SWEEPS):
            for axis in range(3):
                parts[axis] = _update(core, parts, axis)
            if sweep % 10 == 9:
                error = float(np.linalg.norm(core - np.einsum("ir,jr,kr->ijk", *parts)))
                if error > 0.999 * before or error < 1e-14 * np.linalg.norm(core):
                    break
                before = error
        if size(core - product(*parts)) <= budget:
            return parts[0], parts[1], parts[2]
    return None


def _update(core: Cube, parts: list[Factors], axis: int) -> Factors:
    """The least-squares factor of one axis, the other two held."""
    first, second = (part for index, part in enumerate(parts) if index != axis)
    unfolded = np.moveaxis(core, axis, 0).reshape(len(core), -1)
    design = np.einsum("jr,kr->jkr", first, second).reshape(-1, first.shape[1])
    solved, *_ = np.linalg.lstsq(design, unfolded.T, rcond=1e-10)
    return solved.T


def _slices(core: Cube) -> tuple[Factors, Factors, Factors]:
    n = len(core)
    a, b, c = [], [], []
    for i in range(n):
        values, vectors = np.linalg.eigh(core[i])
        for value, vector in zip(values, vectors.T, strict=True):
            a.append(np.eye(n)[i] * value)
            b.append(vector)
            c.append(vector)
    return np.array(a).T, np.array(b).T, np.array(c).T
