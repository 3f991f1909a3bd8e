"""Inputs rebuilt from a hidden state: all of them, those sparse in a basis, and the number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float, Float64, Int64
from torch import Tensor

from holdfast._arguments import checked
from holdfast._readers import describe
from holdfast.errors import ArgumentError, RangeError, ShapeError
from holdfast_papers.reconstruct.bases import fourier_basis, haar_basis
from holdfast_papers.reconstruct.decoder import Decoder, Form, make_decoder
from holdfast_papers.reconstruct.eigenvalues import as_eigenvalues
from holdfast_papers.reconstruct.operator import vandermonde


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Inputs rebuilt from states.

    Args:
        values: the inputs (*batch, time), or (*batch, time, dimensions) for the block form.
        rank: numerical rank of the encoding; with several blocks the smallest.
        unknowns: the rank that is needed.
        condition: condition number of V^H V (or Omega^H Omega); with several blocks the largest.
        status: "ok", "rank deficient" or "regularised".
        coefficients: those of the basis, where one was given.
    """

    values: Float64[Tensor, "*any"]
    rank: int
    unknowns: int
    condition: float
    status: str
    coefficients: Float64[Tensor, "*batch functions"] | None = None

    def error(self, true: Float[Tensor, "*any"]) -> float:
        """Relative error |values - true| / |true| over everything.

        Args:
            true: the true inputs, shaped like `values`.
        """
        self._check(true)
        return float((self.values - true).norm() / true.double().norm())

    def error_by_time(self, true: Float[Tensor, "*any"], *, dimensions: bool = False) -> Float64[Tensor, " time"]:
        """Root mean square error at each time, over the batch (and the dimensions of the block form).

        Args:
            true: the true inputs, shaped like `values`.
            dimensions: whether the last axis of `values` holds dimensions, as in the block form.
        """
        self._check(true)
        square = (self.values - true) ** 2
        if dimensions:
            square = square.mean(-1)
        return square.reshape(-1, square.shape[-1]).mean(0).sqrt()

    def _check(self, true: Tensor) -> None:
        if true.shape != self.values.shape:
            raise ShapeError(f"expected the true inputs in shape {tuple(self.values.shape)}, got {tuple(true.shape)}")


@checked
def decoder(
    eigenvalues: Complex[Tensor, " modes"],
    length: int,
    *,
    basis: Float[Tensor, "length functions"] | None = None,
    form: Form = "complex",
    cut: float | None = None,
    ridge: float = 0.0,
) -> Decoder:
    """Factorizes once the map from inputs (or coefficients of a basis) to the state; the result decodes many states.

    Args:
        eigenvalues: of the recurrence (modes,).
        length: number of inputs.
        basis: columns Psi in which inputs are sparse (length, functions); None rebuilds the inputs themselves.
        form: "complex" or "real", as in `make_decoder`.
        cut: as in `make_decoder`.
        ridge: as in `make_decoder`.
    """
    V = vandermonde(eigenvalues, length)
    if basis is None:
        return make_decoder(V, form=form, cut=cut, ridge=ridge)
    if basis.ndim != 2 or len(basis) != V.shape[1]:
        raise ShapeError(f"expected a basis of shape ({V.shape[1]}, functions), got {tuple(basis.shape)}")
    psi = basis.double()
    omega = torch.complex(V.real @ psi, V.imag @ psi)
    return make_decoder(omega, form=form, cut=cut, ridge=ridge)


@checked
def inputs(
    states: Complex[Tensor, "*batch state"],
    eigenvalues: Complex[Tensor, "*dimensions modes"],
    length: int,
    *,
    form: Form = "complex",
    cut: float | None = None,
    ridge: float = 0.0,
) -> Reconstruction:
    """All inputs from the last state: u_{1:k} = V_k^+ x_k (linrec, eq. 5), k = `length`.

    One factorization for each block and one product, whatever the batch. `timestamp` gives k where it is not known.

    Args:
        states: the states (*batch, modes), or (*batch, M R) in the block form.
        eigenvalues: of the recurrence (modes,), or (M, R) for the block form of Prop. 7, which gives (*batch, length,
            M), block by block.
        length: number of inputs.
        form: "complex" (literal pseudo-inverse, real part) or "real" (stacked real least squares).
        cut: as in `make_decoder`.
        ridge: as in `make_decoder`.
    """
    lam = as_eigenvalues(eigenvalues)
    if lam.ndim == 1:
        solve = decoder(eigenvalues, length, form=form, cut=cut, ridge=ridge)
        return Reconstruction(solve(states), solve.rank, solve.unknowns, solve.condition, solve.status)
    dimensions, modes = lam.shape
    if states.shape[-1] != lam.size:
        raise ShapeError(
            f"eigenvalues {lam.shape} need states of {dimensions} blocks of {modes}, {lam.size} in all, "
            f"got {tuple(states.shape)}"
        )
    parts = []
    for j, block in enumerate(states.split(modes, dim=-1)):
        row = torch.from_numpy(lam[j])
        parts.append(inputs(block, row, length, form=form, cut=cut, ridge=ridge))
    worst = min(parts, key=lambda part: part.rank)
    condition = max(part.condition for part in parts)
    values = torch.stack([part.values for part in parts], dim=-1)
    return Reconstruction(values, worst.rank, worst.unknowns, condition, worst.status)


