"""Complex modes from equally spaced samples: the matrix pencil."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from jaxtyping import Complex128, Float64

from holdfast.approximate._problem import condition, pose
from holdfast.approximate._sums import ExponentialSum, SumStatus
from holdfast.approximate._target import Target
from holdfast.errors import ArgumentError

_SAMPLES = 1025  # of a law or a function; the pencil's singular value decomposition then takes 0.2 s
_MAX_SAMPLES = 4096  # the decomposition's time grows with the third power


def fit_matrix_pencil(target: Target, order: int, dt: float | None) -> ExponentialSum:
    """Modes z with rho(k dt) = sum_i c_i z_i^k: eigenvalues of the shift on the main subspace of the Hankel matrix.

    Hua and Sarkar's matrix pencil. Real samples give conjugate pairs. Modes that do not decay (|z| >= 1) are left out.
    An order above the Hankel matrix's numerical rank is cut to it: further modes would fit rounding errors.
    """
    time, values = _samples(target, dt)
    step = float(time[1] - time[0])
    modes, rank = sample_modes(values, order)
    # z = 0 has no rate, and |z| >= 1 no finite L1 norm
    decaying = modes[(np.abs(modes) < 1 - 1e-12) & (np.abs(modes) > 0)]
    notes: tuple[str, ...] = ()
    status: SumStatus = "ok"
    if rank < order:
        status = "reduced"
        notes += (f"the samples carry {rank} modes, not {order}: further ones would fit rounding errors",)
    if len(decaying) < len(modes):
        status = "reduced"
        notes += (f"{len(modes) - len(decaying)} modes that do not decay were left out",)
    if len(decaying) == 0:
        raise ArgumentError(
            "matrix_pencil found no decaying mode in the samples; check that they decay, or use method='nonnegative'"
        )
    # the principal logarithm: a frequency above pi / step cannot be distinguished from one below
    rates = -np.log(decaying) / step
    coefficients = mode_weights(decaying, time / step, values[:, None])[:, 0]
    # exact zeros only: eigenvalues of a real matrix are real or come in exact pairs
    if not np.abs(rates.imag).any():
        rates, coefficients = rates.real, coefficients.real
    number, _ = condition(pose(Target("samples", float(time[-1]), time=time, values=values), 1.0, 1.0), rates)
    return ExponentialSum(
        rates, coefficients, method="matrix_pencil", condition=number, rank=rank, status=status, notes=notes
    )


def _samples(target: Target, dt: float | None) -> tuple[np.ndarray, np.ndarray]:
    if target.sampled:
        assert target.time is not None and target.values is not None
        _ = target.step  # refuses unequal spacing
        if not 4 <= len(target.values) <= _MAX_SAMPLES:
            raise ArgumentError(
                f"matrix_pencil takes 4 to {_MAX_SAMPLES} samples (its cost grows with their third power), got "
                f"{len(target.values)}; use method='nonnegative', or keep fewer samples"
            )
        return target.time, target.values
    if not math.isfinite(target.end):
        raise ArgumentError("method='matrix_pencil' samples rho up to the horizon, got an infinite one; set horizon")
    # where nearly all of the kernel is: a kernel that ends soon would fall between two samples
    last = target.end if dt is not None else min(target.end, 4 * target.time_of(0.999))
    step = last / (_SAMPLES - 1) if dt is None else dt
    count = round(last / step) + 1
    if not 4 <= count <= _MAX_SAMPLES:
        raise ArgumentError(
            f"matrix_pencil takes 4 to {_MAX_SAMPLES} samples, got {count} from horizon / dt; change horizon or dt"
        )
    time = np.arange(count) * step
    return time, target(time)


def sample_modes(
    values: Float64[np.ndarray, " time"], order: int, *, tolerance: float = 1e-13
) -> tuple[Complex128[np.ndarray, " modes"], int]:
    """Modes of one row of samples, at most `order`, and the numerical rank of their Hankel matrix.

    Singular values below `tolerance` of the largest count as rounding.
    """
    basis, sizes = _kept_subspace(values.tobytes())
    rank = int((sizes > tolerance * sizes[0]).sum())
    return shift_modes(basis[:, : min(order, rank)]), rank


@lru_cache(maxsize=1)
def _kept_subspace(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The last decomposition is kept, 34 MB at most: fits of several orders to the same samples share it."""
    return main_subspace(np.frombuffer(content, dtype=np.float64)[:, None])


def main_subspace(
    signals: Float64[np.ndarray, "time signals"], *, longest: int = _MAX_SAMPLES
) -> tuple[Float64[np.ndarray, "window vectors"], Float64[np.ndarray, " vectors"]]:
    """Left singular vectors and values of the signals' Hankel matrices side by side; windows of half the length."""
    from scipy.linalg import hankel

    length = len(signals)
    # half the length makes the Hankel matrix square, which carries the most modes
    window = min(length // 2, longest)
    stacked = np.concatenate([hankel(s[:window], s[window - 1 :]) for s in signals.T], axis=1)
    U, sizes, _ = np.linalg.svd(stacked, full_matrices=False)
    return U, sizes


def shift_modes(basis: Float64[np.ndarray, "window vectors"]) -> Complex128[np.ndarray, " modes"]:
    """Eigenvalues of the shift by one step on a subspace of windows."""
    # rows of the window are times: leaving out the first or the last row shifts by one step
    shift, *_ = np.linalg.lstsq(basis[:-1], basis[1:], rcond=None)
    return _apart(np.linalg.eigvals(shift).astype(np.complex128))


def _apart(modes: np.ndarray) -> np.ndarray:
    """Modes that coincide, as of t e^{-t}, moved apart: a difference quotient in their rates makes the power of t.

    The distance eps^(1/(p+1)) for p equal modes balances the quotient's own error and rounding.
    """
    apart = modes.copy()
    free = np.abs(modes) > 0
    for i in range(len(modes)):
        if not free[i]:
            continue
        group = np.flatnonzero(free & (np.abs(modes - modes[i]) < 1e-5 * np.abs(modes[i])))
        free[group] = False
        if len(group) == 1:
            continue
        centre = np.log(modes[group].mean())
        distance = np.finfo(float).eps ** (1 / (len(group) + 1)) * abs(centre.real)
        apart[group] = np.exp(centre + distance * (np.arange(len(group)) - (len(group) - 1) / 2))
    return apart


def mode_weights(
    modes: Complex128[np.ndarray, " modes"],
    steps: Float64[np.ndarray, " time"],
    signals: Float64[np.ndarray, "time signals"],
) -> Complex128[np.ndarray, "modes signals"]:
    """Weights c with signals = Re sum_i c_i modes_i^steps in the least-squares sense, conjugate for conjugate modes."""
    powers = np.exp(np.multiply.outer(steps, np.log(modes)))
    # Re[c z^k] = Re c Re z^k - Im c Im z^k: real unknowns, so that the sum is real to rounding
    stacked = np.concatenate([powers.real, -powers.imag], axis=1)
    norms = np.linalg.norm(stacked, axis=0)
    norms = np.where(norms > 1e-12 * norms.max(), norms, np.inf)  # the imaginary part of a real mode
    solved, *_ = np.linalg.lstsq(stacked / norms, signals, rcond=1e-14)
    real, imaginary = np.split(solved / norms[:, None], 2)
    return real + 1j * imaginary
