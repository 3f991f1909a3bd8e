"""The Vandermonde matrix that a linear recurrence is, and states made with it."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Complex, Complex128, Float
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError, ShapeError
from holdfast_papers.reconstruct.eigenvalues import as_eigenvalues, modulus_and_angle

_ENTRIES = 1 << 27  # 2 GB of complex numbers


@checked
def vandermonde(eigenvalues: Complex[Tensor, "*dimensions modes"], length: int) -> Complex128[Tensor, "rows columns"]:
    """V with x_k = V u_{1:k}: entries lam_i^{k-j}, column 1 the oldest input (linrec, eq. 4), (N, length).

    Eigenvalues (dimensions, R) give the block-diagonal form of Prop. 7, (dimensions R, dimensions length), inputs
    ordered as in eq. 10: all times of the first dimension, then of the second.

    Powers are exp(k log|lam|) (cos k angle, sin k angle) with the exponent in long double: accurate to 1e-15 up to
    k = 10,000 where long double has 64 bits of mantissa, and nothing overflows; powers below 1e-308 are 0.

    Args:
        eigenvalues: (modes,), or (dimensions, R) for the block form, on or inside the unit circle.
        length: number of inputs.
    """
    lam = as_eigenvalues(eigenvalues)
    positive(length=length)
    rows = lam.reshape(-1, lam.shape[-1])
    if rows.size * length * len(rows) > _ENTRIES:
        raise ArgumentError(
            f"expected a matrix of at most 2 GB, got more for {rows.size} modes over {length} steps; use fewer of either"
        )
    blocks = [torch.from_numpy(_powers(block, length)) for block in rows]
    return blocks[0] if lam.ndim == 1 else torch.block_diag(*blocks)


def _powers(lam: np.ndarray, length: int) -> np.ndarray:
    """lam^(length-1), ..., lam, 1 in rows: lam^(a block) lam^b, so that long doubles are few (they cost 0.5 us each)."""
    block = math.isqrt(length - 1) + 1
    log_size, angle = modulus_and_angle(lam)
    small = _some_powers(log_size, angle, np.arange(block))
    large = _some_powers(log_size, angle, block * np.arange(-(-length // block)))
    rows = (large[:, :, None] * small[:, None, :]).reshape(len(lam), -1)[:, :length]
    return rows[:, ::-1].copy()


def _some_powers(log_size: np.ndarray, angle: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    k = exponents.astype(np.longdouble)
    with np.errstate(invalid="ignore", under="ignore"):
        # 0^0 = 1: the product 0 * -inf is the only one that is not a number
        exponent = np.multiply.outer(log_size, k)
        size = np.exp(np.where(np.isnan(exponent), 0, exponent)).astype(np.float64)
    turn = np.multiply.outer(angle, k)
    return size * (np.cos(turn).astype(np.float64) + 1j * np.sin(turn).astype(np.float64))


@checked
def encode(
    inputs: Float[Tensor, "*any"],
    eigenvalues: Complex[Tensor, "*dimensions modes"],
) -> Complex128[Tensor, "*batch state"]:
    """The state after the last input: x_k = Lam x_{k-1} + B u_k from x = 0 (linrec, eq. 2), with B = 1 (eq. 15).

    Args:
        inputs: (*batch, time), or (*batch, time, M) for the block form.
        eigenvalues: (N,), which gives states (*batch, N), or (M, R), which gives (*batch, M R), the blocks one after
            another.
    """
    lam = as_eigenvalues(eigenvalues)
    if inputs.ndim == 0 or inputs.shape[-1] == 0:
        raise ShapeError(f"inputs must have shape (*batch, time) with at least one step, got {tuple(inputs.shape)}")
    if lam.ndim == 1:
        V = vandermonde(eigenvalues, inputs.shape[-1])
        u = inputs.double()  # two real products: half the work of a complex one
        return torch.complex(u @ V.real.mT, u @ V.imag.mT)
    if inputs.ndim < 2 or inputs.shape[-1] != len(lam):
        raise ShapeError(
            f"eigenvalues for {len(lam)} dimensions need inputs (*batch, time, {len(lam)}), got {tuple(inputs.shape)}"
        )
    parts = [encode(inputs[..., j], torch.from_numpy(block)) for j, block in enumerate(lam)]
    return torch.cat(parts, dim=-1)
