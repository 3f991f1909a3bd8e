"""Our layers at the call sites of torch.nn.LSTM, GRU and RNN: the same arguments, shapes and packed sequences."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from holdfast._arguments import checked, positive, probability
from holdfast.errors import ArgumentError, ShapeError
from holdfast.kernels._common import checks
from holdfast.nn._base import AbstractRecurrent, Stepper
from holdfast.nn._call_arguments import backwards, taken
from holdfast.nn._initial_weights import Device, placeable
from holdfast.nn._lstm_states import fitting_state_size, last_outputs, pack, room_for, unpack
from holdfast.nn._stack import named_layer

States = tuple[Tensor, ...]
Inputs = Tensor | PackedSequence
Ends = list[tuple[Tensor, Tensor]]  # state and, for (h, c), last output of each layer and direction
# what torch's modules take besides, and what to write instead
REFUSED_OPTIONS = {
    "nonlinearity": "layer says which recurrence it is, such as layer='rnn', activation='tanh'",
}


class RecurrentStack(nn.Module):
    """Layers of ours with the arguments, shapes and returns of torch.nn.LSTM, GRU and RNN.

    `nn.LSTM(8, 64, num_layers=2, batch_first=True)` becomes `RecurrentStack(8, 64, num_layers=2, batch_first=True)`, and
    `output, state = module(x, state)` stays. With `state_form="layers"` the state is a tuple with one tensor for each layer
    and direction, in torch's order (layer 0 forward, layer 0 backward, layer 1 forward, ...), to be passed back unchanged;
    where code reads the last hidden vector h_n[-1], it is `output[:, -1]` there.

    With `state_form="lstm"` it is (h, c) as torch.nn.LSTM has it, for code that makes, stores, masks or reads states: h
    (layers directions, batch, outputs) holds the last outputs, c (layers directions, batch, hidden_size) the states of
    the layers, flattened, with zeros behind them. Zeros are the state before the first step. A call reads c alone.

    Args:
        input_size: number of input features.
        hidden_size: number of outputs of each layer and direction, unless `proj_size` says another.
        num_layers: how many layers follow one another.
        bias: whether layers have biases, where theirs is a choice; None is each layer's own default.
        batch_first: whether inputs and outputs are (batch, time, features) and not (time, batch, features).
        dropout: probability that a number between two layers is set to 0 in training.
        bidirectional: also read the sequence from its end, with weights of its own; outputs of both follow one another.
        proj_size: number of outputs of each layer and direction, as that of torch.nn.LSTM; 0 is `hidden_size`.
        layer: "diagonal", "lru", "s4d", "selective", "mamba", "mamba2", "mingru", "minlstm", "rglru", "linear", "rnn"
            or "gru", or a function from the number of inputs and of outputs to a layer.
        state_size: states of each layer, as it counts them; None is `hidden_size`, and with `state_form="lstm"` as many
            as fit into the `hidden_size` numbers of c. A larger one makes c wider.
        state_form: "layers", or "lstm" for states (h, c).
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
        proj_size: int = 0,
        *,
        layer: str | Callable[[int, int], AbstractRecurrent] = "lru",
        state_size: int | None = None,
        state_form: Literal["layers", "lstm"] = "layers",
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
        if proj_size < 0:
            raise ArgumentError(f"proj_size must be 0 (none) or a number of outputs, got {proj_size}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.bidirectional, self.proj_size = batch_first, bidirectional, proj_size
        self.state_form = state_form
        probability(dropout=dropout)
        self.directions = 2 if bidirectional else 1
        outputs = proj_size or hidden_size
        # from the second layer on both directions are read side by side, as in torch
        sizes = [input_size] + [self.directions * outputs] * (num_layers - 1)

        def states(inputs: int) -> int:
            if state_size is None and state_form == "lstm" and isinstance(layer, str):
                return fitting_state_size(named_layer(layer), inputs, outputs, hidden_size, options)
            return state_size or hidden_size

        self.layers = nn.ModuleList(
            _build(layer, size, outputs, states(size), options) for size in sizes for _ in range(self.directions)
        )
        self.cell_size = max(hidden_size, room_for(self.layers))
        self.dropout, self.between = dropout, nn.Dropout(dropout)

    def forward(
        self,
        input: Inputs,
        hx: States | None = None,
        *,
        resets: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Inputs, States]:
        """Outputs of the last layer at all steps, in the form of the inputs, and the states at the end.

        Args:
            input: (time, batch, features), (batch, time, features) with `batch_first`, (time, features) without a batch,
                or a PackedSequence.
            hx: the states before the first step, as an earlier call returned them; None is zeros.
            resets: where an episode begins, in the layout of the input without its features: the state before such a
                step is zero.
            mask: where a step counts, in the same layout: True from the start of a sequence to its end. Outputs behind it
                are 0 and the state is the one at the end.
        """
        if isinstance(input, PackedSequence):
            if resets is not None or mask is not None:
                raise ArgumentError(
                    "a PackedSequence carries its own lengths; leave resets and mask out, or pad it first"
                )
            return self._packed(input, self._ready(hx))
        if not isinstance(input, Tensor) or input.ndim not in (2, 3):
            raise ShapeError(
                f"RecurrentStack: expected (time, batch, features), (batch, time, features) with batch_first, or a "
                f"PackedSequence, got {checks.describe(input)}"
            )
        single = input.ndim == 2
        x, marks, inside = (self._turned(part, single) for part in (input, resets, mask))
        assert x is not None
        y, after = self._through(x, self._ready(hx, single), _lengths(inside, x), self._marked(marks, x))
        turned = self._turned(y, single, back=True)
        assert turned is not None
        return turned, self._given_back(after, single)

    def _turned(self, part: Tensor | None, single: bool, *, back: bool = False) -> Tensor | None:
        """Batch first, or back from it."""
        if part is None:
            return None
        if single:
            return part.squeeze(0) if back else part.unsqueeze(0)
        return part if self.batch_first else part.transpose(0, 1)

    def _marked(self, resets: Tensor | None, x: Tensor) -> Tensor | None:
        if resets is None:
            return None
        if self.bidirectional:
            raise ArgumentError("resets: expected a stack that reads in one direction; use bidirectional=False")
        if resets.dtype != torch.bool or resets.shape != x.shape[:2]:
            raise ShapeError(
                f"resets: expected bool of the input's shape without features, got {checks.describe(resets)}"
            )
        return resets

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
            after.append((end, x))
            x = self.between(x) if layer is not self.layers[-1] else x
        return x, self._given_back(after)

    @checked
    def initial_state(self, batch: int) -> States:
        """Zeros in the shape of the states.

        Args:
            batch: number of sequences.
        """
        states = [layer.initial_state(batch) for layer in self.layers]  # type: ignore[operator]
        outputs = states[0].new_zeros(batch, self.proj_size or self.hidden_size)
        return self._given_back([(state, outputs) for state in states])

    def stepper(self) -> Stepper:
        """`step` as a module of its own, `forward(x, state)`, to be exported."""
        return Stepper(self, next(self.parameters()).new_zeros(1, self.input_size))

    def flatten_parameters(self) -> None:
        """Nothing: there for code that calls it on torch's modules."""

    def _ready(self, states: States | None, single: bool = False) -> tuple[Tensor | None, ...]:
        """The state of each layer and direction with the batch first, from what the caller gave."""
        count = len(self.layers)
        if states is None:
            return (None,) * count
        wanted = 2 if self.state_form == "lstm" else count
        if not isinstance(states, (tuple, list)) or len(states) != wanted:
            got = f"{len(states)} of them" if isinstance(states, (tuple, list)) else checks.describe(states)
            form = "(h, c)" if self.state_form == "lstm" else f"{count} states, one for each layer and direction"
            raise ArgumentError(
                f"RecurrentStack: expected a tuple of {form}, as an earlier call returned it or initial_state(batch) "
                f"makes it, got {got}"
            )
        if self.state_form == "lstm":
            return unpack(states[1].unsqueeze(1) if single else states[1], self.layers, self.cell_size)
        for layer, given in zip(self.layers, states, strict=True):
            shape: tuple[int, ...] = layer.state_shape  # type: ignore[assignment]
            if isinstance(given, Tensor) and tuple(given.shape[-len(shape) :]) != shape:
                raise ShapeError(
                    f"RecurrentStack: expected states of shape (batch, {', '.join(map(str, shape))}), as an earlier call "
                    f"returned them or initial_state(batch) makes them, got {tuple(given.shape)}; (h_0, c_0) of an LSTM "
                    'needs state_form="lstm"'
                )
        return tuple(state.unsqueeze(0) for state in states) if single else tuple(states)

    def _given_back(self, after: Ends, single: bool = False) -> States:
        """The states in the caller's form, from state and last output of each layer and direction."""
        if self.state_form == "lstm":
            h, c = torch.stack([y for _, y in after]), pack([state for state, _ in after], self.cell_size)
            return (h.squeeze(1), c.squeeze(1)) if single else (h, c)
        return tuple(state.squeeze(0) if single else state for state, _ in after)

    def _through(
        self,
        x: Tensor,
        states: tuple[Tensor | None, ...],
        lengths: Tensor | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Tensor, Ends]:
        after: Ends = []
        # each row is turned at its own end: padding stays behind it
        order = backwards(x, lengths) if self.bidirectional else None
        for number in range(self.num_layers):
            outputs = []
            for place in range(number * self.directions, (number + 1) * self.directions):
                turned = order if place % self.directions else None
                given = x if turned is None else taken(x, turned)
                y, end = self.layers[place](given, states[place], lengths=lengths, resets=resets)
                outputs.append(y if turned is None else taken(y, turned))
                after.append((end, last_outputs(y, lengths) if self.state_form == "lstm" else end))
            x = outputs[0] if order is None else torch.cat(outputs, -1)
            # between layers only, not behind the last one: torch's rule
            x = self.between(x) if number + 1 < self.num_layers else x
        return x, after

    def _packed(self, given: PackedSequence, states: tuple[Tensor | None, ...]) -> tuple[PackedSequence, States]:
        """Rows in the order in which they are packed, the longest first; states in that of the caller."""
        x, lengths = pad_packed_sequence(PackedSequence(given.data, given.batch_sizes), batch_first=True)
        if given.sorted_indices is not None:
            states = tuple(s if s is None else s.index_select(0, given.sorted_indices) for s in states)
        y, after = self._through(x, states, lengths.to(x.device))
        # packed as the input: rows are sorted already, and the caller's indices stay valid
        data = pack_padded_sequence(y, lengths, batch_first=True).data
        order = given.unsorted_indices
        if order is not None:
            after = [(state.index_select(0, order), y.index_select(0, order)) for state, y in after]
        packed = PackedSequence(data, given.batch_sizes, given.sorted_indices, given.unsorted_indices)
        return packed, self._given_back(after)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}, batch_first={self.batch_first}"


