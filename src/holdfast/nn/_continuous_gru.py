"""The continuous-time gated recurrent unit of "Inverse Approximation Theory", App. J."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._gru_states import GRUCall, advance, gru_states
from holdfast.nn._initial_weights import Device, placeable, uniform
from holdfast.nn._precision import project, widened
from holdfast.nn.system import Motion


class ContinuousGRU(AbstractRecurrent):
    """dh/dt = z o (tanh(W_h x + U_h (r o h) + b_h) - h), z and r = sigmoid(W x + U h + b), y = C h (iat, eq. 138).

    W, U and b hold the rows of z, r, h in this order. The recurrence is a loop over time in torch, with a gradient of
    its own. The state is h, (batch, state_size).

    Args:
        features: number of input features.
        state_size: number of states.
        dt: size of the Euler step; 1 is the classical GRU.
        bias: whether there is a b.
        out_features: number of outputs; None is `features`.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    Memory of a training step, in numbers: x, y, their gradients, and 4 T state_size for each sequence, for h and the
    input's part; backward adds some 20 T state_size.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.ContinuousGRU(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    takes_half = True
    recurrent_names = ("U",)
    boundary_name = None
    fused = False
    time: Time = "continuous"

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        dt: float = 1.0,
        bias: bool = True,
        out_features: int | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(dt=dt, bias=bias, out_features=out_features)
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        if not dt > 0:
            raise ArgumentError(f"dt must be above 0, got {dt!r}")
        self.dt = float(dt)
        # update gate, reset gate, candidate, one below the other; torch's GRU starts all three by its state size, too
        self.W = uniform(3 * state_size, features, fan_in=state_size)
        self.U = uniform(3 * state_size, state_size, fan_in=state_size)
        self.b = nn.Parameter(torch.zeros(3 * state_size)) if bias else None
        self.C = uniform(self.out_features, state_size, fan_in=state_size)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.state_size,)

    def eigenvalues(self) -> Tensor:
        """Eigenvalues at the equilibrium h = 0 of zero input, exact where b_h = 0 (iat, App. J).

        Those of Diag(sigmoid(b_z)) (U_h Diag(sigmoid(b_r)) - I).
        """
        n = self.state_size
        U = widened(self.U)
        b = U.new_zeros(3 * n) if self.b is None else widened(self.b)
        z, r = torch.sigmoid(b[:n]), torch.sigmoid(b[n : 2 * n])
        return torch.linalg.eigvals(z.unsqueeze(-1) * (U[2 * n :] * r - torch.eye(n, dtype=U.dtype, device=U.device)))

    @property
    def euler_step(self) -> float:
        return self.dt

    def motion_at_rest(self) -> tuple[Motion, Motion]:
        """dh/dt = z o (candidate - h) on zero input, and candidate - h: a closed gate z is no equilibrium."""
        n = self.state_size
        # float64: Newton's method continues until rounding stops it
        U = self.U.detach().cpu().double()
        b = U.new_zeros(3 * n) if self.b is None else self.b.detach().cpu().double()

        def residual(h: Tensor) -> Tensor:
            r = torch.sigmoid(functional.linear(h, U[n : 2 * n], b[n : 2 * n]))
            return torch.tanh(functional.linear(r * h, U[2 * n :], b[2 * n :])) - h

        def motion(h: Tensor) -> Tensor:
            return torch.sigmoid(functional.linear(h, U[:n], b[:n])) * residual(h)

        return motion, residual

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        drive = widened(project(x, self.W, self.b))
        start = drive.new_zeros(len(x), self.state_size) if state is None else state
        h, last = gru_states(GRUCall(drive, self.U, start, self.dt if dt is None else dt, lengths, reverse))
        return project(h.to(x.dtype), self.C), last

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        step = dt.unsqueeze(-1) if isinstance(dt, Tensor) else self.dt if dt is None else dt
        h = advance(functional.linear(x, self.W, self.b), self.U, state, step)
        return functional.linear(h, self.C), h
