"""The real diagonal state-space model of StableSSM, eq. 2-3."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError, unknown_name
from holdfast.kernels import scan
from holdfast.nn._activations import ACTIVATIONS
from holdfast.nn._base import AbstractRecurrent, zero_after
from holdfast.nn._discretize import RateDiscretization, discretize
from holdfast.nn._initial_weights import (
    Device,
    ReadOut,
    as_eigenvalues,
    check_read_out,
    free_weight,
    own_values,
    placeable,
    read_scale,
    starting_values,
    uniform,
)
from holdfast.nn._precision import project
from holdfast.nn.system import LinearSystem, StateSpaceModel, single_system
from holdfast.parameterizations import AbstractParameterization

READ_OUT_ACTIVATIONS = ("identity", "tanh", "relu", "gelu", "sigmoid")


class DiagonalSSM(AbstractRecurrent):
    """dh/dt = Lam h + U x + b, y = C sigma(h), Lam real diagonal with eigenvalues f(w) (StableSSM, eq. 2-3).

    In discrete time h+ = Lam h + U x + b. The state is h, (batch, state_size).

    Args:
        features: number of input features.
        state_size: number of states, one real eigenvalue each.
        parameterization: f, by name or as an object of `holdfast.parameterizations`.
        time: "continuous" or "discrete".
        discretization: of continuous time: "zoh" is exact for inputs held over each step, "euler" is Euler's rule.
        activation: sigma: "identity", "tanh", "relu", "gelu" or "sigmoid".
        dt: time of one step; continuous time only.
        bias: whether there is a b.
        out_features: number of outputs; None is `features`.
        eigenvalues: where Lam starts (state_size,), the same for every parameterization. None: rates geometric on
            [0.001, 0.5] per unit of time.
        readout: "plain" has C itself as a weight; "scaled" holds gamma of C_i = gamma_i |f(w_i)| / sqrt(state_size), with
            1 - |f(w_i)| in discrete time: a change of gamma by beta then changes the response to each state's input by at
            most beta in L1, whatever the rates, where one of C counts beta / rate.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    Memory of a training step, in numbers: x, y, their gradients, and 3 T state_size for each sequence, for U x, h and
    sigma(h).

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.DiagonalSSM(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    takes_half = True
    recurrent_names = ("w",)

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        parameterization: str | AbstractParameterization = "best",
        time: Time = "continuous",
        discretization: RateDiscretization = "zoh",
        activation: str = "tanh",
        dt: float = 1.0,
        bias: bool = True,
        out_features: int | None = None,
        eigenvalues: Float[Tensor, " state"] | None = None,
        readout: ReadOut = "plain",
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(
            parameterization=parameterization, time=time, discretization=discretization, activation=activation, dt=dt,
            bias=bias, out_features=out_features, eigenvalues=eigenvalues, readout=readout,
        )  # fmt: skip
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        if activation not in READ_OUT_ACTIVATIONS:
            raise unknown_name("activation", activation, READ_OUT_ACTIVATIONS)
        if not 0 < dt < math.inf:
            raise ArgumentError(f"dt must be a finite number above 0, got {dt!r}")
        if time == "discrete" and (dt != 1.0 or discretization != "zoh"):
            raise ArgumentError("dt and discretization are for time='continuous', got time='discrete'; leave both out")
        self.time = time
        self.dt = float(dt)
        self.discretization: RateDiscretization = discretization
        self.activation = activation
        start = starting_values(eigenvalues, lambda: _default_eigenvalues(state_size, time))
        lam = as_eigenvalues(start, (state_size,), real=True, layer="DiagonalSSM")
        self.parameterization, self.w = free_weight(parameterization, time, lam)
        self.U = uniform(state_size, features, fan_in=features)
        self.b = nn.Parameter(torch.zeros(state_size)) if bias else None
        check_read_out(self, readout)
        self.readout: ReadOut = readout
        self.C = uniform(self.out_features, state_size, fan_in=state_size if readout == "plain" else 1)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.state_size,)

    def eigenvalues(self) -> Float[Tensor, " state"]:
        return own_values(self.parameterization, self.w)

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Float[Tensor, " state"]) -> None:
        """Moves the free weights so that the eigenvalues are `lam`, (state_size,)."""
        given = as_eigenvalues(lam, (self.state_size,), real=True, layer="DiagonalSSM")
        self.w.copy_(self.parameterization.inverse(given.to(self.w)))

    def read_out(self) -> Float[Tensor, "out state"]:
        """The effective C, what states are read with."""
        return self.C if self.readout == "plain" else self.C * self._read_scale()

    def _read_scale(self) -> Tensor:
        return read_scale(self.parameterization, self.w, self.state_size)

    @torch.no_grad()
    def set_read_out_(self, C: Float[Tensor, "out state"]) -> None:
        """Moves the free weight so that the effective C is this."""
        self.C.copy_(C if self.readout == "plain" else C / self._read_scale())

    def choices(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "parameterization": self.parameterization.key,
            "time": self.time,
            "activation": self.activation,
        }
        made |= {"bias": self.b is not None, "out_features": self.out_features}
        made |= {} if self.readout == "plain" else {"readout": self.readout}
        return made | ({"dt": self.dt, "discretization": self.discretization} if self.time == "continuous" else {})

    @property
    def euler_step(self) -> float | None:
        return self.dt if self.discretization == "euler" else None

    def step_size(self) -> float | None:
        return self.dt if self.time == "continuous" and self.discretization == "zoh" else None

    def state_space_model(self) -> StateSpaceModel | None:
        if self.discretization == "euler":
            return None
        return StateSpaceModel(self.eigenvalues(), self.U, self.b, self.read_out(), self.activation, self.time, self.dt)

    def linear_system(self) -> LinearSystem:
        return single_system(*self._folded(None), self.read_out(), dt=self.dt, activation=self.activation)

    def _factors(self, dt: Tensor | float | None) -> tuple[Tensor, Tensor | None]:
        """Factor and input gain of one step; no gain in discrete time."""
        lam = self.eigenvalues()
        if self.time == "discrete":
            return lam, None
        step = self.dt if dt is None else dt
        if isinstance(step, Tensor):
            step = step.unsqueeze(-1)
        return discretize(lam, step, self.discretization)

    def _masks_resets(self) -> bool:
        return True

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        factor, v = self._drive(x, dt)
        h, last = scan(factor, v, state, reverse=reverse, lengths=lengths, resets=resets)
        y = project(ACTIVATIONS[self.activation](h).to(x.dtype), self.read_out())
        # past the end the scan leaves h = 0, which only sigmoid does not map to 0
        return zero_after(y, lengths if self.activation == "sigmoid" else None), last

    def _drive(self, x: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        """The factor of each step and what the step adds; one gain for all steps goes into the small weights."""
        if isinstance(dt, Tensor):
            factor, gain = self._factors(dt)
            v = project(x, self.U, self.b)
            return factor, v if gain is None else gain * v
        sources = (self.w, self.U) if self.b is None else (self.w, self.U, self.b)
        # a stream asks for them at every step
        factor, U, b = self._keep(dt, sources, lambda: self._folded(dt))
        return factor, project(x, U, b)

    def _folded(self, dt: float | None) -> tuple[Tensor, Tensor, Tensor | None]:
        factor, gain = self._factors(dt)
        if gain is None:
            return factor, self.U, self.b
        return factor, gain.unsqueeze(-1) * self.U, None if self.b is None else gain * self.b

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        factor, v = self._drive(x, dt)
        h = torch.addcmul(v, factor, state)
        C = self.C if self.readout == "plain" else self._keep("readout", (self.w, self.C), self.read_out)
        return functional.linear(ACTIVATIONS[self.activation](h), C), h


def _default_eigenvalues(state_size: int, time: Time) -> Tensor:
    rates = torch.logspace(-3, -0.30103, state_size, dtype=torch.float64) if state_size > 1 else torch.tensor([0.05])
    return -rates if time == "continuous" else torch.exp(-rates)
