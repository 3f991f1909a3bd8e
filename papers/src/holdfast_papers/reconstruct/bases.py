"""Bases in which inputs are sparse: Haar, Fourier, and one learned from examples."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from holdfast._arguments import checked
from holdfast.errors import ArgumentError


@checked
def haar_basis(length: int, size: int | None = None) -> Float64[Tensor, "length size"]:
    """The coarsest Haar wavelets as orthonormal columns: the constant, then scale by scale, left to right.

    Args:
        length: number of times, a power of 2.
        size: number of wavelets; None is all of them.
    """
    if length < 1 or length & (length - 1):
        raise ArgumentError(f"haar_basis: length must be a power of 2, got {length}")
    count = _count(length, size)
    basis = np.zeros((length, count))
    basis[:, 0] = length**-0.5
    for column in range(1, count):
        scale = column.bit_length() - 1
        width = length >> scale
        start = (column - (1 << scale)) * width
        height = width**-0.5
        basis[start : start + width // 2, column] = height
        basis[start + width // 2 : start + width, column] = -height
    return torch.from_numpy(basis)


@checked
def fourier_basis(length: int, size: int | None = None) -> Float64[Tensor, "length size"]:
    """The slowest real Fourier functions as orthonormal columns: 1, cos, sin, cos 2, sin 2, ...

    Args:
        length: number of times.
        size: number of functions; None is all of them.
    """
    if length < 1:
        raise ArgumentError(f"length must be at least 1, got {length}")
    count = _count(length, size)
    t = 2 * np.pi * np.arange(length) / length
    basis = np.empty((length, count))
    for column in range(count):
        frequency = (column + 1) // 2
        wave = np.cos(frequency * t) if column % 2 else np.sin(frequency * t)
        basis[:, column] = np.ones(length) if column == 0 else wave
    return torch.from_numpy(basis / np.linalg.norm(basis, axis=0))


@checked
def learned_basis(
    examples: Float[Tensor, "examples length"], size: int
) -> tuple[Float64[Tensor, "length size"], float]:
    """The orthonormal columns that hold most of the examples (singular vectors), and the share that they miss.

    The share is sqrt(sum |u - Psi Psi' u|^2 / sum |u|^2) over the examples; 0 where they are exactly sparse.

    Args:
        examples: one sequence in each row (examples, length).
        size: number of columns.
    """
    if examples.numel() == 0 or not bool(torch.isfinite(examples).all()):
        raise ArgumentError(
            f"examples must be one or more finite numbers, got shape {tuple(examples.shape)}, empty or with NaN or infinity"
        )
    if not 1 <= size <= min(examples.shape):
        raise ArgumentError(f"size must be 1 to {min(examples.shape)} for examples {tuple(examples.shape)}, got {size}")
    _, sizes, Vh = torch.linalg.svd(examples.double(), full_matrices=False)
    missed = float((sizes[size:] ** 2).sum().sqrt() / (sizes**2).sum().sqrt())
    return Vh[:size].mT.contiguous(), missed


def _count(length: int, size: int | None) -> int:
    count = length if size is None else size
    if not 1 <= count <= length:
        raise ArgumentError(f"size must be 1 to {length} functions for length {length}, got {size}")
    return count
