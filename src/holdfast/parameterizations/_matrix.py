"""Dense recurrent matrices that stay stable wherever their free weights go ("Inverse Approximation Theory", eq. 16).

A form computes in float64, bounds the conditioning of what it builds and keeps a margin of the size of the rounding to
the dtype of its weights: W as it is stored is stable for every finite free weight, 3e38 in float32 included. Each class
is used through `torch.nn.utils.parametrize.register_parametrization(module, "weight", Hurwitz())`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import DtypeError, RangeError, ShapeError
from holdfast.parameterizations._base import Named
from holdfast.parameterizations._passes import once_in_a_pass

MAX_ENTRY = 1e100  # entries of free weights in float64: their squares can still be added up
PROJECTION_SHARES = (0.99, 0.9, 0.7, 0.5, 0.3, 0.1, 0.01, 0.0)  # of the largest W on a ray that a projection tries


class AbstractMatrixParameterization(Named, ABC):
    """A map from free weights to a stable square matrix W, and back from a given W to free weights that make it.

    A final class gives `_matrix`, `_take_over` and `_nearer`. Use it through
    `torch.nn.utils.parametrize.register_parametrization(module, "weight", Hurwitz())`.
    """

    @abstractmethod
    def _matrix(self, info: torch.finfo, *free: Tensor) -> Tensor:
        """W of float64 weights, with the margin that its rounding to the dtype of `info` needs."""

    @abstractmethod
    def _take_over(self, info: torch.finfo, W: Float[Tensor, "n n"]) -> tuple[Tensor, ...]:
        """Free weights in float64 whose matrix is W; RangeError where there are none."""

    @abstractmethod
    def _nearer(self, W: Float[Tensor, "n n"]) -> Iterator[Tensor]:
        """Matrices ever deeper in the set that the form holds, beginning near W."""

    def forward(self, *free: Tensor) -> Float[Tensor, "n n"]:
        """W of the free weights, in their dtype; NaN where one of them is."""
        first = free[0]
        return first if first.shape[-1] == 0 else once_in_a_pass(self, free, self._rounded)

    def _rounded(self, *free: Tensor) -> Tensor:
        first = free[0]
        wide = [torch.nan_to_num(w.double(), 0.0, MAX_ENTRY, -MAX_ENTRY).clamp(-MAX_ENTRY, MAX_ENTRY) for w in free]
        lost = torch.stack([w.isnan().any() for w in free]).any()
        return self._matrix(torch.finfo(first.dtype), *wide).to(first.dtype).masked_fill(lost, math.nan)

    def right_inverse(self, W: Float[Tensor, "n n"]) -> tuple[Tensor, ...]:
        """Free weights whose matrix is W; refuses a W that the form cannot hold."""
        check_stable(W, self.time)
        return self._checked(W)

    def project(self, W: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        """W itself where `right_inverse` takes it, else W scaled (in continuous time shifted) until it does."""
        check_square(W)
        try:
            self.right_inverse(W)
            return W.detach()
        except RangeError as error:
            refused = error
        # from the nearest on: the first that is taken changes W least
        for candidate in self._nearer(W.detach().double().cpu()):
            try:
                self.right_inverse(candidate.to(W))
                return candidate.to(W)
            except RangeError:
                continue
        raise refused

    def _checked(self, W: Tensor) -> tuple[Tensor, ...]:
        if len(W) == 0:
            return self._empty(W)
        info = torch.finfo(W.dtype)
        wide = self._take_over(info, W.detach().double().cpu())
        free = tuple(weight.to(W).contiguous() for weight in wide)
        # the way there and back, as it will run: an ill-conditioned W is refused by what it would become
        error = float((self(*free).detach().double() - W.detach().double()).norm())
        size = float(W.detach().double().norm())
        if not error <= math.sqrt(info.eps) * size:
            raise self._refusal(f"its conditioning changes it by {error / max(size, 1e-300):.2g} in {W.dtype}")
        return free

    def _empty(self, W: Tensor) -> tuple[Tensor, ...]:
        return tuple(weight.to(W) for weight in self._take_over(torch.finfo(W.dtype), W.detach().double().cpu()))

    def _refusal(self, reason: str) -> RangeError:
        return RangeError(
            f"W cannot be represented unchanged in the {self.key} form: {reason}; stabilize(..., allow_change=True), or "
            "project(W), moves it to a near matrix and reports the distance",
            names_allow_change=True,
        )


@checked
def spectral_margin(W: Float[Tensor, "n n"], time: Time) -> float:
    """Distance of the spectrum of W to the stability boundary: -max Re lam, or 1 - max |lam|; negative beyond it.

    Args:
        W: a square matrix.
        time: "continuous" or "discrete".

    Returns:
        the margin: per unit of time in continuous time, per step in discrete time; inf for a matrix of size 0.

    Raises:
        ShapeError: a W that is not square.
        DtypeError: a complex W.
        RangeError: a W with NaN or infinity.
        UnknownNameError: an unknown time.

    Example:
        >>> import torch
        >>> from holdfast import parameterizations
        >>> W = torch.diag(torch.tensor([-0.25, -2.0]))
        >>> parameterizations.spectral_margin(W, "continuous"), parameterizations.spectral_margin(W, "discrete")
        (0.25, -1.0)
    """
    check_square(W)
    if W.shape[-1] == 0:
        return float("inf")
    eigenvalues = torch.linalg.eigvals(W.detach().double())
    return float(-eigenvalues.real.max()) if time == "continuous" else float(1 - eigenvalues.abs().max())


def check_square(W: Tensor) -> None:
    """Raises for anything that is not a finite real square matrix."""
    if not isinstance(W, Tensor) or not W.is_floating_point():
        got = W.dtype if isinstance(W, Tensor) else type(W).__name__
        raise DtypeError(f"W must be a real floating-point tensor, got {got}")
    if W.ndim != 2 or W.shape[0] != W.shape[1]:
        raise ShapeError(f"W must be a square matrix (n, n), got shape {tuple(W.shape)}")
    if not bool(torch.isfinite(W).all()):
        raise RangeError(f"W must be finite, got {int((~torch.isfinite(W)).sum())} of {W.numel()} entries that are not")


def check_stable(W: Tensor, time: Time) -> None:
    """Raises for anything that is not a stable real square matrix."""
    check_square(W)
    if spectral_margin(W, time) > 0:
        return
    eigenvalues = torch.linalg.eigvals(W.detach().double())
    part = eigenvalues.real if time == "continuous" else eigenvalues.abs()
    bad = part[part >= (0 if time == "continuous" else 1)].sort(descending=True).values
    what = "real part < 0" if time == "continuous" else "modulus < 1"
    raise RangeError(
        f"W must be stable (every eigenvalue with {what}), got {len(bad)} of {len(part)} eigenvalues outside: "
        f"{', '.join(f'{v:.6g}' for v in bad[:8].tolist())}; stabilize(..., allow_change=True), or project(W), moves W into "
        "the stable region and reports the distance",
        names_allow_change=True,
    )
