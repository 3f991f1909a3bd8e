"""Our layers at the call sites of torch.nn.LSTM, GRU and RNN: the same arguments, shapes and packed sequences."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from holdfast._arguments import checked, positive, probability
from holdfast.errors import ArgumentError, ShapeError
from holdfast.kernels._common import checks
from holdfast.nn._base import AbstractRecurrent, Stepper
from holdfast.nn._call_arguments import backwards, taken
from holdfast.nn._initial_weights import Device, placeable
from holdfast.nn._stack import named_layer

States = tuple[Tensor, ...]
Inputs = Tensor | PackedSequence
# what torch's modules take besides, and what to write instead
REFUSED_OPTIONS = {
    "proj_size": "hidden_size is the number of outputs here, and state_size that of states; leave it out",
    "nonlinearity": "layer says which recurrence it is, such as layer='rnn', activation='tanh'",
}


class RecurrentStack(nn.Module):
    """Layers of ours with the arguments, shapes and returns of torch.nn.LSTM, GRU and RNN.

    `nn.LSTM(8, 64, num_layers=2, batch_first=True)` becomes `RecurrentStack(8, 64, num_layers=2, batch_first=True)`, and
    `output, state = module(x, state)` stays. Only the state is another: a tuple with one tensor for each layer and
    direction, in torch's order (layer 0 forward, layer 0 backward, layer 1 forward, ...), to be passed back unchanged.
    Where code reads the last hidden vector h_n[-1], it is `output[:, -1]` here.

    Args:
        input_size: number of input features.
        hidden_size: number of outputs of each layer and direction.
        num_layers: how many layers follow one another.
        bias: whether layers have biases, where theirs is a choice; None is each layer's own default.
        batch_first: whether inputs and outputs are (batch, time, features) and not (time, batch, features).
        dropout: probability that a number between two layers is set to 0 in training.
        bidirectional: also read the sequence from its end, with weights of its own; outputs of both follow one another.
        layer: "diagonal", "lru", "s4d", "selective", "mamba", "mamba2", "mingru", "minlstm", "rglru", "linear", "rnn"
            or "gru", or a function from the number of inputs and of outputs to a layer.
        state_size: states of each layer, as it counts them; None is `hidden_size`.
        device: of the weights; None is the default one.
        dtype: of the weights; None is the default one.
        options: keyword arguments of a layer that is given by name.

    Returns:
        `output, state = stack(x)` in the form of torch's modules; `state` is a tuple with one tensor per layer and
        direction.

    Raises:
        ArgumentError: sizes that are not whole numbers above 0, or an argument of torch that has no counterpart.

    Example:
        >>> import torch, holdfast
        >>> rnn = holdfast.nn.RecurrentStack(4, 16, num_layers=2, batch_first=True, layer="lru")
        >>> output, state = rnn(torch.randn(2, 10, 4))
        >>> output.shape, len(state)
        (torch.Size([2, 10, 16]), 2)
    """

    @checked
    @placeable
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool | None = None,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        layer: str | Callable[[int, int], AbstractRecurrent] = "lru",
        state_size: int | None = None,
        device: Device | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        for name in REFUSED_OPTIONS.keys() & options.keys():
            raise ArgumentError(f"RecurrentStack has no {name}: {REFUSED_OPTIONS[name]}")
        if bias is not None:
            options = _with_bias(layer, bias, options)
        positive(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers, state_size=state_size)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.bidirectional = batch_first, bidirectional
        probability(dropout=dropout)
        self.directions = 2 if bidirectional else 1
        # from the second layer on both directions are read side by side, as in torch
        sizes = [input_size] + [self.directions * hidden_size] * (num_layers - 1)
        self.layers = nn.ModuleList(
            _build(layer, size, hidden_size, state_size or hidden_size, options)
            for size in sizes
            for _ in range(self.directions)
        )
        self.dropout, self.between = dropout, nn.Dropout(dropout)

    def forward(self, input: Inputs, hx: States | None = None) -> tuple[Inputs, States]:
        """Outputs of the last layer at all steps, in the form of the inputs, and the states at the end.

        Args:
            input: (time, batch, features), (batch, time, features) with `batch_first`, (time, features) without a batch,
                or a PackedSequence.
            hx: the states before the first step, as an earlier call returned them; None is zeros.
        """
        states = self._ready(hx)
        if isinstance(input, PackedSequence):
            return self._packed(input, states)
        if not isinstance(input, Tensor) or input.ndim not in (2, 3):
            raise ShapeError(
                f"RecurrentStack: expected (time, batch, features), (batch, time, features) with batch_first, or a "
                f"PackedSequence, got {checks.describe(input)}"
            )
        if input.ndim == 2:
            y, after = self._through(input.unsqueeze(0), tuple(s if s is None else s.unsqueeze(0) for s in states))
            return y.squeeze(0), tuple(state.squeeze(0) for state in after)
        y, after = self._through(input if self.batch_first else input.transpose(0, 1), states)
        return y if self.batch_first else y.transpose(0, 1), after

    def step(self, x: Tensor, state: States | None = None) -> tuple[Tensor, States]:
        """One step of a stack in one direction: outputs (batch, hidden_size), and the states after it.

        Args:
            x: inputs of this step (batch, features).
            state: the states before it; None is zeros.
        """
        if self.bidirectional:
            raise ArgumentError("a bidirectional RecurrentStack needs the whole sequence; use bidirectional=False")
        after = []
        for layer, before in zip(self.layers, self._ready(state), strict=True):
            x, end = layer.step(x, before)  # type: ignore[operator]
            x = self.between(x) if layer is not self.layers[-1] else x
            after.append(end)
        return x, tuple(after)

    @checked
    def initial_state(self, batch: int) -> States:
        """Zeros in the shape of the states.

        Args:
            batch: number of sequences.
        """
        return tuple(layer.initial_state(batch) for layer in self.layers)  # type: ignore[operator]

    def stepper(self) -> Stepper:
        """`step` as a module of its own, `forward(x, state)`, to be exported."""
        return Stepper(self, next(self.parameters()).new_zeros(1, self.input_size))

    def flatten_parameters(self) -> None:
        """Nothing: there for code that calls it on torch's modules."""

    def _ready(self, states: States | None) -> tuple[Tensor | None, ...]:
        count = len(self.layers)
        if states is None:
            return (None,) * count
        if not isinstance(states, (tuple, list)) or len(states) != count:
            got = f"{len(states)} of them" if isinstance(states, (tuple, list)) else checks.describe(states)
            raise ArgumentError(
                f"RecurrentStack: expected a tuple of {count} states, one for each layer and direction, as an earlier "
                f"call returned it or initial_state(batch) makes it, got {got}"
            )
        for layer, given in zip(self.layers, states, strict=True):
            shape: tuple[int, ...] = layer.state_shape  # type: ignore[assignment]
            if isinstance(given, Tensor) and tuple(given.shape[-len(shape) :]) != shape:
                raise ShapeError(
                    f"RecurrentStack: expected states of shape (batch, {', '.join(map(str, shape))}), as an earlier call "
                    f"returned them or initial_state(batch) makes them, got {tuple(given.shape)}; (h_0, c_0) of an LSTM "
                    "is none"
                )
        return tuple(states)

    def _through(
        self, x: Tensor, states: tuple[Tensor | None, ...], lengths: Tensor | None = None
    ) -> tuple[Tensor, States]:
        after = []
        # each row is turned at its own end: padding stays behind it
        order = backwards(x, lengths) if self.bidirectional else None
        for number in range(self.num_layers):
            outputs = []
            for place in range(number * self.directions, (number + 1) * self.directions):
                turned = order if place % self.directions else None
                y, end = self.layers[place](x if turned is None else taken(x, turned), states[place], lengths=lengths)
                outputs.append(y if turned is None else taken(y, turned))
                after.append(end)
            x = outputs[0] if order is None else torch.cat(outputs, -1)
            # between layers only, not behind the last one: torch's rule
            x = self.between(x) if number + 1 < self.num_layers else x
        return x, tuple(after)

    def _packed(self, given: PackedSequence, states: tuple[Tensor | None, ...]) -> tuple[PackedSequence, States]:
        """Rows in the order in which they are packed, the longest first; states in that of the caller."""
        x, lengths = pad_packed_sequence(PackedSequence(given.data, given.batch_sizes), batch_first=True)
        if given.sorted_indices is not None:
            states = tuple(s if s is None else s.index_select(0, given.sorted_indices) for s in states)
        y, after = self._through(x, states, lengths.to(x.device))
        # packed as the input: rows are sorted already, and the caller's indices stay valid
        data = pack_padded_sequence(y, lengths, batch_first=True).data
        if given.unsorted_indices is not None:
            after = tuple(state.index_select(0, given.unsorted_indices) for state in after)
        return PackedSequence(data, given.batch_sizes, given.sorted_indices, given.unsorted_indices), after

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, batch_first={self.batch_first}"


def _with_bias(layer: Any, bias: bool, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a layer that has biases or not; refused where that is no choice of the layer's."""
    if not isinstance(layer, str):
        raise ArgumentError("a layer given as a function says itself whether it has a bias; leave bias out")
    kind = named_layer(layer)
    if "bias" in inspect.signature(kind).parameters:
        return {**options, "bias": bias}
    if bias:
        raise ArgumentError(f"{kind.__name__} has no bias; leave bias out")
    return options


def _build(layer: Any, inputs: int, outputs: int, state_size: int, options: dict[str, Any]) -> AbstractRecurrent:
    if isinstance(layer, str):
        return named_layer(layer)(inputs, state_size, out_features=outputs, **options)
    if options:
        raise ArgumentError(f"a layer given as a function takes no options, got {sorted(options)}")
    try:
        made = layer(inputs, outputs)
    except Exception as error:
        raise ArgumentError(
            f"layer must be a function from inputs and outputs to a layer; it failed: {error}"
        ) from error
    if not isinstance(made, AbstractRecurrent) or (made.features, made.out_features) != (inputs, outputs):
        raise ArgumentError(
            f"layer must return a layer of holdfast with {inputs} inputs and {outputs} outputs, got {made}"
        )
    return made
