"""The whole Mamba block: projection, short convolution, selective scan, gate, projection; weights as in transformers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked, positive
from holdfast.kernels import causal_conv, selective
from holdfast.nn._base import zero_after
from holdfast.nn._initial_weights import (
    Device,
    check_step_range,
    free_weight,
    held_bias,
    input_steps,
    placeable,
    starting_values,
    step_bias,
    uniform,
)
from holdfast.nn._mamba_base import AbstractMamba, whole_expansion
from holdfast.nn._precision import project, projected
from holdfast.nn._s4d import initial_modes
from holdfast.parameterizations import AbstractParameterization


class Mamba(AbstractMamba):
    """The Mamba block (Gu and Dao, 2023, figure 3), as transformers' MambaMixer computes it.

    [x | z] = W_in u; x = silu(conv(x)); [r | B | C] = W_x x; Delta = softplus(W_dt r + bias);
    h+ = exp(Delta A) h + Delta B x, y = (C h + D x) silu(z); the output is W_out y. A = f(w) is real.
    State: (batch, inner, state_size + taps - 1), the scan's states and then the convolution's last inputs.

    Args:
        features: number of input features.
        state_size: states of each inner channel.
        expand: inner channels for each feature.
        taps: length of the convolution.
        rank: rank of W_dt; None is features / 16, rounded up.
        bias: whether the projections in and out have a bias.
        conv_bias: whether the convolution has one.
        parameterization: f, by name or as an object of `holdfast.parameterizations`; "exp" is Mamba's own.
        dt_min: smallest Delta; on zero input the channels' Delta start log-uniform between it and `dt_max`.
        dt_max: largest Delta at the start.
        out_features: number of outputs; None is `features`.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    `dt` of forward and step multiplies Delta. Memory of a training step: sequences of the inner size and a state every 64
    steps; nothing of size T inner state_size is stored.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.Mamba(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    mixer_class = "MambaMixer"
    step_names = ("dt_proj.bias", "dt_proj.weight")
    shared_modules = ("in_proj", "x_proj", "dt_proj", "out_proj")
    shared_weights = ("D",)

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int = 16,
        *,
        expand: int = 2,
        taps: int = 4,
        rank: int | None = None,
        bias: bool = False,
        conv_bias: bool = True,
        parameterization: str | AbstractParameterization = "exp",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        out_features: int | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(
            expand=expand, taps=taps, rank=rank, bias=bias, conv_bias=conv_bias, parameterization=parameterization,
            dt_min=dt_min, dt_max=dt_max, out_features=out_features,
        )  # fmt: skip
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        check_step_range(dt_min, dt_max)
        positive(expand=expand, taps=taps, rank=rank)
        self.inner, self.taps = expand * features, taps
        # as the reference implementation has it
        self.rank = rank or math.ceil(features / 16)
        lam = starting_values(None, lambda: initial_modes("real", state_size).expand(self.inner, state_size))
        self.parameterization, self.w = free_weight(parameterization, "continuous", lam)
        self.in_proj = nn.Linear(features, 2 * self.inner, bias=bias)
        self.conv_weight = uniform(self.inner, taps, fan_in=taps)
        self.conv_bias = uniform(self.inner, fan_in=taps) if conv_bias else None
        self.x_proj = nn.Linear(self.inner, self.rank + 2 * state_size, bias=False)
        self.dt_proj = nn.Linear(self.rank, self.inner)
        with torch.no_grad():
            self.dt_proj.bias.copy_(step_bias(self.inner, dt_min, dt_max))
        self.D = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, self.out_features, bias=bias)

    @classmethod
    def _sizes_of(cls, mixer: Any) -> tuple[int, int, dict[str, Any]]:
        features, inner = mixer.in_proj.in_features, mixer.in_proj.out_features // 2
        return features, mixer.A_log.shape[1], {
            "expand": whole_expansion("Mamba", inner, features), "taps": mixer.conv1d.weight.shape[-1],
            "rank": mixer.dt_proj.in_features, "bias": mixer.in_proj.bias is not None,
            "conv_bias": mixer.conv1d.bias is not None,
        }  # fmt: skip

    @property
    def state_shape(self) -> tuple[int, ...]:
        # one tensor holds both: the states of each channel, then the last inputs of its convolution
        return (self.inner, self.state_size + self.taps - 1)

    def choices(self) -> dict[str, Any]:
        return {
            "expand": self.inner // self.features, "taps": self.taps, "rank": self.rank,
            "bias": self.in_proj.bias is not None, "conv_bias": self.conv_bias is not None,
            "parameterization": self.parameterization.key, "out_features": self.out_features,
        }  # fmt: skip

    def _select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Delta before bias and softplus, (..., inner), B and C, (..., state_size)."""
        low, b, c = projected(x, self.x_proj).split([self.rank, self.state_size, self.state_size], dim=-1)
        return project(low, self.dt_proj.weight), b, c

    def step_size(self) -> Tensor:
        return functional.softplus(held_bias(self.dt_proj.bias)).unsqueeze(-1)

    def _step_sizes(self, raw: Tensor, dt: Tensor | float | None) -> Tensor:
        return input_steps(raw, self.dt_proj.bias, dt)

    def _ahead(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None,
        resets: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        h0, before = (None, None) if state is None else state.split((self.state_size, self.taps - 1), dim=-1)
        u, z = projected(x, self.in_proj).chunk(2, dim=-1)
        u, inputs = causal_conv(u, self.conv_weight, self.conv_bias, before, silu=True, lengths=lengths, resets=resets)
        raw, b, c = self._select(u)
        # without a dt of the caller the kernel adds the bias and takes the softplus itself: a pass over delta less
        inside = dt is None
        delta = raw if inside else self._step_sizes(raw, dt)
        y, last = selective(
            u, delta, self.eigenvalues(), b, c, self.D, z=z, dt_bias=held_bias(self.dt_proj.bias) if inside else None,
            dt_softplus=inside, h0=h0, lengths=lengths, resets=resets,
        )  # fmt: skip
        return zero_after(projected(y, self.out_proj), lengths), torch.cat((last, inputs), -1)

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        h, before = state.split((self.state_size, self.taps - 1), dim=-1)
        u, z = projected(x, self.in_proj).chunk(2, dim=-1)
        u, before = self._convolve(before, u)
        raw, b, c = self._select(u)
        delta = self._step_sizes(raw, dt).unsqueeze(-1)
        h = torch.exp(delta * self.eigenvalues()) * h + delta * u.unsqueeze(-1) * b.unsqueeze(-2)
        y = ((h @ c.unsqueeze(-1)).squeeze(-1) + self.D * u) * functional.silu(z)
        return self.out_proj(y), torch.cat((h, before), -1)