@checked
def sparse_inputs(
    states: Complex[Tensor, "*batch state"],
    eigenvalues: Complex[Tensor, "*dimensions modes"],
    basis: str | Float[Tensor, "length functions"] | Float[Tensor, "dimensions length functions"],
    *,
    length: int | None = None,
    functions: int | None = None,
    form: Form = "complex",
    cut: float | None = None,
    ridge: float = 0.0,
) -> Reconstruction:
    """Inputs that are sparse in a basis Psi, from the last state.

    alpha = Omega^+ x with Omega = V Psi, then u = Psi alpha (linrec, eq. 6 and 22). Full column rank needs as many
    modes as functions: N - 1 >= P with the counting state, M R >= P (the real form: half of them); else the status says
    "rank deficient".

    Args:
        states: the states (*batch, modes), or (*batch, M R) in the block form.
        eigenvalues: of the recurrence (modes,), or (M, R) for the block form (Prop. 7, eq. 11).
        basis: "haar" or "fourier" with `length` and `functions`, or a matrix Psi (length, P); in the block form (M,
            length, P), one coefficient acting on all dimensions.
        length: number of inputs, for a basis by name.
        functions: number P of its functions, for a basis by name.
        form: "complex" or "real", as in `make_decoder`.
        cut: as in `make_decoder`.
        ridge: as in `make_decoder`.
    """
    lam = as_eigenvalues(eigenvalues)
    psi = _read_basis(basis, length, functions, lam.ndim)
    if lam.ndim == 1:
        solve = decoder(eigenvalues, len(psi), basis=psi, form=form, cut=cut, ridge=ridge)
    else:
        solve = _block_decoder(lam.shape, psi, eigenvalues, form, cut, ridge)
    alpha = solve(states)
    values = alpha @ psi.mT if lam.ndim == 1 else torch.einsum("mtp,...p->...tm", psi, alpha)
    return Reconstruction(values, solve.rank, solve.unknowns, solve.condition, solve.status, alpha)


def _read_basis(basis: str | Tensor, length: int | None, functions: int | None, dims: int) -> Tensor:
    if isinstance(basis, Tensor):
        if length is not None or functions is not None:
            raise ArgumentError("length and functions are for a basis given by name, got a matrix; leave them out")
        if basis.ndim != dims + 1:
            wanted = "(length, functions)" if dims == 1 else "(dimensions, length, functions)"
            raise ShapeError(f"expected a basis of shape {wanted} for these eigenvalues, got {tuple(basis.shape)}")
        return basis.double()
    if basis not in ("haar", "fourier"):
        raise ArgumentError(f"basis must be 'haar', 'fourier' or a matrix, got {basis!r}")
    if length is None or functions is None:
        raise ArgumentError(f"basis={basis!r} needs length and functions, got {length=}, {functions=}")
    if dims != 1:
        raise ArgumentError(
            f"basis must be of shape (dimensions, length, functions) for the block form, got the name {basis!r}"
        )
    return haar_basis(length, functions) if basis == "haar" else fourier_basis(length, functions)


def _block_decoder(
    shape: tuple[int, ...], psi: Tensor, eigenvalues: Tensor, form: Form, cut: float | None, ridge: float
) -> Decoder:
    """Omega is V_j Psi_j one under another: the block-diagonal V never needs to be formed."""
    if psi.shape[0] != shape[0]:
        raise ShapeError(f"expected a basis for {shape[0]} dimensions, got {tuple(psi.shape)}")
    omegas = []
    for j in range(shape[0]):
        V = vandermonde(eigenvalues[j], psi.shape[1])
        omegas.append(torch.complex(V.real @ psi[j], V.imag @ psi[j]))
    return make_decoder(torch.cat(omegas), form=form, cut=cut, ridge=ridge)


@checked
def interpolated(maps: Callable[[int], Tensor], time: float) -> Tensor:
    """(n + 1 - t) T_n + (t - n) T_(n+1) with n = floor t: a continuous extension of maps that are known at whole times.

    linrec, Lemma 8 and eq. 26, for the outputs T_k of a sequence-to-sequence map, and eq. 31, for the pseudo-inverses of the
    reconstruction. Both are printed with the two weights exchanged, and with ceil t instead of n + 1, which makes both
    weights 0 at whole t. At a whole t only T_t is asked for.

    Args:
        maps: gives T_n for a whole number n.
        time: t, in steps, at least 0.
    """
    if not 0 <= time < 2**53:
        raise ArgumentError(
            f"time must be from 0 to 2^53, the range in which floats represent every whole number, got {time!r}"
        )
    before = math.floor(time)
    share = time - before
    first = _map_at(maps, before)
    return first if share == 0 else (1 - share) * first + share * _map_at(maps, before + 1)


