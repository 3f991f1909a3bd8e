"""Decoder: a state back to its inputs, by one factorization and then one product for each batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Complex, Float64
from torch import Tensor

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, ShapeError, unknown_name

Form = Literal["complex", "real"]
FORMS = ("complex", "real")
_ROWS = 2048
DecoderStatus = Literal["ok", "rank deficient", "regularised"]


@dataclass(frozen=True, eq=False)
class Decoder:
    """A state back to its inputs: u = Re[matrix x], or matrix [Re x; Im x] in the stacked real form.

    Args:
        matrix: the pseudo-inverse of the encoding.
        form: "complex" or "real".
        singular_values: those of the encoding (V, V Psi, or their stacked real form), largest first.
        unknowns: number of inputs, or of coefficients, that are rebuilt.
        rank: number of singular values above the cut.
        status: "ok", "regularised", or "rank deficient": the inputs are not determined by the state alone, and the
            smallest ones that fit are given.
    """

    matrix: Tensor
    form: Form
    singular_values: Float64[Tensor, " values"]
    unknowns: int
    rank: int
    status: DecoderStatus = "ok"

    @property
    def condition(self) -> float:
        """Condition number of V^H V, the square of the encoding's own (linrec, Fig. 4 and 6).

        inf where V has not full column rank, as with fewer equations than unknowns.
        """
        sizes = self.singular_values
        if len(sizes) < self.unknowns or float(sizes[-1]) == 0:
            return math.inf
        ratio = float(sizes[0] / sizes[-1])
        return ratio * ratio  # a product overflows to inf, where ** raises

    def __call__(self, states: Complex[Tensor, "*batch state"]) -> Float64[Tensor, "*batch unknowns"]:
        """The unknowns of each state: one matrix product for a whole batch."""
        state_size = self.matrix.shape[1] // (2 if self.form == "real" else 1)
        if states.ndim == 0 or states.shape[-1] != state_size:
            raise ShapeError(
                f"states must have {state_size} numbers, one for each of the eigenvalues, got {tuple(states.shape)}"
            )
        if not bool(torch.isfinite(states).all()):
            raise ArgumentError(
                "states must be finite, got NaN or infinity, so the recurrence diverged; use eigenvalues inside the unit circle"
            )
        flat = states.reshape(-1, states.shape[-1])
        out = torch.empty(len(flat), self.unknowns, dtype=torch.float64)
        # rows in parts: the copies of real and imaginary parts stay below 50 MB whatever the batch
        for part, target in zip(flat.split(_ROWS), out.split(_ROWS), strict=True):
            self._solve(part.to(torch.complex128), target)
        return out.reshape(*states.shape[:-1], self.unknowns)

    def _solve(self, x: Tensor, out: Tensor) -> None:
        if self.form == "real":
            torch.mm(torch.cat([x.real, x.imag], dim=-1), self.matrix.mT, out=out)
            return
        # Re[M x] needs two real products, not a complex one
        torch.mm(x.real, self.matrix.real.mT, out=out)
        out.addmm_(x.imag, self.matrix.imag.mT, alpha=-1)


@checked
def make_decoder(
    encoding: Complex[Tensor, "state unknowns"], *, form: Form, cut: float | None, ridge: float
) -> Decoder:
    """The (regularized) pseudo-inverse of an encoding matrix.

    Args:
        encoding: maps unknowns to states (state, unknowns).
        form: "complex": its pseudo-inverse in complex128, of which the real part of the result is taken. "real": least
            squares on [Re V; Im V] u = [Re x; Im x], which knows that u is real and so needs about half the modes.
        cut: singular values below this share of the largest count as 0; None is rounding.
        ridge: mu of the filter s -> s / (s^2 + mu^2 s_max^2) on singular values (Tikhonov); 0 is none.
    """
    if form not in FORMS:
        raise unknown_name("form", form, FORMS)
    if not ridge >= 0 or (cut is not None and not 0 <= cut < 1):
        raise ArgumentError(f"expected ridge >= 0 and 0 <= cut < 1, got ridge={ridge!r}, cut={cut!r}")
    matrix = encoding if form == "complex" else torch.cat([encoding.real, encoding.imag])
    U, sizes, Vh = torch.linalg.svd(matrix, full_matrices=False)
    if float(sizes[0]) == 0:
        raise ArgumentError("the encoding must not be zero, got zeros only: no input reaches the state")
    least = max(matrix.shape) * torch.finfo(torch.float64).eps if cut is None else cut
    keep = sizes > least * sizes[0]
    rank = int(keep.sum())
    mu = ridge * sizes[0]
    gains = torch.where(keep, sizes / (sizes**2 + mu**2), torch.zeros_like(sizes))
    inverse = (Vh.mH * gains) @ U.mH
    status: DecoderStatus = "regularised" if ridge > 0 else "ok" if rank == matrix.shape[1] else "rank deficient"
    return Decoder(inverse, form, sizes, matrix.shape[1], rank, status)
