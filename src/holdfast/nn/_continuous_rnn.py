"""The nonlinear recurrent network of "Inverse Approximation Theory", eq. 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError, unknown_name
from holdfast.kernels import rnn
from holdfast.kernels.rnn import ACTIVATIONS, Activation
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._initial_weights import Device, placeable, uniform
from holdfast.nn._precision import project
from holdfast.nn._recurrent_weight import RecurrentWeight, Structure
from holdfast.nn.system import RateNetwork
from holdfast.parameterizations import AbstractMatrixParameterization, AbstractParameterization


class ContinuousRNN(AbstractRecurrent):
    """dh/dt = sigma(W h + U x + b), y = C h, by Euler steps h+ = h + dt sigma(W h + U x + b) (iat, eq. 1).

    W is dense or diagonal, through any parameterization (see RecurrentWeight). The state is h, (batch, state_size).

    Args:
        features: number of input features.
        state_size: number of states.
        activation: sigma: "tanh", "hardtanh", "relu", "sigmoid" or "linear".
        structure: "dense" or "diagonal".
        parameterization: of W, as in RecurrentWeight. "contraction", the default ("best" for a diagonal W), holds for steps
            up to the layer's dt: on a constant input every state goes to rest. The others bound eigenvalues only:
            Euler's step needs |1 + dt lam| < 1 beside a negative real part, and far from the equilibrium eigenvalues
            say nothing.
        dt: size of the Euler step.
        bias: whether there is a b.
        out_features: number of outputs; None is `features`.
        W: where the recurrent weight starts: (state_size, state_size), or (state_size,) where it is diagonal. None is
            the start of RecurrentWeight.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    Memory of a training step, in numbers: x, y, their gradients, and 2 T state_size for each sequence.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.ContinuousRNN(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    takes_half = True
    recurrent_names = ("recurrence",)
    boundary_name = "recurrence"
    time: Time = "continuous"

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        activation: Activation = "tanh",
        structure: Structure = "dense",
        parameterization: str | AbstractParameterization | AbstractMatrixParameterization = "contraction",
        dt: float = 0.1,
        bias: bool = True,
        out_features: int | None = None,
        W: Tensor | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if structure == "diagonal" and parameterization == "contraction":
            # the default is a form of matrices; single modes take the best scalar one
            parameterization = "best"
        choices: dict[str, Any] = dict(
            activation=activation, structure=structure, parameterization=parameterization, dt=dt, bias=bias,
            out_features=out_features, W=W,
        )  # fmt: skip
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        if activation not in ACTIVATIONS:
            raise unknown_name("activation", activation, ACTIVATIONS)
        if not dt > 0:
            raise ArgumentError(f"dt must be above 0, got {dt!r}")
        self.activation: Activation = activation
        self.dt = float(dt)
        self.recurrence = RecurrentWeight(state_size, structure, parameterization, "continuous", W, self.dt)
        self.U = uniform(state_size, features, fan_in=features)
        self.b = nn.Parameter(torch.zeros(state_size)) if bias else None
        self.C = uniform(self.out_features, state_size, fan_in=state_size)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.state_size,)

    def eigenvalues(self) -> Tensor:
        return self.recurrence.eigenvalues()

    @property
    def euler_step(self) -> float:
        return self.dt

    def recurrent_matrix(self) -> Tensor | None:
        return self.recurrence.own_value() if self.recurrence.structure == "dense" else None

    def rate_network(self) -> RateNetwork:
        b = torch.zeros_like(self.U[:, 0]) if self.b is None else self.b
        return RateNetwork(self.recurrence(), self.U, b, self.C, self.dt, self.activation)

    def _settle_(self) -> None:
        self.recurrence.settle_()

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        step = self.dt if dt is None else dt
        h, last = rnn(
            x, self.recurrence(), self.U, self.b, state,
            dt=step, activation=self.activation, lengths=lengths, reverse=reverse,
        )  # fmt: skip
        return project(h.to(x.dtype), self.C), last

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        W = self._keep("W", self.recurrence.sources(), self.recurrence)
        drive = functional.linear(x, self.U, self.b)
        z = drive + (W * state if W.ndim == 1 else functional.linear(state, W))
        step: Tensor | float = self.dt if dt is None else dt
        h = state + (step.unsqueeze(-1) if isinstance(step, Tensor) else step) * ACTIVATIONS[self.activation](z)
        return functional.linear(h, self.C), h