def _map_at(maps: Callable[[int], Tensor], n: int) -> Tensor:
    try:
        value = maps(n)
    except Exception as error:
        raise ArgumentError(
            f"maps must return a tensor for a whole number, got an error for maps({n}): {error}"
        ) from error
    if not isinstance(value, Tensor):
        raise ArgumentError(f"maps must return a tensor for a whole number, got {describe(value)} for maps({n})")
    return value


@checked
def timestamp(
    state: Float[Tensor, "*batch"] | Complex[Tensor, "*batch"] | float | complex, eigenvalue: float | complex
) -> Int64[Tensor, "*batch"]:
    """k = log|x (lam - 1) + 1| / log|lam|, the number of steps that made the counting state x = sum_{i<k} lam^i.

    The counting state of linrec, Sec. 3.1, has input 1 at every step: B is (N+1) x 2. For a complex eigenvalue the paper's
    log_lam has many values, and the principal one is right only until lam^k has turned past pi; the moduli tell k all the
    same. The count is determined up to `longest_count(eigenvalue)` steps: further on the state is within its own rounding
    of 1/(1 - lam), many counts fit it, and it is refused, as is a state between two counts. With
    `counting_eigenvalue(longest)`, or any eigenvalue of that modulus, all counts up to `longest` = 10,000 are exact.

    Args:
        state: the counting state x, a number or (*batch,); its dtype says how it was rounded.
        eigenvalue: lam, 0 < |lam| < 1.
    """
    size = _counting_modulus(eigenvalue)
    turns = isinstance(state, complex) or (isinstance(state, Tensor) and state.is_complex())
    x = torch.as_tensor(state, dtype=torch.complex128 if turns else torch.float64, device="cpu")
    rest = 1 - x * (1 - eigenvalue)  # lam^k
    dtype = state.dtype if isinstance(state, Tensor) else torch.float64
    if not bool((rest.abs() >= _smallest_rest(eigenvalue, dtype)).all()):  # not for NaN either
        raise RangeError(
            f"a counting state is saturated at 1/(1 - lam) = {1 / (1 - eigenvalue):g}, where several counts are within its "
            f"rounding error; this eigenvalue counts to {longest_count(eigenvalue, dtype)} in {dtype}: use one nearer to 1, "
            "such as counting_eigenvalue(longest)"
        )
    k = torch.log(rest.abs()) / math.log(size)
    whole = k.round()
    off = float((k - whole).abs().max()) if k.numel() else 0.0
    if off > 0.25 or bool((whole < 0).any()):
        raise RangeError(
            f"state must count steps to within a quarter of one, got a count {off:.2f} steps off; "
            "check that the state was made with input 1 at every step and this eigenvalue, or use a higher precision"
        )
    return whole.long()


@checked
def longest_count(eigenvalue: float | complex, dtype: torch.dtype = torch.float64) -> int:
    """The largest number of steps that a counting state determines, whatever the rounding errors of its recurrence.

    x = lam x + 1 commits at most 4 u |x| a step (u: unit roundoff), so that lam^k = 1 - x (1 - lam) is known to
    delta = 4 u (1 + c / (1 - |lam|)), c = |1 - lam| max|x| <= min(|1 - lam| / (1 - |lam|), 2). The count is determined
    while delta is less than half a step, delta <= |lam|^k (1 - |lam|^(1/2)).

    Args:
        eigenvalue: lam, 0 < |lam| < 1.
        dtype: of the state.
    """
    size = _counting_modulus(eigenvalue)
    return max(0, math.floor(math.log(_smallest_rest(eigenvalue, dtype)) / math.log(size)))


def _counting_modulus(eigenvalue: float | complex) -> float:
    size = abs(eigenvalue)
    if not 0 < size < 1:
        raise RangeError(f"the counting eigenvalue must have a modulus in (0, 1), got {eigenvalue!r}")
    return size


def _smallest_rest(eigenvalue: float | complex, dtype: torch.dtype) -> float:
    """The smallest |lam^k| that tells k; the derivation is in `longest_count`."""
    size = abs(eigenvalue)
    roundoff = torch.finfo(dtype).eps / 2
    largest = min(abs(1 - eigenvalue) / (1 - size), 2.0)
    return 4 * roundoff * (1 + largest / (1 - size)) / (1 - math.sqrt(size))
