"""What stacks of blocks share: layers by name, states as tuples, the way through a sequence and through one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from holdfast._arguments import checked
from holdfast.errors import ArgumentError, ShapeError, unknown_name
from holdfast.kernels._common import checks
from holdfast.nn._base import AbstractRecurrent, Stepper
from holdfast.nn._continuous_gru import ContinuousGRU
from holdfast.nn._continuous_rnn import ContinuousRNN
from holdfast.nn._diagonal_ssm import DiagonalSSM
from holdfast.nn._linear_rnn import LinearRNN
from holdfast.nn._lru import LRU
from holdfast.nn._mamba import Mamba
from holdfast.nn._mamba2 import Mamba2
from holdfast.nn._min_gru import MinGRU
from holdfast.nn._min_lstm import MinLSTM
from holdfast.nn._rg_lru import RGLRU
from holdfast.nn._s4d import S4D
from holdfast.nn._selective_ssm import SelectiveSSM

LAYERS: dict[str, type[AbstractRecurrent]] = {
    "diagonal": DiagonalSSM,
    "lru": LRU,
    "s4d": S4D,
    "selective": SelectiveSSM,
    "mamba": Mamba,
    "mamba2": Mamba2,
    "mingru": MinGRU,
    "minlstm": MinLSTM,
    "rglru": RGLRU,
    "linear": LinearRNN,
    "rnn": ContinuousRNN,
    "gru": ContinuousGRU,
}
LayerChoice = str | Callable[[int], AbstractRecurrent]


class AbstractStack(nn.Module):
    """Blocks one after another, with a `step` of their own; `blocks` have `step` and `initial_state`."""

    blocks: nn.ModuleList

    def _first_input(self) -> Tensor:
        """Some input of one step in a batch of one."""
        raise NotImplementedError

    @checked
    def initial_state(self, batch: int) -> tuple[Any, ...]:
        """Zeros in the shape of the state: what `forward` and `step` take where None is given.

        Args:
            batch: number of sequences.
        """
        return tuple(block.initial_state(batch) for block in self.blocks)  # type: ignore[operator]

    def stepper(self) -> Stepper:
        """`step` as a module of its own, `forward(x, state)`, to be exported: coefficients are constants, made already."""
        return Stepper(self, self._first_input())


def build_layer(layer: LayerChoice, width: int, state_size: int, options: Mapping[str, Any]) -> AbstractRecurrent:
    """A layer of `width` features: by its name in LAYERS with its options, or by a function from the width."""
    if isinstance(layer, str):
        return named_layer(layer)(width, state_size, **options)
    if options:
        raise ArgumentError(
            f"a layer given as a function takes no options, got {sorted(options)}; set them inside the function"
        )
    try:
        made = layer(width)
    # anything may come out of a user's function; what it was asked for belongs into the message
    except Exception as error:
        raise ArgumentError(
            f"layer must be a function from the width to a layer, got one that failed: {error}"
        ) from error
    if not isinstance(made, AbstractRecurrent):
        raise ArgumentError(f"layer must return a holdfast layer for a width, got {checks.describe(made)}")
    return made


def named_layer(name: str) -> type[AbstractRecurrent]:
    """The class of a layer by its name in LAYERS."""
    if name not in LAYERS:
        raise unknown_name("layer", name, LAYERS)
    return LAYERS[name]


def through(
    blocks: nn.ModuleList, x: Tensor, state: tuple[Any, ...] | None, return_state: bool, **how: Any
) -> tuple[Tensor, tuple[Any, ...] | None]:
    """A whole sequence through all blocks, and the state of each at the end."""
    states = []
    for block, before in zip(blocks, _states(blocks, state), strict=True):
        x, after = block(x, before, return_state=return_state, **how)
        states.append(after)
    return x, tuple(states) if return_state else None


def step_through(
    blocks: nn.ModuleList, x: Tensor, state: tuple[Any, ...] | None, **how: Any
) -> tuple[Tensor, tuple[Any, ...]]:
    """One step through all blocks, and the state of each after it."""
    states = []
    for block, before in zip(blocks, _states(blocks, state), strict=True):
        x, after = block.step(x, before, **how)  # type: ignore[operator]
        states.append(after)
    return x, tuple(states)


def _states(blocks: nn.ModuleList, state: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if state is None:
        return (None,) * len(blocks)
    # a tensor with as many rows as there are blocks would be taken apart by zip without a word
    if not isinstance(state, (tuple, list)) or len(state) != len(blocks):
        got = len(state) if isinstance(state, (tuple, list)) else checks.describe(state)
        raise ShapeError(f"expected a state with one entry for each of the {len(blocks)} blocks, got {got}")
    return tuple(state)
