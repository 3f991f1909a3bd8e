"""Eigenvalues for remembering: a random ring, the roots of unity, and the one that counts steps."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Complex128
from torch import Tensor

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError
from holdfast.nn._lru import ring


@checked
def ring_eigenvalues(
    size: int, r_min: float, r_max: float = 1.0, *, seed: int | torch.Generator = 0
) -> Complex128[Tensor, " size"]:
    """Random eigenvalues, uniform in area on the ring r_min <= |lam| <= r_max (linrec, Lemma 6).

    torch's global random state is left as it was.

    Args:
        size: how many.
        r_min: smallest modulus.
        r_max: largest modulus, at most 1.
        seed: number or torch.Generator.
    """
    positive(size=size)
    if not 0 <= r_min <= r_max <= 1:
        raise ArgumentError(f"expected 0 <= r_min <= r_max <= 1, got r_min={r_min!r}, r_max={r_max!r}")
    start = seed if isinstance(seed, int) else int(torch.randint(2**62, (1,), generator=seed))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(start)
        return ring(size, r_min, r_max)


@checked
def roots_of_unity(size: int) -> Complex128[Tensor, " size"]:
    """The N-th roots of unity e^{2 pi i k / N}: the Vandermonde matrix has condition number 1 for N >= length.

    With N < length inputs N steps apart meet the same power: only their sum can be known.

    Args:
        size: N.
    """
    positive(size=size)
    k = np.arange(size // 2 + 1)
    # by quadrant, so that 1, i and -1 are exact
    turn = 2 * np.pi * ((4 * k) % size) / (4 * size)
    upper = (np.cos(turn) + 1j * np.sin(turn)) * np.array([1, 1j, -1])[(4 * k) // size]
    # the lower half as conjugates, equal to the last digit
    return torch.from_numpy(np.concatenate([upper, upper[1 : size - size // 2].conj()[::-1]]))


@checked
def counting_eigenvalue(longest: int) -> float:
    """A real eigenvalue in (0, 1) whose state still counts after many steps: 1 - 1/longest, so that lam^k >= 1/4.

    Args:
        longest: largest number of steps k to be counted.
    """
    if longest < 1:
        raise ArgumentError(f"longest must be at least 1, got {longest!r}")
    return 1 - 1 / max(longest, 2)


def as_eigenvalues(given: object, *, dims: tuple[int, ...] = (1, 2)) -> np.ndarray:
    """Eigenvalues as complex128 numpy: finite, on or inside the unit circle, (N,) or one row for each input dimension."""
    plain = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
    array = np.asarray(plain).astype(np.complex128)
    if array.ndim not in dims or array.size == 0:
        raise ArgumentError(f"eigenvalues must have shape (N,) or (dimensions, N), got {array.shape}")
    size = np.abs(array)
    if not np.isfinite(size).all() or size.max() > 1 + 1e-12:
        raise ArgumentError(
            f"eigenvalues must be on or inside the unit circle, or their powers overflow; got a largest modulus of "
            f"{size.max():.6g}"
        )
    return array


def modulus_and_angle(lam: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log |lam| and the angle, in the longest float there is: 64 bits of mantissa on x86, which the powers need."""
    re, im = lam.real.astype(np.longdouble), lam.imag.astype(np.longdouble)
    square = re * re + im * im
    with np.errstate(divide="ignore"):
        return np.log(square) / 2, np.arctan2(im, re)
