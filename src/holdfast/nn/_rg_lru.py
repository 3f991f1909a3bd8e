"""The real-gated linear recurrent unit of Griffin and RecurrentGemma (De et al. 2024)."""

from __future__ import annotations

from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked, positive
from holdfast.errors import ArgumentError
from holdfast.nn._initial_weights import (
    Device,
    as_eigenvalues,
    free_weight,
    mixed,
    own_values,
    placeable,
    starting_values,
    uniform,
)
from holdfast.nn._input_gated import AbstractInputGated
from holdfast.nn._lru import ring
from holdfast.nn._precision import widened
from holdfast.parameterizations import AbstractParameterization

GATE_EXPONENT = 8.0  # c of Griffin, eq. 4: the largest pace of a step
R_MIN, R_MAX = 0.9, 0.999  # factors with an open gate start between them, as Griffin's do
TRANSFORMERS_WEIGHTS = ("input_gate_weight", "input_gate_bias", "recurrent_gate_weight", "recurrent_gate_bias")


class RGLRU(AbstractInputGated):
    """h+ = a o h + sqrt(1 - a^2) o i o v with a = exp(8 r lam), v = U x, y = E h (Griffin, eq. 1-4).

    r and i are sigmoids of v, lam = f(w) < 0; Griffin's f is "softplus". Gates are block-diagonal: a state of a head is gated
    by the v of that head. The state is h, (batch, state_size); all steps together are one `holdfast.kernels.scan`.

    Args:
        features: number of input features. Where it is `state_size`, as in Griffin, there is no U and v = x.
        state_size: number of states.
        heads: blocks of the gates; it has to divide `state_size`.
        parameterization: f, by name or as an object of `holdfast.parameterizations`.
        eigenvalues: where lam starts (state_size,); None: exp(8 lam), the factor of an open gate, uniform in area between
            0.9 and 0.999.
        out_features: number of outputs; None is `features`. A number other than `state_size` needs the matrix E, else y = h.
        bidirectional: also read the sequence from its end, with weights of its own, and add the outputs.

    `dt` of forward and step multiplies r.

    RecurrentGemma stores its very first input without the factor sqrt(1 - a^2); `first_state` gives the state that starts
    this layer as that.

    Memory of a training step, in numbers: x, y, their gradients, and 10 T state_size for each sequence.

    Returns:
        `y, state = layer(x)`: outputs (batch, time, out_features), and the state after the last step.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an unknown choice.

    Example:
        >>> import torch, holdfast
        >>> layer = holdfast.nn.RGLRU(4, 16)
        >>> y, state = layer(torch.randn(2, 10, 4))
        >>> y.shape
        torch.Size([2, 10, 4])
        >>> y_t, state = layer.step(torch.randn(2, 4), state)  # one more time step
    """

    recurrent_names = ("w",)
    step_names = ("recurrent_gate_bias", "recurrent_gate_weight")

    @checked
    @placeable
    def __init__(
        self,
        features: int,
        state_size: int,
        *,
        heads: int = 1,
        parameterization: str | AbstractParameterization = "softplus",
        eigenvalues: Float[Tensor, " state"] | None = None,
        out_features: int | None = None,
        bidirectional: bool = False,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        choices: dict[str, Any] = dict(
            heads=heads, parameterization=parameterization, eigenvalues=eigenvalues, out_features=out_features
        )
        super().__init__(features, state_size, bidirectional=bidirectional, **choices)
        positive(heads=heads)
        if state_size % heads:
            raise ArgumentError(f"RGLRU: expected heads that divide state_size={state_size}, got {heads}")
        self.heads = heads
        start = starting_values(eigenvalues, lambda: ring(state_size, R_MIN, R_MAX).abs().log() / GATE_EXPONENT)
        lam = as_eigenvalues(start, (state_size,), real=True, layer="RGLRU")
        self.parameterization, self.w = free_weight(parameterization, "continuous", lam)
        width = state_size // heads
        self.U = None if features == state_size else uniform(state_size, features, fan_in=features)
        self.recurrent_gate_weight, self.input_gate_weight = (
            uniform(heads, width, width, fan_in=width) for _ in range(2)
        )
        self.recurrent_gate_bias, self.input_gate_bias = (nn.Parameter(torch.zeros(state_size)) for _ in range(2))

    @classmethod
    def from_transformers(cls, unit: nn.Module) -> Self:
        """A layer with the weights of RecurrentGemma's recurrent unit, in its dtype and on its device.

        Args:
            unit: the `temporal_block.rg_lru` of a recurrent layer of a transformers RecurrentGemma.
        """
        heads, width = _sizes_of(unit)
        own = cls(heads * width, heads * width, heads=heads).to(unit.recurrent_param)  # type: ignore[arg-type]
        with torch.no_grad():
            own.w.copy_(unit.recurrent_param)  # type: ignore[arg-type]
            for name in TRANSFORMERS_WEIGHTS:
                ours = getattr(own, name)
                ours.copy_(getattr(unit, name).reshape(ours.shape))
        return own

    @torch.no_grad()
    def to_transformers(self, unit: nn.Module) -> None:
        """Writes the weights into RecurrentGemma's recurrent unit of the same sizes.

        Args:
            unit: the module that is written to.
        """
        heads, width = _sizes_of(unit)
        if self.U is not None or self.E is not None or (self.heads, self.state_size) != (heads, heads * width):
            raise ArgumentError(
                f"RGLRU: expected a layer of {heads * width} features, states and outputs with {heads} heads, got {self}"
            )
        lam = self.eigenvalues()
        unit.recurrent_param.copy_(-lam + torch.log(-torch.expm1(lam)))  # type: ignore[operator]
        for name in TRANSFORMERS_WEIGHTS:
            theirs = getattr(unit, name)
            theirs.copy_(getattr(self, name).reshape(theirs.shape))

    def eigenvalues(self) -> Float[Tensor, " state"]:
        return own_values(self.parameterization, self.w)

    @torch.no_grad()
    def set_eigenvalues_(self, lam: Float[Tensor, " state"]) -> None:
        """Moves the free weights so that lam is this, (state_size,)."""
        given = as_eigenvalues(lam, (self.state_size,), real=True, layer="RGLRU")
        self.w.copy_(self.parameterization.inverse(given.to(self.w)))

    def choices(self) -> dict[str, Any]:
        made = {"heads": self.heads, "parameterization": self.parameterization.key}
        return {**made, "out_features": self.out_features}

    def step_size(self) -> Tensor:
        return GATE_EXPONENT * torch.sigmoid(widened(self.recurrent_gate_bias))

    def first_state(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch state"]:
        """The state before a step on x after which the state is i o v, as in RecurrentGemma at position 0.

        Args:
            x: inputs of the first step.
        """
        a, gain, gated = self._parts(x, None)
        return (1 - gain) * gated / a.clamp(min=torch.finfo(a.dtype).tiny)

    def _steps(self, x: Tensor) -> Tensor:
        recurrent, _ = self._gates(mixed(x, self.U))
        return GATE_EXPONENT * recurrent

    def _motion(self, x: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor]:
        a, gain, gated = self._parts(x, dt)
        return a, gain * gated

    def _parts(self, x: Tensor, dt: Tensor | float | None) -> tuple[Tensor, Tensor, Tensor]:
        """a, sqrt(1 - a^2) and i o v."""
        v = mixed(x, self.U)
        recurrent, entering = self._gates(v)
        exponent = recurrent * (GATE_EXPONENT * self.eigenvalues())
        exponent = exponent if dt is None else dt * exponent
        # a step of no time has a = 1: the slope of the root is infinite there and would meet a factor 0
        lost = -torch.expm1(2 * exponent)
        gain = lost.clamp(min=torch.finfo(lost.dtype).tiny).sqrt()
        return torch.exp(exponent), gain, entering * v

    def _gates(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """r and i, (..., state_size) each."""
        parts = v.unflatten(-1, (self.heads, -1))
        return tuple(
            torch.sigmoid(_blockwise(parts, weight) + bias)
            for weight, bias in (
                (self.recurrent_gate_weight, self.recurrent_gate_bias),
                (self.input_gate_weight, self.input_gate_bias),
            )
        )  # type: ignore[return-value]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}"


def _blockwise(parts: Tensor, weight: Tensor) -> Tensor:
    """(..., heads, width) by a matrix (width, width) of each head, flat again."""
    if len(weight) == 1:
        return functional.linear(parts.squeeze(-2), weight[0].mT)
    return torch.einsum("...hi,hij->...hj", parts, weight).flatten(-2)


def _sizes_of(unit: Any) -> tuple[int, int]:
    """Heads and width of RecurrentGemma's unit."""
    absent = [name for name in ("recurrent_param", *TRANSFORMERS_WEIGHTS) if not hasattr(unit, name)]
    if absent:
        raise ArgumentError(
            "RGLRU: expected transformers' RecurrentGemmaRglru (model.model.layers[i].temporal_block.rg_lru), got "
            f"{type(unit).__name__} without {', '.join(absent)}"
        )
    heads, width, _ = unit.input_gate_weight.shape
    return heads, width
