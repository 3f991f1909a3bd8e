"""The minimal gated recurrent unit: a GRU whose gate and candidate read the input alone (Feng et al. 2024)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked
from holdfast.errors import unknown_name
from holdfast.nn._activations import ACTIVATIONS
from holdfast.nn._initial_weights import (
    Device,
    as_eigenvalues,
    free_weight,
    own_values,
    placeable,
    starting_values,
    uniform,
)
from holdfast.nn._input_gated import AbstractInputGated, default_rates, factor_and_share
from holdfast.nn._precision import project
from holdfast.parameterizations import AbstractParameterization

CANDIDATE_ACTIVATIONS = ("identity", "tanh", "relu", "gelu", "sigmoid")


class MinGRU(AbstractInputGated):
    """h+ = (1 - z) o h + z o c, z = sigmoid(W_z x + w), c = sigma(W_c x + b), y = E h ("Were RNNs All We Needed?", eq. 6).

    1 - sigmoid(k) = exp(-softplus(k)): a step solves dh/dt = f(W_z x + w) (h - c) over a time of 1, with f(k) =
    -softplus(k), and the eigenvalues on zero input are f(w). Another f is another gate, z = 1 - exp(f(W_z x + w)). The
    state is h, (batch, state_size); all steps together are one `holdfast.kernels.scan`.

    Args:
        features: number of input features.
        state_size: number of states.
        parameterization: f, by name or as an object of `holdfast.parameterizations`; "softplus" is the sigmoid gate.
        activation: sigma: "identity", "tanh", "relu", "gelu" or "sigmoid".
        eigenvalues: where f(w) starts (state_size,); None: rates geometric on [0.001, 0.5] per step.
        out_features: number of outputs; None is `features`. A number other than `state_size` needs the matrix E, else y = h.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    `dt` of forward and step multiplies the time of a step, which is then exact for inputs held over it.

    Memory of a training step, in numbers: x, y, their gradients, and 6 T state_size for each sequence.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.MinGRU(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    recurrent_names = ("w",)
    gated = True

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        parameterization: str | AbstractParameterization = "softplus",
        activation: str = "identity",
        eigenvalues: Float[Tensor, " state"] | None = None,
        out_features: int | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(
            parameterization=parameterization, activation=activation, eigenvalues=eigenvalues, out_features=out_features
        )
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        if activation not in CANDIDATE_ACTIVATIONS:
            raise unknown_name("activation", activation, CANDIDATE_ACTIVATIONS)
        self.activation = activation
        start = starting_values(eigenvalues, lambda: default_rates(state_size))
        lam = as_eigenvalues(start, (state_size,), real=True, layer="MinGRU")
        self.parameterization, self.w = free_weight(parameterization, "continuous", lam)
        self.W = uniform(2 * state_size, features, fan_in=features)  # rows of the gate first
        self.b = nn.Parameter(torch.zeros(state_size))

    def eigenvalues(self) -> Float[Tensor, " state"]:
        return own_values(self.parameterization, self.w)

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Float[Tensor, " state"]) -> None:
        """Moves the bias of the gate so that the eigenvalues on zero input are `lam`, (state_size,)."""
        given = as_eigenvalues(lam, (self.state_size,), real=True, layer="MinGRU")
        self.w.copy_(self.parameterization.inverse(given.to(self.w)))

    def choices(self) -> dict[str, Any]:
        made = {"parameterization": self.parameterization.key, "activation": self.activation}
        return {**made, "out_features": self.out_features}

    def _steps(self, x: Tensor) -> Tensor:
        gate = functional.linear(x, self.W[: self.state_size], self.w)
        return own_values(self.parameterization, gate) / self.eigenvalues()

    def _motion(self, x: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        gate, candidate = project(x, self.W, torch.cat((self.w, self.b))).chunk(2, -1)
        if dt is None and self.parameterization.key == "softplus":
            a, z = torch.sigmoid(-gate), torch.sigmoid(gate)
        else:
            a, z = factor_and_share(own_values(self.parameterization, gate), dt)
        return a, z * ACTIVATIONS[self.activation](candidate)
