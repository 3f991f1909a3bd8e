"""Blocks that a recurrent layer is stacked in: normalised and gated, Hyena-type, or nothing but tanh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast._arguments import checked, positive
from holdfast.errors import ShapeError
from holdfast.kernels.gate import gate, gate_reference
from holdfast.nn.base import AbstractRecurrent


class GatedMLP(nn.Module):
    """gelu, then value * sigmoid(gate) of one projection, then a second one back where `expansion` is above 1."""

    @checked
    def __init__(self, width: int, expansion: int = 1) -> None:
        super().__init__()
        positive(width=width, expansion=expansion)
        self.up = nn.Linear(width, 2 * expansion * width)
        self.down = nn.Linear(expansion * width, width) if expansion > 1 else None

    def forward(self, x: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
        """The gated projection of each position."""
        # the tanh form: torch hands the exact one to oneDNN, 18 us for the 64 numbers of one streamed step
        y = functional.glu(self.up(functional.gelu(x, approximate="tanh")), dim=-1)
        return y if self.down is None else self.down(y)


class GatedBlock(nn.Module):
    """x + dropout(gated MLP(mixer(norm(x))))."""

    @checked
    def __init__(self, mixer: AbstractRecurrent, *, expansion: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(mixer.features)
        self.mixer = mixer
        self.mlp = GatedMLP(mixer.features, expansion)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: Any = None, **how: Any) -> tuple[Tensor, Any]:
        """A whole sequence."""
        y, state = self.mixer(self.norm(x), state, **how)
        return self._add(x, y, gate), state

    def step(self, x: Tensor, state: Any = None, **how: Any) -> tuple[Tensor, Any]:
        """One step."""
        y, state = self.mixer.step(self.norm(x), state, **how)
        return self._add(x, y, gate_reference), state

    def _add(self, x: Tensor, y: Tensor, gated: Callable[..., Tensor]) -> Tensor:
        mlp = self.mlp
        if mlp.down is None and not (self.training and self.dropout.p):
            return gated(y, x, mlp.up.weight, mlp.up.bias)
        return x + self.dropout(mlp(y))


class NaiveBlock(nn.Module):
    """tanh(mixer(x)): the stack of "State-space Models with Layer-wise Nonlinearity", without anything else."""

    @checked
    def __init__(self, mixer: AbstractRecurrent) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, state: Any = None, **how: Any) -> tuple[Tensor, Any]:
        """A whole sequence."""
        y, state = self.mixer(x, state, **how)
        return torch.tanh(y), state

    def step(self, x: Tensor, state: Any = None, **how: Any) -> tuple[Tensor, Any]:
        """One step."""
        y, state = self.mixer.step(x, state, **how)
        return torch.tanh(y), state


class HyenaBlock(nn.Module):
    """Hyena of order 2 with a state-space model as its long filter, then an MLP, each with norm and residual.

    v, p, q = short causal convolution of three projections; q * mixer(p * v) (StableSSM, Sec. 4.2 and App. C). The
    state is a pair: the last two projected inputs, and the mixer's state.
    """

    reach = 3  # of the short convolution

    @checked
    def __init__(self, mixer: AbstractRecurrent, *, expansion: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        positive(expansion=expansion)
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
        self, x: Tensor, state: Any = None, *, lengths: Tensor | None = None, **how: Any
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """A whole sequence."""
        z = self.project(self.norm(x))
        past, inner = self._split(z, state)
        seen = torch.cat([past.to(z.dtype), z], dim=1)
        v, p, q = self.short(seen.mT).mT.chunk(3, dim=-1)
        y, inner = self.mixer(p * v, inner, lengths=lengths, **how)
        past = seen[:, z.shape[1] :] if lengths is None else _last(seen, lengths, self.reach - 1)
        return self._finish(x, q * y), (past, inner)

    def step(self, x: Tensor, state: Any = None, **how: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One step."""
        z = self.project(self.norm(x)).unsqueeze(1)
        past, inner = self._split(z, state)
        seen = torch.cat([past, z], dim=1)
        assert self.short.bias is not None
        short = (seen * self.short.weight.squeeze(1).mT).sum(1) + self.short.bias
        v, p, q = short.chunk(3, dim=-1)
        y, inner = self.mixer.step(p * v, inner, **how)
        return self._finish(x, q * y), (seen[:, 1:], inner)

    def _split(self, z: Tensor, state: Any) -> tuple[Tensor, Tensor | None]:
        past = (len(z), self.reach - 1, z.shape[-1])
        if state is None:
            return z.new_zeros(past), None
        if not isinstance(state, tuple) or len(state) != 2 or getattr(state[0], "shape", None) != past:
            raise ShapeError(f"expected the state of a block as a pair that begins with a tensor of shape {past}")
        return state

    def _finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


def _last(seen: Tensor, lengths: Tensor, count: int) -> Tensor:
    """The `count` entries before each row's end; `seen` starts with `count` entries from before the sequence."""
    index = lengths.unsqueeze(-1) + torch.arange(count, device=lengths.device)
    return seen.gather(1, index.unsqueeze(-1).expand(-1, -1, seen.shape[-1]))
