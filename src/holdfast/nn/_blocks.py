"""Blocks that a recurrent layer is stacked in: normalized and gated, Hyena-type, or nothing but tanh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked, positive, probability
from holdfast.errors import ArgumentError, ShapeError
from holdfast.kernels._common import checks
from holdfast.kernels._common.segments import cleared, packed_bounds
from holdfast.kernels.causal_conv import causal_conv
from holdfast.kernels.gate import gate, gate_reference
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._call_arguments import Lengths, as_lengths
from holdfast.nn._initial_weights import Device, placeable
from holdfast.nn._precision import applied
from holdfast.nn._tiled_mlp import tiled_mlp


class GatedMLP(nn.Module):
    """Maps each position by value * sigmoid(gate), both from one projection of gelu(x).

    Args:
        width: features in and out.
        expansion: above 1, value and gate are this many times as wide and a second projection leads back to `width`.
        device: of the weights; None is the default one.
        dtype: of the weights, a floating one; None is the default one.
    """

    @checked
    @placeable
    def __init__(
        self,
        width: int,
        expansion: int = 1,
        *,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        positive(width=width, expansion=expansion)
        self.up = nn.Linear(width, 2 * expansion * width)
        self.down = nn.Linear(expansion * width, width) if expansion > 1 else None

    def forward(self, x: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
        """The gated projection of each position of x (..., width)."""
        # the tanh form: torch hands the exact one to oneDNN, 18 us for the 64 numbers of one streamed step
        y = functional.glu(applied(self.up, functional.gelu(x, approximate="tanh")), dim=-1)
        return y if self.down is None else applied(self.down, y)


class GatedBlock(nn.Module):
    """x + dropout(gated MLP(mixer(norm(x)))), the block of S4's stacks.

    Args:
        mixer: the recurrent layer; its `features` are the block's width.
        expansion: of the gated MLP.
        dropout: probability that a number of the added part is set to 0 in training.
        device: of the block's own weights; None is the default one.
        dtype: of the block's own weights, a floating one; None is the default one.
    """

    @checked
    @placeable
    def __init__(
        self,
        mixer: AbstractRecurrent,
        *,
        expansion: int = 1,
        dropout: float = 0.0,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        probability(dropout=dropout)
        _check_mixer("GatedBlock", mixer)
        self.norm = nn.LayerNorm(mixer.features)
        self.mixer = mixer
        self.mlp = GatedMLP(mixer.features, expansion)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: Any = None, **how: Any) -> tuple[Tensor, Any]:
        """The block over a whole sequence: outputs like x, and the mixer's state at the end.

        Args:
            x: inputs (batch, time, width).
            state: the mixer's state before the first step; None is zeros.
            how: `lengths`, `dt`, `resets`, `cu_seqlens` and `return_state` of the mixer.
        """
        y, state = self.mixer(self.norm(x), state, **how)
        return self._add(x, y, gate), state

    def step(self, x: Tensor, state: Any = None, **how: Any) -> tuple[Tensor, Any]:
        """One step of the block: outputs like x, and the mixer's state after it.

        Args:
            x: inputs of this step (batch, width).
            state: the mixer's state before the step; None is zeros.
            how: `dt` and `resets` of the mixer.
        """
        y, state = self.mixer.step(self.norm(x), state, **how)
        return self._add(x, y, gate_reference), state

    def initial_state(self, batch: int) -> Tensor:
        """The mixer's zeros, for a number of sequences `batch`."""
        return self.mixer.initial_state(batch)

    def _add(self, x: Tensor, y: Tensor, gated: Callable[..., Tensor]) -> Tensor:
        mlp = self.mlp
        # the fused kernel has neither a second projection nor dropout
        if mlp.down is None and not (self.training and self.dropout.p):
            return gated(y, x, mlp.up.weight, mlp.up.bias)
        return x + self.dropout(mlp(y))


class NaiveBlock(nn.Module):
    """tanh(mixer(x)): the stack of "State-space Models with Layer-wise Nonlinearity", without anything else.

    Args:
        mixer: the recurrent layer.
    """

    @checked
    def __init__(self, mixer: AbstractRecurrent) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, state: Any = None, **how: Any) -> tuple[Tensor, Any]:
        """The block over a whole sequence: outputs, and the mixer's state at the end.

        Args:
            x: inputs (batch, time, width).
            state: the mixer's state before the first step; None is zeros.
            how: `lengths`, `dt`, `resets`, `cu_seqlens` and `return_state` of the mixer.
        """
        y, state = self.mixer(x, state, **how)
        return torch.tanh(y), state

    def step(self, x: Tensor, state: Any = None, **how: Any) -> tuple[Tensor, Any]:
        """One step of the block: outputs, and the mixer's state after it.

        Args:
            x: inputs of this step (batch, width).
            state: the mixer's state before the step; None is zeros.
            how: `dt` and `resets` of the mixer.
        """
        y, state = self.mixer.step(x, state, **how)
        return torch.tanh(y), state

    def initial_state(self, batch: int) -> Tensor:
        """The mixer's zeros, for a number of sequences `batch`."""
        return self.mixer.initial_state(batch)


