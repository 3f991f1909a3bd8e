"""Normal matrices W = Q g(M) Q': a scalar parameterization on the eigenvalues, Q kept orthogonal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from holdfast._types import Time
from holdfast.errors import ArgumentError, RangeError
from holdfast.parameterizations._base import AbstractParameterization
from holdfast.parameterizations._factors import EPS64, held, size_of
from holdfast.parameterizations._hurwitz import rate_limit
from holdfast.parameterizations._matrix import AbstractMatrixParameterization

MAX_TURN = 64.0  # |A - A'| at most: exp of it is orthogonal to 1e-13 in float64, and pi already reaches every rotation


class Normal(AbstractMatrixParameterization):
    """W = Q D Q', Q orthogonal, D of 1x1 and 2x2 blocks with eigenvalues f(w) +- i b (discrete: f(w) e^{+-i b}).

    Symmetric W are the case without 2x2 blocks. Free weights: an (n, n) matrix A (Q = Q0 exp(A - A')), one w for each
    real eigenvalue or pair, and one b for each pair. Q0, the number of pairs and the signs of real eigenvalues
    (discrete time) are taken from the W that was given and stay fixed. "Inverse Approximation Theory", eq. 16.

    Args:
        parameterization: f, a scalar parameterization, such as get("exp").
    """

    key = "normal"
    basis: Tensor
    signs: Tensor

    def __init__(self, parameterization: AbstractParameterization) -> None:
        super().__init__()
        if not isinstance(parameterization, AbstractParameterization):
            raise ArgumentError(
                f"Normal needs a scalar parameterization, such as get('exp'); got {type(parameterization).__name__}"
            )
        self.scalar = parameterization
        self.register_buffer("basis", torch.empty(0, 0))
        self.register_buffer("signs", torch.empty(0))

    @property
    def time(self) -> Time:  # type: ignore[override]
        """ "continuous" or "discrete", that of the scalar parameterization."""
        return self.scalar.time

    def _matrix(self, info: torch.finfo, *free: Tensor) -> Tensor:
        generator, w, angle = free
        turn = held(generator, MAX_TURN / 2)
        Q = self.basis.double() @ torch.linalg.matrix_exp(turn - turn.mT)
        W = Q @ self._blocks(w, angle, rate_limit(info)) @ Q.mT
        return self._inside(W, info)

    def _inside(self, W: Tensor, info: torch.finfo) -> Tensor:
        """W moved away from the boundary by what its rounding can move its spectrum."""
        rounding = info.eps * size_of(W) + 64 * len(W) * EPS64 * size_of(W)
        if self.time == "discrete":
            return W * (1 - rounding).clamp(min=0)
        return W - rounding * torch.eye(len(W), dtype=W.dtype, device=W.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Normal:
        # half() or bfloat16() would take the orthogonality of the basis with it
        basis, signs = self.basis, self.signs
        super()._apply(fn, recurse)
        self.basis, self.signs = basis.to(self.basis.device), signs.to(self.signs.device)
        return self

    def _blocks(self, w: Tensor, angle: Tensor, largest: float) -> Tensor:
        pairs, reals = len(angle), len(w) - len(angle)
        size, angle = self.scalar(w).clamp(-largest, largest), angle.clamp(-largest, largest)
        real = size[:reals] * self.signs.to(w.dtype)
        if self.time == "continuous":
            same, cross = size[reals:], angle
        else:
            same, cross = size[reals:] * torch.cos(angle), size[reals:] * torch.sin(angle)
        corner = torch.stack([torch.stack([same, cross], -1), torch.stack([-cross, same], -1)], -2)
        blocks = [value.reshape(1, 1) for value in real.unbind()] + [corner[i] for i in range(pairs)]
        return torch.block_diag(*blocks)

    def _take_over(self, info: torch.finfo, W: Tensor) -> tuple[Tensor, ...]:
        from scipy.linalg import schur

        if len(W):
            # what `forward` takes off for rounding is added before, so that W comes out as it went in
            W = W + (W - self._inside(W, info))
        defect = torch.linalg.matrix_norm(W @ W.mT - W.mT @ W)
        # a W that was normal in its own dtype is so to eps of its square only
        if float(defect) > max(1e-6, info.eps) * float(torch.linalg.matrix_norm(W)) ** 2:
            raise RangeError(
                f"W must be normal (WW' = W'W), got |WW' - W'W| = {float(defect):.3g} at |W|^2 = "
                f"{float(torch.linalg.matrix_norm(W)) ** 2:.3g}; use form='complete' (Hurwitz or Schur) instead"
            )
        D, Q = (torch.from_numpy(m) for m in schur(W.numpy(), output="real"))
        reals, pairs = _block_starts(D)
        order = reals + [j for i in pairs for j in (i, i + 1)]
        real = D[reals, reals]
        same, cross = _pair_values(D, pairs)
        if self.time == "continuous":
            size, angle, signs = torch.cat([real, same]), cross, torch.ones_like(real)
        else:
            size, angle = torch.cat([real.abs(), torch.hypot(same, cross)]), torch.atan2(cross, same)
            signs = torch.where(real < 0, -1.0, 1.0)
        self.basis, self.signs = Q[:, order].contiguous().to(self.basis.device), signs.to(self.basis.device)
        return torch.zeros_like(W), self.scalar.inverse(size), angle

    def _nearer(self, W: Tensor) -> Iterator[Tensor]:
        return iter(())  # which matrix of the kind is near to one that is not normal is not a matter of its size


def _block_starts(D: Tensor) -> tuple[list[int], list[int]]:
    """First rows of the 1x1 and of the 2x2 blocks of a real Schur form."""
    reals: list[int] = []
    pairs: list[int] = []
    i = 0
    while i < len(D):
        pair = i + 1 < len(D) and float(D[i + 1, i]) != 0
        (pairs if pair else reals).append(i)
        i += 2 if pair else 1
    return reals, pairs


def _pair_values(D: Tensor, pairs: list[int]) -> tuple[Tensor, Tensor]:
    starts = torch.tensor(pairs, dtype=torch.long, device=D.device)
    same = (D[starts, starts] + D[starts + 1, starts + 1]) / 2
    return same, (D[starts, starts + 1] - D[starts + 1, starts]) / 2
