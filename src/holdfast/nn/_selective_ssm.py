"""The selective state-space model: step size, input and output maps that depend on the input (Mamba's S6)."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked, positive
from holdfast._types import Time
from holdfast.kernels import selective
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._initial_weights import (
    Device,
    as_eigenvalues,
    check_step_range,
    free_weight,
    held_bias,
    input_steps,
    mixed,
    own_values,
    placeable,
    read_out,
    starting_values,
    step_bias,
    uniform,
)
from holdfast.nn._precision import project
from holdfast.nn._s4d import initial_modes
from holdfast.parameterizations import AbstractParameterization


class SelectiveSSM(AbstractRecurrent):
    """h+ = exp(Delta A) h + Delta B u, y = C h + D u; Delta, B, C depend on u, A = f(w) is real (as in Mamba).

    B and C are linear in u, Delta = softplus(W_dt u + bias). A is discretized exactly and B by Euler's rule, as Mamba
    does. State: (batch, features, state_size).

    Args:
        features: number of input features.
        state_size: states of each feature.
        rank: rank of W_dt; None is features / 16, rounded up.
        parameterization: f, by name or as an object of `holdfast.parameterizations`.
        dt_min: smallest Delta; on zero input the features' Delta start log-uniform between it and `dt_max`.
        dt_max: largest Delta at the start.
        eigenvalues: where A starts (features, state_size); None is -(n+1) for n = 0, 1, ...
        out_features: number of outputs; None is `features`. Another number needs a matrix E more, which maps y to the outputs.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    `dt` of forward and step multiplies Delta.

    Memory of a training step, in numbers: x, y, Delta, B, C, their gradients, and a state every 64 steps; nothing of size
    T features state_size is stored.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.SelectiveSSM(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    takes_half = True
    recurrent_names = ("w",)
    step_names = ("step_bias", "step_weight")
    selective = True
    time: Time = "continuous"

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        rank: int | None = None,
        parameterization: str | AbstractParameterization = "exp",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        eigenvalues: Float[Tensor, "features state"] | None = None,
        out_features: int | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(
            rank=rank, parameterization=parameterization, dt_min=dt_min, dt_max=dt_max, eigenvalues=eigenvalues,
            out_features=out_features,
        )  # fmt: skip
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        check_step_range(dt_min, dt_max)
        positive(rank=rank)
        self.rank = rank or math.ceil(features / 16)
        start = starting_values(eigenvalues, lambda: initial_modes("real", state_size).expand(features, state_size))
        lam = as_eigenvalues(start, (features, state_size), real=True, layer="SelectiveSSM")
        self.parameterization, self.w = free_weight(parameterization, "continuous", lam)
        self.project = uniform(self.rank + 2 * state_size, features, fan_in=features)
        self.step_weight = uniform(features, self.rank, fan_in=self.rank)
        self.step_bias = nn.Parameter(step_bias(features, dt_min, dt_max))
        self.D = nn.Parameter(torch.ones(features))
        self.E = read_out(features, self.out_features)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.features, self.state_size)

    def eigenvalues(self) -> Float[Tensor, "features state"]:
        return own_values(self.parameterization, self.w)

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Float[Tensor, "features state"]) -> None:
        """Moves the free weights so that A is `lam`, (features, state_size)."""
        given = as_eigenvalues(lam, self.state_shape, real=True, layer="SelectiveSSM")
        self.w.copy_(self.parameterization.inverse(given.to(self.w)))

    def choices(self) -> dict[str, Any]:
        return {"rank": self.rank, "parameterization": self.parameterization.key, "out_features": self.out_features}

    @property
    def remarks(self) -> tuple[str, ...]:
        return ("the step size depends on the input; A < 0 keeps every step stable, whatever it is",)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Delta before bias and softplus, (..., features), B and C, (..., state_size)."""
        low, b, c = project(x, self.project).split([self.rank, self.state_size, self.state_size], dim=-1)
        return project(low, self.step_weight), b, c

    def step_size(self) -> Tensor:
        return functional.softplus(held_bias(self.step_bias)).unsqueeze(-1)

    def _step_sizes(self, raw: Tensor, dt: Tensor | float | None) -> Tensor:
        return input_steps(raw, self.step_bias, dt)

    def _masks_resets(self) -> bool:
        return True

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        raw, b, c = self._project(x)
        # without a dt of the caller the kernel adds the bias and takes the softplus itself: a pass over delta less
        inside = dt is None
        delta = raw if inside else self._step_sizes(raw, dt)
        y, last = selective(
            x, delta, self.eigenvalues(), b, c, self.D, dt_bias=held_bias(self.step_bias) if inside else None,
            dt_softplus=inside, h0=state, lengths=lengths, resets=resets, reverse=reverse,
        )  # fmt: skip
        return mixed(y, self.E), last

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        raw, b, c = self._project(x)
        delta = self._step_sizes(raw, dt).unsqueeze(-1)
        h = torch.exp(delta * self.eigenvalues()) * state + delta * x.unsqueeze(-1) * b.unsqueeze(-2)
        return mixed((h @ c.unsqueeze(-1)).squeeze(-1) + self.D * x, self.E), h