class HyenaBlock(nn.Module):
    """Hyena of order 2 with a state-space model as its long filter, then an MLP, each with norm and residual.

    v, p, q = short causal convolution of three projections; q * mixer(p * v) (StableSSM, Sec. 4.2 and App. C). The
    state is a pair: the last two projected inputs, and the mixer's state.

    Args:
        mixer: the recurrent layer; its `features` are the block's width.
        expansion: how many times wider the MLP is inside.
        dropout: probability that a number of an added part is set to 0 in training.
        device: of the block's own weights; None is the default one.
        dtype: of the block's own weights, a floating one; None is the default one.
    """

    reach = 3  # of the short convolution

    @checked
    @placeable
    def __init__(
        self,
        mixer: AbstractRecurrent,
        *,
        expansion: int = 4,
        dropout: float = 0.0,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        positive(expansion=expansion)
        probability(dropout=dropout)
        _check_mixer("HyenaBlock", mixer)
        width = mixer.features
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.short = nn.Conv1d(3 * width, 3 * width, self.reach, groups=3 * width)
        self.mixer = mixer
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, state: Any = None, *, lengths: Lengths | None = None, resets: Tensor | None = None,
        cu_seqlens: Tensor | None = None, return_state: bool = True, **how: Any,
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:  # fmt: skip
        """The block over a whole sequence: outputs like x, and its state at the end.

        Args:
            x: inputs (batch, time, width).
            state: the block's state before the first step, a pair; None is zeros.
            lengths: number of steps of each sequence (batch,).
            resets: bool (batch, time): a new sequence begins at each marked step.
            cu_seqlens: bounds (sequences + 1,) of the sequences in a batch of one row.
            return_state: whether the state at the end is wanted; otherwise None comes in its place.
            how: `dt` of the mixer.
        """
        z = applied(self.project, self.norm(x))
        sequences = z.shape[0] if cu_seqlens is None else len(packed_bounds("HyenaBlock", cu_seqlens, z)) - 1
        past, inner = self._split(z, state, sequences)
        cuts: dict[str, Any] = {"lengths": as_lengths(lengths, x), "resets": resets, "cu_seqlens": cu_seqlens}
        seen, past = causal_conv(z, self.short.weight[:, 0], self.short.bias, None if past is None else past.mT, **cuts)
        past = past.mT
        v, p, q = seen.chunk(3, dim=-1)
        y, inner = self.mixer(p * v, inner, return_state=return_state, **cuts, **how)
        return self._finish(x, q * y), (past, inner) if return_state else None

    def step(
        self, x: Tensor, state: Any = None, *, resets: Tensor | None = None, **how: Any
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step of the block: outputs like x, and its state after it.

        Args:
            x: inputs of this step (batch, width).
            state: the block's state before the step, a pair; None is zeros.
            resets: bool (batch,): the state of a marked row is zero before the step.
            how: `dt` of the mixer.
        """
        z = self.project(self.norm(x)).unsqueeze(1)
        past, inner = self._split(z, state, z.shape[0])
        if resets is not None and past is not None:
            past = cleared("HyenaBlock", past, resets)
        seen, past = self._short(z, past)
        v, p, q = seen.squeeze(1).chunk(3, dim=-1)
        y, inner = self.mixer.step(p * v, inner, resets=resets, **how)
        return self._finish(x, q * y), (past, inner)

    def initial_state(self, batch: int) -> tuple[Tensor, Tensor]:
        """Zeros for a number of sequences `batch`: inputs of the short convolution, and the mixer's."""
        weight = self.short.weight
        return weight.new_zeros(batch, self.reach - 1, weight.shape[0]), self.mixer.initial_state(batch)

    def _short(self, z: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """The short convolution at one step, in operators that exporters know, and the inputs before the next one."""
        before = z.new_zeros(z.shape[0], self.reach - 1, z.shape[-1]) if past is None else past.to(z.dtype)
        seen = torch.cat([before, z], dim=1)
        assert self.short.bias is not None
        weight, y = self.short.weight.to(seen.dtype), self.short.bias.to(seen.dtype)
        for k in range(self.reach):
            y = torch.addcmul(y, seen[:, k : k + 1], weight[:, 0, k])
        return y, seen[:, 1:]

    def _split(self, z: Tensor, state: Any, sequences: int) -> tuple[Tensor | None, Tensor | None]:
        past = (sequences, self.reach - 1, z.shape[-1])
        if state is None:
            return None, None
        if not isinstance(state, tuple) or len(state) != 2 or getattr(state[0], "shape", None) != past:
            raise ShapeError(
                f"expected the state of a block, a pair that begins with a tensor of shape {past}, got "
                f"{checks.describe(state)}; pass a state that the block returned, or leave it out"
            )
        return state

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(applied(self.out, mixed))
        return x + self.dropout(tiled_mlp(self.mlp, self.mlp_norm(x)))


def _check_mixer(name: str, mixer: AbstractRecurrent) -> None:
    if mixer.out_features != mixer.features:
        raise ArgumentError(
            f"{name}: expected a mixer with as many outputs as features, got {mixer.features} features and "
            f"{mixer.out_features} outputs; leave out_features out"
        )
