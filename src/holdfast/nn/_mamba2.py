"""The whole Mamba-2 block: heads with one rate each, and a norm behind the gate; weights as in transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError
from holdfast.kernels import causal_conv
from holdfast.kernels.selective import selective_heads
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
from holdfast.nn._precision import projected, widened
from holdfast.nn._s4d import initial_modes
from holdfast.parameterizations import AbstractParameterization


class Mamba2(AbstractMamba):
    """The Mamba-2 block (Dao and Gu, "Transformers are SSMs", 2024, figure 6), as transformers' Mamba2Mixer computes it.

    [z | xBC | r] = W_in u; [x | B | C] = silu(conv(xBC)); Delta = softplus(r + bias), one for each head; for the matrix h
    of each head h+ = exp(Delta A) h + Delta x B^T, y = h C + D x; the output is W_out rmsnorm(y silu(z)). A = f(w) is real,
    one rate for each head. State: (batch, inner state_size + channels (taps - 1)), the heads' matrices and then the
    convolution's last inputs, where channels = inner + 2 groups state_size.

    Args:
        features: number of input features.
        state_size: columns of the matrix of each head.
        expand: inner channels for each feature.
        head_size: channels of one head, rows of its matrix; it divides the inner channels.
        groups: B and C are shared by the heads of a group; they divide the heads.
        taps: length of the convolution.
        bias: whether the projections in and out have a bias.
        conv_bias: whether the convolution has one.
        eps: added under the root of the norm.
        parameterization: f, by name or as an object of `holdfast.parameterizations`; "exp" is Mamba's own.
        dt_min: smallest Delta; on zero input the heads' Delta start log-uniform between it and `dt_max`.
        dt_max: largest Delta at the start.
        out_features: number of outputs; None is `features`.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    `dt` of forward and step multiplies Delta. Memory of a training step: sequences of the inner size, for each head a
    matrix of 64 numbers per step, and a state every 64 steps.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.Mamba2(4, 16, head_size=4)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    mixer_class = "Mamba2Mixer"
    step_names = ("dt_bias", None)
    shared_modules = ("in_proj", "norm", "out_proj")
    shared_weights = ("D", "dt_bias")

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int = 128,
        *,
        expand: int = 2,
        head_size: int = 64,
        groups: int = 1,
        taps: int = 4,
        bias: bool = False,
        conv_bias: bool = True,
        eps: float = 1e-5,
        parameterization: str | AbstractParameterization = "exp",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        out_features: int | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(
            expand=expand, head_size=head_size, groups=groups, taps=taps, bias=bias, conv_bias=conv_bias, eps=eps,
            parameterization=parameterization, dt_min=dt_min, dt_max=dt_max, out_features=out_features,
        )  # fmt: skip
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        check_step_range(dt_min, dt_max)
        positive(expand=expand, head_size=head_size, groups=groups, taps=taps)
        self.inner, self.head_size, self.groups, self.taps = expand * features, head_size, groups, taps
        self.heads = self.inner // head_size
        if self.heads * head_size != self.inner or self.heads % groups:
            raise ArgumentError(
                f"Mamba2: expected head_size to divide the {self.inner} inner channels (expand * features) and groups to "
                f"divide the heads, got head_size={head_size}, groups={groups}"
            )
        # the convolution runs over x, B and C together
        self.channels = self.inner + 2 * groups * state_size
        lam = starting_values(None, lambda: initial_modes("real", self.heads))
        self.parameterization, self.w = free_weight(parameterization, "continuous", lam)
        self.in_proj = nn.Linear(features, self.inner + self.channels + self.heads, bias=bias)
        self.conv_weight = uniform(self.channels, taps, fan_in=taps)
        self.conv_bias = uniform(self.channels, fan_in=taps) if conv_bias else None
        self.dt_bias = nn.Parameter(step_bias(self.heads, dt_min, dt_max))
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.RMSNorm(self.inner, eps=eps)
        self.out_proj = nn.Linear(self.inner, self.out_features, bias=bias)

    @classmethod
    def _sizes_of(cls, mixer: Any) -> tuple[int, int, dict[str, Any]]:
        low, high = getattr(mixer, "time_step_limit", (0.0, float("inf")))
        # a limit would change the steps that are computed, silently
        if low > 0 or high < float("inf"):
            raise ArgumentError(
                f"Mamba2: expected time_step_limit (0, inf), no limit on the step sizes, got {(low, high)}; keep "
                "transformers' mixer for this model"
            )
        features, inner = mixer.in_proj.in_features, mixer.norm.weight.shape[0]
        return features, mixer.ssm_state_size, {
            "expand": whole_expansion("Mamba2", inner, features), "head_size": inner // mixer.A_log.shape[0],
            "groups": mixer.n_groups, "taps": mixer.conv1d.weight.shape[-1], "bias": mixer.in_proj.bias is not None,
            "conv_bias": mixer.conv1d.bias is not None, "eps": mixer.norm.variance_epsilon,
        }  # fmt: skip

    @property
    def state_shape(self) -> tuple[int, ...]:
        # flat: heads and convolution have no dimension in common
        return (self.inner * self.state_size + self.channels * (self.taps - 1),)

    def choices(self) -> dict[str, Any]:
        return {
            "expand": self.inner // self.features, "head_size": self.head_size, "groups": self.groups,
            "taps": self.taps, "bias": self.in_proj.bias is not None, "conv_bias": self.conv_bias is not None,
            "eps": self.norm.eps, "parameterization": self.parameterization.key, "out_features": self.out_features,
        }  # fmt: skip

    def _unpacked(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The heads' matrices (batch, heads, head_size, state_size) and the convolution's last inputs."""
        h, before = state.split((self.inner * self.state_size, self.channels * (self.taps - 1)), dim=-1)
        h = h.unflatten(-1, (self.heads, self.head_size, self.state_size))
        return h, before.unflatten(-1, (self.channels, self.taps - 1))

    def _packed(self, h: Tensor, before: Tensor) -> Tensor:
        return torch.cat((h.flatten(1), before.flatten(1)), -1)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gate, what is convolved, and Delta before bias and softplus."""
        z, u, raw = projected(x, self.in_proj).split((self.inner, self.channels, self.heads), dim=-1)
        return z, u, raw

    def _select(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (..., heads, head_size), B and C (..., groups, state_size)."""
        width = self.groups * self.state_size
        x, b, c = u.split((self.inner, width, width), dim=-1)
        x = x.unflatten(-1, (self.heads, self.head_size))
        return x, *(v.unflatten(-1, (self.groups, self.state_size)) for v in (b, c))

    def step_size(self) -> Tensor:
        return functional.softplus(held_bias(self.dt_bias))

    def _read(self, y: Tensor, z: Tensor) -> Tensor:
        # the norm's mean of squares takes float32
        normed = self.norm(widened(y).flatten(-2) * functional.silu(widened(z)))
        return projected(normed.to(z.dtype), self.out_proj)

    def _ahead(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None,
        resets: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        h0, before = (None, None) if state is None else self._unpacked(state)
        z, u, raw = self._project(x)
        u, inputs = causal_conv(u, self.conv_weight, self.conv_bias, before, silu=True, lengths=lengths, resets=resets)
        delta = input_steps(raw, self.dt_bias, dt)
        inner, b, c = self._select(u)
        y, last = selective_heads(inner, delta, self.eigenvalues(), b, c, self.D, h0=h0, lengths=lengths, resets=resets)
        return zero_after(self._read(y, z), lengths), self._packed(last, inputs)

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        h, before = self._unpacked(state)
        z, u, raw = self._project(x)
        u, before = self._convolve(before, u)
        inner, b, c = self._select(u)
        # the heads of a group read and write by the same vectors
        b, c = (v.repeat_interleave(self.heads // self.groups, 1).unsqueeze(2) for v in (b, c))
        delta = input_steps(raw, self.dt_bias, dt).unsqueeze(-1)
        factor = torch.exp(delta * self.eigenvalues().unsqueeze(-1)).unsqueeze(-1)
        h = factor * h + (delta * inner).unsqueeze(-1) * b
        y = (h * c).sum(-1) + self.D.unsqueeze(-1) * inner
        return self._read(y, z), self._packed(h, before)
