"""A quadratic energy that falls along a linear recurrence, with the best condition at hand."""

from __future__ import annotations

import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast._types import Time


def energy(W: Float[Tensor, "n n"], time: Time) -> tuple[Float[Tensor, " n"], Float[Tensor, "n n"]] | None:
    """Eigenvalues (of geometric mean 1) and eigenvectors of X > 0 with WX + XW' < 0, or X - WXW' > 0; float64.

    The better conditioned of two: V V* of the eigenvectors, whose condition does not grow as eigenvalues approach the
    boundary, and the Lyapunov solution, which a defective W has too. None where neither is positive definite.
    """
    vectors = torch.linalg.eig(W).eigenvectors
    found = []
    for X in ((vectors @ vectors.mH).real, _lyapunov(W, time)):
        x, q = torch.linalg.eigh((X + X.mT) / 2)
        if bool(torch.isfinite(x).all()) and bool(x[0] > x[-1] * 1e-15):
            found.append((float(x[-1] / x[0]), x / torch.exp(x.log().mean()), q))
    if not found:
        return None
    _, x, q = min(found, key=lambda one: one[0])
    return x, q


def _lyapunov(W: Tensor, time: Time) -> Tensor:
    from scipy.linalg import LinAlgError, LinAlgWarning, solve_continuous_lyapunov, solve_discrete_lyapunov

    eye = torch.eye(len(W), dtype=W.dtype)
    # with W/g, g half-way from the radius to 1, the step shrinks by g in the norm of X, however W is conditioned
    g = (1 + float(torch.linalg.eigvals(W).abs().max())) / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LinAlgWarning)  # a bad solution is not positive definite, or refused later on
        try:
            if time == "continuous":
                return torch.from_numpy(solve_continuous_lyapunov(W.numpy(), -2 * eye.numpy()))
            return torch.from_numpy(solve_discrete_lyapunov((W / g).numpy(), eye.numpy()))
        except LinAlgError:
            return -eye