def _lengths(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """Steps of each sequence by the mask of those that count, which are its first ones."""
    if mask is None:
        return None
    if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        raise ShapeError(f"mask: expected bool of the input's shape without features, got {checks.describe(mask)}")
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()) or not bool(mask[:, :1].all()):
        raise ArgumentError(
            "mask: expected True from the first step of each sequence to its last, got one with a gap or without True"
        )
    return mask.sum(1)


def _with_bias(layer: Any, bias: bool, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a layer that has biases or not; refused where the layer has no such choice."""
    if not isinstance(layer, str):
        raise ArgumentError("bias is for a layer given by name, got a function, which builds its own; leave bias out")
    kind = named_layer(layer)
    if "bias" in inspect.signature(kind).parameters:
        return {**options, "bias": bias}
    if bias:
        raise ArgumentError(f"bias=True needs a layer with a bias, got {kind.__name__}; leave bias out")
    return options


def _build(layer: Any, inputs: int, outputs: int, state_size: int, options: dict[str, Any]) -> AbstractRecurrent:
    if isinstance(layer, str):
        return named_layer(layer)(inputs, state_size, out_features=outputs, **options)
    if options:
        raise ArgumentError(
            f"a layer given as a function takes no options, got {sorted(options)}; set them inside the function"
        )
    try:
        made = layer(inputs, outputs)
    except Exception as error:
        raise ArgumentError(
            f"layer must be a function from inputs and outputs to a layer, got one that failed: {error}"
        ) from error
    if not isinstance(made, AbstractRecurrent) or (made.features, made.out_features) != (inputs, outputs):
        raise ArgumentError(
            f"layer must return a holdfast layer with {inputs} inputs and {outputs} outputs, got {made}"
        )
    return made
