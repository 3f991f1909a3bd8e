"""The linear recurrent network with a dense or diagonal recurrent matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked
from holdfast._types import Time
from holdfast.errors import ArgumentError, unknown_name
from holdfast.kernels import rnn, scan
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._discretize import RateDiscretization, discretize, discretize_dense
from holdfast.nn._export_loop import refuse_onnx
from holdfast.nn._initial_weights import Device, placeable, uniform
from holdfast.nn._precision import project, widened
from holdfast.nn._recurrent_weight import RecurrentWeight, Structure
from holdfast.nn.system import LinearSystem, single_system
from holdfast.parameterizations import AbstractMatrixParameterization, AbstractParameterization, get


class LinearRNN(AbstractRecurrent):
    """h+ = W h + U x + b, y = C h, or dh/dt = W h + U x + b in continuous time (iat, Sec. 2).

    W is dense or diagonal, through any parameterization (see RecurrentWeight). The state is h, (batch, state_size).

    Args:
        features: number of input features.
        state_size: rows of W.
        structure: "dense" or "diagonal".
        parameterization: of W, as in RecurrentWeight. "complete", the default, is "best" for a diagonal W.
        time: "discrete" or "continuous".
        discretization: of continuous time: "zoh" is exact for inputs held over each step, "euler" is Euler's rule.
        dt: time of one step; continuous time only.
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
        >>> layer = holdfast.nn.LinearRNN(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    takes_half = True
    recurrent_names = ("recurrence",)
    boundary_name = "recurrence"

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        structure: Structure = "dense",
        parameterization: str | AbstractParameterization | AbstractMatrixParameterization = "complete",
        time: Time = "discrete",
        discretization: RateDiscretization = "zoh",
        dt: float = 1.0,
        bias: bool = False,
        out_features: int | None = None,
        W: Tensor | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if structure == "diagonal" and parameterization == "complete":
            parameterization = "best"
        choices: dict[str, Any] = dict(
            structure=structure, parameterization=parameterization, time=time, discretization=discretization, dt=dt,
            bias=bias, out_features=out_features, W=W,
        )  # fmt: skip
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        if discretization not in ("zoh", "euler"):
            raise unknown_name("discretization", discretization, ("zoh", "euler"))
        if time == "discrete" and (dt != 1.0 or discretization != "zoh"):
            raise ArgumentError("dt and discretization are for time='continuous', got time='discrete'; leave both out")
        if not dt > 0:
            raise ArgumentError(f"dt must be above 0, got {dt!r}")
        self.time = time
        self.dt = float(dt)
        self.discretization: RateDiscretization = discretization
        self.recurrence = RecurrentWeight(state_size, structure, parameterization, time, W)
        self.U = uniform(state_size, features, fan_in=features)
        self.b = nn.Parameter(torch.zeros(state_size)) if bias else None
        self.C = uniform(self.out_features, state_size, fan_in=state_size)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.state_size,)

    def eigenvalues(self) -> Tensor:
        return self.recurrence.eigenvalues()

    def _factors(self, dt: Tensor | float | None) -> tuple[Tensor, Tensor | None]:
        """Factor and input gain of one step: vectors for a diagonal W, matrices for a dense one."""
        W = self.recurrence()
        if self.time == "discrete":
            return W, None
        step = self.dt if dt is None else dt
        if W.ndim == 1:
            return discretize(W, step.unsqueeze(-1) if isinstance(step, Tensor) else step, self.discretization)
        if self.discretization == "zoh":
            # before the exporter meets it: its own words name an operator and no way out
            refuse_onnx("the matrix exponential of a continuous-time LinearRNN")
        return discretize_dense(W, step, self.discretization)

    @torch.no_grad()
    def _settle_(self) -> None:
        """In continuous time the exact step of the layer's own dt becomes a layer in discrete time."""
        factor, gain = self._factors(None)
        if self.recurrence.structure == "dense" and self.discretization == "zoh" and gain is not None:
            self.U.copy_(gain @ self.U)
            if self.b is not None:
                self.b.copy_(gain @ self.b)
            self.time, self.dt, self.recurrence.time = "discrete", 1.0, "discrete"
            # the step itself becomes the free weight: nothing keeps it stable, and nothing trains it any more
            self.recurrence.switch_(get("direct", time="discrete"), factor)
        else:
            self.recurrence.settle_()

    @property
    def euler_step(self) -> float | None:
        return self.dt if self.discretization == "euler" else None

    def step_size(self) -> float | None:
        return self.dt if self.time == "continuous" and self.discretization == "zoh" else None

    def recurrent_matrix(self) -> Tensor | None:
        return self.recurrence.own_value() if self.recurrence.structure == "dense" else None

    def linear_system(self) -> LinearSystem:
        factor, gain = self._factors(None)
        if gain is None:
            return single_system(factor, self.U, self.b, self.C)
        matrix = torch.diag(gain) if gain.ndim == 1 else gain
        return single_system(factor, matrix @ self.U, None if self.b is None else matrix @ self.b, self.C, dt=self.dt)

    def _masks_resets(self) -> bool:
        return self.recurrence.structure == "diagonal"

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        factor, gain = self._factors(dt)
        if self.recurrence.structure == "diagonal":
            v = project(x, self.U, self.b)
            h, last = scan(
                factor, v if gain is None else gain * v, state, reverse=reverse, lengths=lengths, resets=resets
            )
        elif isinstance(dt, Tensor):
            assert gain is not None
            v = (gain @ widened(project(x, self.U, self.b)).unsqueeze(-1)).squeeze(-1)
            h0 = v.new_zeros(len(x), self.state_size) if state is None else state
            # no kernel has a matrix for every step: they would take steps x state^2 numbers
            h, last = _varying(factor, v, h0, lengths, reverse)
        else:
            # the gain goes into U once, not into the inputs of every step
            U = self.U if gain is None else gain @ self.U
            b = self.b if gain is None or self.b is None else gain @ self.b
            h, last = rnn(x, factor, U, b, state, activation="linear", lengths=lengths, reverse=reverse)
        return project(h.to(x.dtype), self.C), last

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        if isinstance(dt, Tensor):
            factor, gain = self._factors(dt)
        else:
            # a stream asks for the same factors at every step, and a matrix exponential costs far more than the step
            factor, gain = self._keep(f"factors {dt}", self.recurrence.sources(), lambda: self._factors(dt))
        v = functional.linear(x, self.U, self.b)
        if self.recurrence.structure == "diagonal":
            h = factor * state + (v if gain is None else gain * v)
        else:
            h = _apply(factor, state) + (v if gain is None else _apply(gain, v))
        return functional.linear(h, self.C), h


def _apply(matrix: Tensor, vectors: Tensor) -> Tensor:
    """One matrix for all rows, or one per row."""
    if matrix.ndim == 2:
        return functional.linear(vectors, matrix)
    return (matrix @ vectors.unsqueeze(-1)).squeeze(-1)


def _varying(factor: Tensor, v: Tensor, state: Tensor, lengths: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
    """The plain loop for a matrix that changes in time."""
    # unbound once: the gradient of a step's slice has the size of all steps
    factors, inputs, steps = factor.unbind(1), v.unbind(1), v.shape[1]
    outputs: list[Tensor] = [state] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        moved = _apply(factors[t], state) + inputs[t]
        state = moved if lengths is None else torch.where((t < lengths).unsqueeze(-1), moved, state)
        outputs[t] = moved if lengths is None else torch.where((t < lengths).unsqueeze(-1), moved, moved.new_zeros(()))
    return torch.stack(outputs, dim=1) if steps else torch.zeros_like(v), state
