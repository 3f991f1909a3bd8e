"""The minimal LSTM: forget and input gates that read the input alone and sum to 1 (Feng et al. 2024)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked
from holdfast.errors import unknown_name
from holdfast.nn._activations import ACTIVATIONS
from holdfast.nn._discretize import step_margins
from holdfast.nn._initial_weights import Device, as_eigenvalues, placeable, placed, starting_values, uniform
from holdfast.nn._input_gated import AbstractInputGated, default_rates, factor_and_share
from holdfast.nn._min_gru import CANDIDATE_ACTIVATIONS
from holdfast.nn._pace import paced
from holdfast.nn._precision import project, widened


class MinLSTM(AbstractInputGated):
    """h+ = f/(f+i) o h + i/(f+i) o c, f and i = sigmoid(W x + bias), c = sigma(W_c x + b) ("Were RNNs All We Needed?", 3.2).

    f/(f+i) = sigmoid(-u) = exp(-softplus(u)) with u = log(i / f), so that both shares sum to 1 and the state stays between
    its candidates, whatever the length. The state is h, (batch, state_size); there is no second one, and no output gate. W
    holds the rows of f, i, c in this order.

    Args:
        features: number of input features.
        state_size: number of states.
        activation: sigma: "identity", "tanh", "relu", "gelu" or "sigmoid".
        eigenvalues: where log(f/(f+i)) of zero input starts (state_size,); None: rates geometric on [0.001, 0.5] per step.
        out_features: number of outputs; None is `features`. A number other than `state_size` needs the matrix E, else y = h.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    `dt` of forward and step multiplies the time of a step, which is then exact for inputs held over it.

    Memory of a training step, in numbers: x, y, their gradients, and 9 T state_size for each sequence.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.MinLSTM(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    recurrent_names = ("forget_bias",)
    boundary_name = "forget_bias"
    boundary_form = None  # two biases decide, and no map of one of them
    step_names = ("input_bias", None)
    gated = True

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        activation: str = "identity",
        eigenvalues: Float[Tensor, " state"] | None = None,
        out_features: int | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(activation=activation, eigenvalues=eigenvalues, out_features=out_features)
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        if activation not in CANDIDATE_ACTIVATIONS:
            raise unknown_name("activation", activation, CANDIDATE_ACTIVATIONS)
        self.activation = activation
        start = starting_values(eigenvalues, lambda: default_rates(state_size))
        lam = as_eigenvalues(start, (state_size,), real=True, layer="MinLSTM").to(torch.get_default_dtype())
        # two gates alike would both be 1/2: the one that has to be the smaller is lowered
        forget, enter = (torch.zeros_like(lam) for _ in range(2))
        forget, enter = (lam, lam) if lam.is_meta else _balanced(lam, forget, enter)
        self.forget_bias, self.input_bias = placed(forget), placed(enter)
        self.W = uniform(3 * state_size, features, fan_in=features)
        self.b = nn.Parameter(torch.zeros(state_size))

    def eigenvalues(self) -> Float[Tensor, " state"]:
        """log(f/(f+i)) on zero input."""
        return -functional.softplus(_balance(widened(self.forget_bias), widened(self.input_bias)))

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Float[Tensor, " state"]) -> None:
        """Lowers or raises one of the two biases of each state so that the eigenvalues on zero input are `lam`."""
        given = as_eigenvalues(lam, (self.state_size,), real=True, layer="MinLSTM").to(self.forget_bias)
        forget, enter = _balanced(given, self.forget_bias, self.input_bias)
        self.forget_bias.copy_(forget)
        self.input_bias.copy_(enter)

    @torch.no_grad()
    def set_time_constants_(self, steps: Tensor) -> None:
        lam = self.eigenvalues()
        self.set_eigenvalues_(paced(lam, steps.to(lam.device), 1.0, "zoh"))

    @torch.no_grad()
    def margin(self) -> float:
        return -float(self.eigenvalues().max())

    @torch.no_grad()
    def step_margin(self) -> float:
        return float(step_margins(self.eigenvalues(), 1.0, "zoh").min())

    def choices(self) -> dict[str, Any]:
        return {"activation": self.activation, "out_features": self.out_features}

    def _steps(self, x: Tensor) -> Tensor:
        n = self.state_size
        forget, enter = functional.linear(x, self.W[: 2 * n], torch.cat((self.forget_bias, self.input_bias))).chunk(
            2, -1
        )
        return -functional.softplus(_balance(forget, enter)) / self.eigenvalues()

    def _motion(self, x: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        biases = torch.cat((self.forget_bias, self.input_bias, self.b))
        forget, enter, candidate = project(x, self.W, biases).chunk(3, -1)
        u = _balance(forget, enter)
        a, z = (torch.sigmoid(-u), torch.sigmoid(u)) if dt is None else factor_and_share(-functional.softplus(u), dt)
        return a, z * ACTIVATIONS[self.activation](candidate)


def _balance(forget: Tensor, enter: Tensor) -> Tensor:
    """log(i / f) of gates before their sigmoid."""
    return functional.logsigmoid(enter) - functional.logsigmoid(forget)


def _balanced(lam: Tensor, forget: Tensor, enter: Tensor) -> tuple[Tensor, Tensor]:
    """Biases with log(f/(f+i)) = lam: below 1/2 f is made of i, above it i of f, so that both stay below 1."""
    u = -lam + torch.log(-torch.expm1(lam))  # softplus(u) = -lam
    smaller_forget = functional.logsigmoid(enter) - u.clamp(min=0)
    smaller_enter = functional.logsigmoid(forget) + u.clamp(max=0)
    return torch.where(u > 0, _logit_of_log(smaller_forget), forget), torch.where(
        u > 0, enter, _logit_of_log(smaller_enter)
    )


def _logit_of_log(log_share: Tensor) -> Tensor:
    """k with log sigmoid(k) = log_share, which is below 0."""
    return log_share - torch.log(-torch.expm1(log_share))
