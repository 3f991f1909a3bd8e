"""What a recurrent layer says about itself, so that whoever measures it need not know its class.

`LinearSystem` is one step of a layer whose state moves linearly, `StateSpaceModel` the model of StableSSM before it is
discretized, `RateNetwork` the weights of a nonlinear recurrent network, `Motion` how a state moves on zero input.
`AbstractRecurrent` gives each, or None, in the dtype of the weights and differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from holdfast._types import Time

Real = Float[Tensor, "..."]
RealOrComplex = Float[Tensor, "..."] | Complex[Tensor, "..."]
# states (..., n) to dh/dt, or to the next state in discrete time
Motion = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LinearSystem:
    """h+ = A h + B x + b, y = Re[C sigma(h)] + D x, for each of `groups` independent systems.

    `factor` is A: its diagonal (groups, n), real or complex, or the matrix (groups, n, n). B is (groups, n, inputs),
    b (groups, n), C (groups, outputs, n), D (groups, outputs, inputs). Group g reads the g-th block of `inputs` features
    and writes the g-th block of `outputs`. One step takes the time `dt`; `activation` is sigma, by name.
    """

    factor: RealOrComplex
    B: RealOrComplex
    b: RealOrComplex
    C: RealOrComplex
    D: Real
    dt: float = 1.0
    activation: str = "identity"

    @property
    def linear(self) -> bool:
        """Whether the output is linear too, so that the impulse response says everything."""
        return self.activation == "identity"

    @property
    def groups(self) -> int:
        """How many systems there are."""
        return self.factor.shape[0]

    @property
    def dense(self) -> bool:
        """Whether `factor` is a matrix."""
        return self.factor.ndim == 3

    @property
    def reads_only_real_modes(self) -> bool:
        """Whether it is one group of real modes read by C alone: y = C sigma(h) of a real diagonal A."""
        plain = self.groups == 1 and not self.dense and not self.factor.is_complex()
        return plain and not bool(self.D.any())

    def eigenvalues(self) -> RealOrComplex:
        """The eigenvalues of one step, of all groups in a row."""
        return torch.linalg.eigvals(self.factor).flatten() if self.dense else self.factor.flatten()

    def tensors(self) -> tuple[Tensor, ...]:
        """factor, B, b, C, D."""
        return self.factor, self.B, self.b, self.C, self.D


def single_system(
    factor: RealOrComplex,
    B: RealOrComplex,
    b: Tensor | None,
    C: RealOrComplex,
    D: Tensor | None = None,
    *,
    dt: float = 1.0,
    activation: str = "identity",
) -> LinearSystem:
    """A system of one group from weights without that dimension; no bias and no direct path are zeros."""
    real = C.real if C.is_complex() else C
    bias = torch.zeros_like(B[:, 0]) if b is None else b
    direct = real.new_zeros(C.shape[0], B.shape[1]) if D is None else D
    factor, B, bias, C, direct = (weight.unsqueeze(0) for weight in (factor, B, bias, C, direct))
    return LinearSystem(factor, B, bias, C, direct, dt, activation)


@dataclass(frozen=True, eq=False)
class RateNetwork:
    """h+ = h + dt sigma(W h + U x + b), y = C h: Euler's rule for dh/dt = sigma(W h + U x + b) (iat, eq. 1).

    W is a matrix (n, n) or the diagonal of one, (n,).
    """

    W: Real
    U: Real
    b: Real
    C: Real
    dt: float
    activation: str

    def tensors(self) -> tuple[Tensor, ...]:
        """W, U, b, C."""
        return self.W, self.U, self.b, self.C


@dataclass(frozen=True, eq=False)
class StateSpaceModel:
    """dh/dt = Lam h + U x + b, or h+ = Lam h + U x + b, y = C sigma(h), Lam real and diagonal (StableSSM, eq. 2-3).

    Solved exactly in steps of `dt`. lam is (n,), U (n, inputs), b (n,) or None, C (outputs, n).
    """

    lam: Real
    U: Real
    b: Real | None
    C: Real
    activation: str
    time: Time
    dt: float
