"""Dense recurrent matrices that stay stable wherever their free weights go ("Inverse Approximation Theory", eq. 16).

Complete forms: every stable matrix is one, and any stable W can be taken over without changing it. Each class is used
through `torch.nn.utils.parametrize.register_parametrization(module, "weight", Hurwitz())`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from holdfast._types import Time
from holdfast.errors import DtypeError, RangeError, ShapeError
from holdfast.parameterizations.positive_definite import positive_definite, positive_definite_inverse


class AbstractMatrixParameterization(nn.Module, ABC):
    """A map from free weights to a stable square matrix W, with a way in from a given one."""

    key: ClassVar[str]
    time: Time

    @abstractmethod
    def forward(self, *free: Tensor) -> Float[Tensor, "n n"]:
        """W of the free weights."""

    @abstractmethod
    def _take_over(self, W: Float[Tensor, "n n"]) -> tuple[Tensor, ...]: ...

    def right_inverse(self, W: Float[Tensor, "n n"]) -> tuple[Tensor, ...]:
        """Free weights whose matrix is W; refuses a W that is not stable."""
        check_stable(W, self.time)
        return tuple(free.to(W.dtype) for free in self._take_over(W.detach().double()))


def spectral_margin(W: Float[Tensor, "n n"], time: Time) -> float:
    """Distance of the spectrum to the stability boundary: -max Re lam, or 1 - max |lam|."""
    if W.shape[-1] == 0:
        return float("inf")
    eigenvalues = torch.linalg.eigvals(W.detach().double())
    return float(-eigenvalues.real.max()) if time == "continuous" else float(1 - eigenvalues.abs().max())


def check_stable(W: Tensor, time: Time) -> None:
    """Raises for anything that is not a stable real square matrix."""
    if not isinstance(W, Tensor) or not W.is_floating_point():
        came = W.dtype if isinstance(W, Tensor) else type(W).__name__
        raise DtypeError(f"W must be a real floating-point tensor, came {came}")
    if W.ndim != 2 or W.shape[0] != W.shape[1]:
        raise ShapeError(f"W must be a square matrix (n, n), came shape {tuple(W.shape)}")
    if not bool(torch.isfinite(W).all()):
        raise RangeError("W has entries that are not finite")
    if spectral_margin(W, time) > 0:
        return
    eigenvalues = torch.linalg.eigvals(W.detach().double())
    part = eigenvalues.real if time == "continuous" else eigenvalues.abs()
    bad = part[part >= (0 if time == "continuous" else 1)].sort(descending=True).values
    what = "real part < 0" if time == "continuous" else "modulus < 1"
    raise RangeError(
        f"only a stable W can be represented: every eigenvalue needs {what}; {len(bad)} of {len(part)} have not: "
        f"{', '.join(f'{v:.6g}' for v in bad[:8].tolist())}. Shift or scale W first."
    )


def _geometric_mean(p: Tensor) -> Tensor:
    return torch.exp(torch.linalg.eigvalsh(p).log().mean())


class Hurwitz(AbstractMatrixParameterization):
    """W = (J - R) P with J skew, R and P positive definite: all matrices with eigenvalues of negative real part.

    With V(h) = h'Ph the energy falls along dh/dt = W h: dV/dt = -2 (Ph)'R(Ph) < 0. Free weights: three (n, n)
    matrices, of which J uses the skew part and R, P the symmetric parts. The way in solves W X + X W' = -2I and takes
    P = X^-1, so that R is a multiple of I: the form of the stability literature with R = P^-2/2 squares P's condition.
    """

    key = "complete"
    time: Time = "continuous"

    def forward(self, *free: Tensor) -> Float[Tensor, "n n"]:
        skew, s_r, s_p = free
        return (skew - skew.mT - positive_definite(s_r)) @ positive_definite(s_p)

    def _take_over(self, W: Tensor) -> tuple[Tensor, ...]:
        from scipy.linalg import solve_continuous_lyapunov

        eye = torch.eye(len(W), dtype=W.dtype)
        X = torch.from_numpy(solve_continuous_lyapunov(W.cpu().numpy(), -2 * eye.numpy()))
        X = (X + X.mT) / 2
        scale = _geometric_mean(X) if len(W) else eye.new_ones(())
        s_p = positive_definite_inverse(torch.linalg.inv(X / scale))
        # J - R from the P that forward will see, not from X: rounding in the Lyapunov solution then cancels
        M = torch.linalg.solve(positive_definite(s_p), W.cpu(), left=False)
        free = ((M - M.mT) / 4, positive_definite_inverse(-(M + M.mT) / 2), s_p)
        return tuple(f.to(W.device) for f in free)


class Schur(AbstractMatrixParameterization):
    """W = T^-1 K T with T positive definite, K = Z L^-T and L L' = I + Z'Z: all matrices with spectral radius below 1.

    K'K = I - (L'L)^-1, so that K shrinks every vector. Z and the symmetric part of T's weight are free, (n, n) each.
    K differs by a rotation from Z (I + Z'Z)^-1/2: the Cholesky factor needs no matrix square root and its gradient no
    distinct eigenvalues. The way in takes P from P - W'PW = I, T = P^1/2.
    """

    key = "complete"
    time: Time = "discrete"

    def forward(self, *free: Tensor) -> Float[Tensor, "n n"]:
        z, s = free
        eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        L = torch.linalg.cholesky(eye + z.mT @ z)
        K = torch.linalg.solve_triangular(L.mT, z, upper=True, left=False)
        T = positive_definite(s)
        return torch.linalg.solve(T, K @ T)

    def _take_over(self, W: Tensor) -> tuple[Tensor, ...]:
        from scipy.linalg import solve_discrete_lyapunov

        eye = torch.eye(len(W), dtype=W.dtype)
        P = torch.from_numpy(solve_discrete_lyapunov(W.mT.cpu().numpy(), eye.numpy()))
        P = (P + P.mT) / 2
        p, q = torch.linalg.eigh(P)
        T = (q * p.sqrt()) @ q.mT
        # P = L'L with L lower triangular: a Cholesky factorisation read from the last row up
        L = torch.linalg.cholesky(P.flip(0, 1)).mT.flip(0, 1)
        K = T @ W.cpu() @ torch.linalg.inv(T)
        scale = _geometric_mean(T) if len(W) else eye.new_ones(())
        free = (K @ L.mT, positive_definite_inverse(T / scale))
        return tuple(f.to(W.device) for f in free)
