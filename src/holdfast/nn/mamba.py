"""The whole Mamba block: projection, short convolution, selective scan, gate, projection; weights as in transformers."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked, positive
from holdfast._types import Time
from holdfast.errors import ArgumentError
from holdfast.kernels import causal_conv, selective
from holdfast.nn.base import AbstractRecurrent, as_eigenvalues, check_step_range, uniform, zero_after
from holdfast.nn.s4d import initial_modes
from holdfast.parameterizations import AbstractParameterization, fit_constants, get


class Mamba(AbstractRecurrent):
    """The Mamba block (Gu and Dao, 2023, figure 3), as transformers' MambaMixer computes it.

    [x | z] = W_in u; x = silu(conv(x)); [r | B | C] = W_x x; Delta = softplus(W_dt r + bias);
    h+ = exp(Delta A) h + Delta B x, y = (C h + D x) silu(z); the output is W_out y. A = f(w) is real.
    State: (batch, inner, state_size + taps - 1), the scan's states and then the convolution's last inputs.

    Args:
        features: number of input and of output features.
        state_size: states of each inner channel.
        expand: inner channels for each feature.
        taps: length of the convolution.
        rank: rank of W_dt; None is features / 16, rounded up.
        bias: whether the projections in and out have a bias.
        conv_bias: whether the convolution has one.
        parameterization: f, by name or as an object of `holdfast.parameterizations`; "exp" is Mamba's own.
        dt_min: smallest Delta; on zero input the channels' Delta start log-uniform between it and `dt_max`.
        dt_max: largest Delta at the start.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    `dt` of forward and step multiplies Delta. Memory of a training step: sequences of the inner size and a state every 64
    steps; nothing of size T inner state_size is stored.
    """

    recurrent_names = ("w",)
    selective = True
    time: Time = "continuous"

    @checked
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
        bidirectional: bool = False,
    ) -> None:
        choices: dict[str, Any] = dict(
            expand=expand, taps=taps, rank=rank, bias=bias, conv_bias=conv_bias, parameterization=parameterization,
            dt_min=dt_min, dt_max=dt_max,
        )  # fmt: skip
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        check_step_range(dt_min, dt_max)
        positive(expand=expand, taps=taps, rank=rank)
        self.inner, self.taps = expand * features, taps
        self.rank = rank or math.ceil(features / 16)
        lam = initial_modes("real", state_size).expand(self.inner, state_size)
        self.parameterization = fit_constants(get(parameterization, time="continuous"), lam)
        self.w = nn.Parameter(self.parameterization.inverse(lam.to(torch.get_default_dtype())))
        self.in_proj = nn.Linear(features, 2 * self.inner, bias=bias)
        self.conv_weight = uniform(self.inner, taps, fan_in=taps)
        self.conv_bias = uniform(self.inner, fan_in=taps) if conv_bias else None
        self.x_proj = nn.Linear(self.inner, self.rank + 2 * state_size, bias=False)
        self.dt_proj = nn.Linear(self.rank, self.inner)
        target = torch.exp(torch.rand(self.inner) * math.log(dt_max / dt_min) + math.log(dt_min))
        with torch.no_grad():  # softplus of the bias is the target
            self.dt_proj.bias.copy_(target + torch.log(-torch.expm1(-target)))
        self.D = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, features, bias=bias)

    @classmethod
    def from_transformers(cls, mixer: nn.Module) -> Self:
        """A block with the weights of transformers' MambaMixer, in its dtype and on its device.

        Args:
            mixer: the `mixer` of a layer of a transformers Mamba model; its activation has to be silu.
        """
        _check_mixer(mixer)
        rank, inner = mixer.dt_proj.in_features, mixer.in_proj.out_features // 2  # type: ignore[union-attr, operator]
        features = int(mixer.in_proj.in_features)  # type: ignore[union-attr, arg-type]
        if inner % features:
            raise ArgumentError(
                f"Mamba: expected inner channels in whole multiples of {features} features, came {inner}"
            )
        own = cls(
            features, mixer.A_log.shape[1], expand=inner // features, taps=mixer.conv1d.weight.shape[-1],  # type: ignore[union-attr, index, arg-type]
            rank=rank, bias=mixer.in_proj.bias is not None, conv_bias=mixer.conv1d.bias is not None,  # type: ignore[union-attr, arg-type]
        ).to(mixer.A_log)  # type: ignore[arg-type]  # fmt: skip
        own._copy_weights(mixer, back=False)
        return own

    def to_transformers(self, mixer: nn.Module) -> None:
        """Writes the weights into transformers' MambaMixer of the same sizes; A must be negative, as Mamba's is.

        Args:
            mixer: the module that is written to.
        """
        _check_mixer(mixer)
        self._copy_weights(mixer, back=True)

    @torch.no_grad()
    def _copy_weights(self, mixer: Any, *, back: bool) -> None:
        pairs = [(self.conv_weight, mixer.conv1d.weight.squeeze(1)), (self.D, mixer.D)]
        pairs += [(self.conv_bias, mixer.conv1d.bias)] if self.conv_bias is not None else []
        for name in ("in_proj", "x_proj", "dt_proj", "out_proj"):
            theirs = dict(getattr(mixer, name).named_parameters())
            pairs += [(value, theirs[key]) for key, value in getattr(self, name).named_parameters()]
        for ours, theirs in pairs:
            (theirs if back else ours).copy_(ours if back else theirs)
        if back:
            mixer.A_log.copy_(torch.log(-self.eigenvalues()))
        else:
            self.set_eigenvalues_(-torch.exp(mixer.A_log))

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.inner, self.state_size + self.taps - 1)

    def eigenvalues(self) -> Float[Tensor, "inner state"]:
        return self.parameterization(self.w)

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Float[Tensor, "inner state"]) -> None:
        """Moves the free weights so that A is `lam`, (inner, state_size)."""
        given = as_eigenvalues(lam, (self.inner, self.state_size), real=True, layer="Mamba")
        self.w.copy_(self.parameterization.inverse(given.to(self.w)))

    @property
    def remarks(self) -> tuple[str, ...]:
        return ("the step size depends on the input; A < 0 keeps every step stable, whatever it is",)

    def _select(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Delta before bias and softplus, (..., inner), B and C, (..., state_size)."""
        low, b, c = self.x_proj(x).split([self.rank, self.state_size, self.state_size], dim=-1)
        return functional.linear(low, self.dt_proj.weight), b, c

    def _step_sizes(self, raw: Tensor, dt: Tensor | float | None) -> Tensor:
        delta = functional.softplus(raw + self.dt_proj.bias)
        return delta if dt is None else delta * (dt.unsqueeze(-1) if isinstance(dt, Tensor) else dt)

    def _run(
        self, x: Tensor, state: Tensor | None, lengths: Tensor | None, dt: Tensor | float | None, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        if reverse:
            order = _backwards(x, lengths)
            turned = dt.gather(1, order) if isinstance(dt, Tensor) else dt
            y, last = self._run(_taken(x, order), state, lengths, turned, False)
            return _taken(y, order), last
        h0, before = (None, None) if state is None else state.split((self.state_size, self.taps - 1), dim=-1)
        u, z = self.in_proj(x).chunk(2, dim=-1)
        u, inputs = causal_conv(u, self.conv_weight, self.conv_bias, before, silu=True, lengths=lengths)
        raw, b, c = self._select(u)
        inside = dt is None
        delta = raw if inside else self._step_sizes(raw, dt)
        y, last = selective(
            u, delta, self.eigenvalues(), b, c, self.D, z=z, dt_bias=self.dt_proj.bias if inside else None,
            dt_softplus=inside, h0=h0, lengths=lengths,
        )  # fmt: skip
        return zero_after(self.out_proj(y), lengths), torch.cat((last, inputs), -1)

    def _step(self, x: Tensor, state: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        h, before = state.split((self.state_size, self.taps - 1), dim=-1)
        u, z = self.in_proj(x).chunk(2, dim=-1)
        window = torch.cat((before, u.unsqueeze(-1)), -1)
        u = (window * self.conv_weight).sum(-1)
        u = functional.silu(u if self.conv_bias is None else u + self.conv_bias)
        raw, b, c = self._select(u)
        delta = self._step_sizes(raw, dt).unsqueeze(-1)
        h = torch.exp(delta * self.eigenvalues()) * h + delta * u.unsqueeze(-1) * b.unsqueeze(-2)
        y = ((h @ c.unsqueeze(-1)).squeeze(-1) + self.D * u) * functional.silu(z)
        return self.out_proj(y), torch.cat((h, window[..., 1:]), -1)


def _backwards(x: Tensor, lengths: Tensor | None) -> Tensor:
    """For each row its steps from the last to the first, (batch, time); those after its end stay where they are."""
    steps = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    if lengths is None:
        return x.shape[1] - 1 - steps
    ends = lengths.unsqueeze(-1)
    return torch.where(steps < ends, ends - 1 - steps, steps)


def _taken(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order.unsqueeze(-1).expand(x.shape))


def _check_mixer(mixer: nn.Module) -> None:
    names = ("in_proj", "conv1d", "x_proj", "dt_proj", "A_log", "D", "out_proj")
    absent = [name for name in names if not hasattr(mixer, name)]
    if absent:
        raise ArgumentError(
            f"Mamba: expected transformers' MambaMixer (model.backbone.layers[i].mixer), came {type(mixer).__name__} "
            f"without {', '.join(absent)}"
        )
    activation = getattr(mixer, "activation", "silu")
    if activation not in ("silu", "swish"):
        raise ArgumentError(f"Mamba: expected the activation silu, came {activation!r}; other ones have no kernel here")
