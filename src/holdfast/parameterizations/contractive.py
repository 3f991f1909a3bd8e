"""Matrices that shrink every vector, from free ones, and the pieces that every bounded form shares."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# |Z| up to which K follows it; there 1 - |K| is 5e-9, and the rounding of I + Z'Z in float64 is 2e-8 of its smallest
# eigenvalue for every row: K still shrinks
REACH = 1e4
EPS64 = torch.finfo(torch.float64).eps


def held(x: Float[Tensor, "*any"], limit: float) -> Float[Tensor, "*any"]:
    """`x`, scaled down to Frobenius norm `limit` where it is above; its direction still learns."""
    return x * (limit / torch.linalg.vector_norm(x).clamp(min=limit))


def contractive(z: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """K = Z L^-T with L L' = I + Z'Z, so that K'K = I - (L'L)^-1 and |K|_2 < 1; float64.

    K differs by a rotation from Z (I + Z'Z)^-1/2: the Cholesky factor needs no matrix square root and its gradient no
    distinct eigenvalues.
    """
    z = held(z, REACH)
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    L = torch.linalg.cholesky(eye + z.mT @ z)
    return torch.linalg.solve_triangular(L.mT, z, upper=True, left=False)


def contractive_inverse(K: Float[Tensor, "n n"]) -> Float[Tensor, "n n"] | None:
    """Z with contractive(Z) = K, from I - K'K = C C' with C = L^-1; None where |K|_2 is not below 1."""
    eye = torch.eye(len(K), dtype=K.dtype, device=K.device)
    C, info = torch.linalg.cholesky_ex(eye - K.mT @ K)
    if int(info) != 0:
        return None
    return torch.linalg.solve_triangular(C.mT, K, upper=True, left=False)


def size_of(W: Float[Tensor, "n n"]) -> Tensor:
    """Frobenius norm, for margins: of the order of rounding, so that gradients need not see it."""
    return torch.linalg.matrix_norm(W.detach())
