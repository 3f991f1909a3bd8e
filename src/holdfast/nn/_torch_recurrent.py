"""torch.nn.LSTM, GRU and RNN on the kernels of `holdfast.kernels`: the same weights, arguments, results and state dict.

A class for each stands between a module and its own class, so that `accelerate` changes a module by its class alone and
`restore` gives it back. What the kernels do not take runs by torch: other devices and dtypes, autocast, `proj_size`,
tracing and export.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from holdfast.kernels import rnn
from holdfast.kernels._common import checks, library
from holdfast.kernels._common.autograd import has_tangent
from holdfast.kernels.gated import gru, lstm

States = tuple[Tensor, ...]  # one for an RNN or GRU, two for an LSTM: (layers directions, batch, state) each
# units up to which the kernels take less processor time than torch (LSTM of 256: 0.74 of it, of 512: 1.04; GRU of 1,024:
# 0.84): beyond, weights leave the second cache and torch's products of whole batches are as good
MAX_STATES: dict[type, int] = {nn.LSTM: 384, nn.GRU: 1024, nn.RNN: 512}


class _Accelerated:
    """What the three share; `_layer` runs one layer in one direction and gives outputs and last states."""

    def forward(self: Any, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """As torch's own; what the kernels do not take, also a mistake that torch has words for, is torch's."""
        own: Any = super()
        if not _suits(self, input, hx):
            return own.forward(input, hx)
        if isinstance(input, PackedSequence):
            return _run_packed(self, input, hx)
        # one sequence without a batch
        single = input.ndim == 2
        x = input.unsqueeze(0) if single else input if self.batch_first else input.transpose(0, 1)
        states = tuple(s.unsqueeze(1) if single else s for s in _as_tuple(hx))
        y, last = _run_layers(self, x, states, None, None)
        if single:
            return y.squeeze(0), _as_given(self, tuple(s.squeeze(1) for s in last))
        return y if self.batch_first else y.transpose(0, 1), _as_given(self, last)


class AcceleratedLSTM(_Accelerated, nn.LSTM):
    """torch.nn.LSTM by `holdfast.kernels.lstm`."""

    def _layer(self, x: Tensor, weights: States, state: States, lengths: Tensor | None, reverse: bool) -> Any:
        return lstm(x, weights, *state, lengths=lengths, reverse=reverse)


class AcceleratedGRU(_Accelerated, nn.GRU):
    """torch.nn.GRU by `holdfast.kernels.gru`."""

    def _layer(self, x: Tensor, weights: States, state: States, lengths: Tensor | None, reverse: bool) -> Any:
        return gru(x, weights, *state, lengths=lengths, reverse=reverse)


class AcceleratedRNN(_Accelerated, nn.RNN):
    """torch.nn.RNN by `holdfast.kernels.rnn`."""

    def _layer(self, x: Tensor, weights: States, state: States, lengths: Tensor | None, reverse: bool) -> Any:
        w_ih, w_hh, *biases = weights
        # torch has two biases in one place; their gradients are equal, and autograd gives both theirs
        bias = biases[0] + biases[1] if biases else None
        kind: Any = self.nonlinearity
        return rnn(x, w_hh, w_ih, bias, *state, activation=kind, lengths=lengths, reverse=reverse)


ACCELERATED: dict[type, type] = {nn.LSTM: AcceleratedLSTM, nn.GRU: AcceleratedGRU, nn.RNN: AcceleratedRNN}


def torch_class(module: nn.Module) -> type:
    """The class of ours for a module of torch's."""
    return ACCELERATED[type(module)]


def max_state(module: nn.Module) -> int:
    """Units up to which the kernels pay for a module of this kind."""
    return next(limit for kind, limit in MAX_STATES.items() if isinstance(module, kind))


def _as_tuple(hx: Any) -> States:
    return () if hx is None else hx if isinstance(hx, tuple) else (hx,)


def _as_given(module: nn.RNNBase, states: States) -> Any:
    return states if isinstance(module, nn.LSTM) else states[0]


def _suits(module: nn.RNNBase, input: Any, hx: Any) -> bool:
    """Whether the kernels take this call."""
    packed = isinstance(input, PackedSequence)
    data = input.data if packed else input
    if not isinstance(data, Tensor) or data.device.type != "cpu" or data.dtype not in checks.REAL or library.missing():
        return False
    if module.proj_size or module.hidden_size > max_state(module) or torch.is_autocast_enabled("cpu"):
        return False
    # exported graphs have to run without holdfast; lengths of packed rows are read, which a graph cannot
    if torch.jit.is_tracing() or torch.compiler.is_exporting() or (packed and torch.compiler.is_compiling()):
        return False
    # a mistake: torch has the words for it
    if data.ndim not in ((2,) if packed else (2, 3)) or data.shape[-1] != module.input_size:
        return False
    weights = [weight for layer in module.all_weights for weight in layer]
    if any(weight.dtype is not data.dtype or weight.device.type != "cpu" for weight in weights):
        return False
    return _states_suit(module, input, hx) and not has_tangent(data, *weights, *_as_tuple(hx))


def _states_suit(module: nn.RNNBase, input: Any, hx: Any) -> bool:
    if hx is None:
        return True
    states = _as_tuple(hx)
    if len(states) != (2 if isinstance(module, nn.LSTM) else 1) or isinstance(hx, tuple) != isinstance(module, nn.LSTM):
        return False
    if isinstance(input, PackedSequence):
        rows: tuple[int, ...] = (int(input.batch_sizes[0]),)
    else:
        rows = () if input.ndim == 2 else (input.shape[0 if module.batch_first else 1],)
    expected = (module.num_layers * (1 + module.bidirectional), *rows, module.hidden_size)
    dtype = input.data.dtype if isinstance(input, PackedSequence) else input.dtype
    return all(
        isinstance(s, Tensor) and s.shape == expected and s.dtype is dtype and s.device.type == "cpu" for s in states
    )


def _run_packed(module: Any, packed: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
    """Rows longest first, as they are packed; states go in and out in the caller's order."""
    data, sizes, order, back = packed
    x, lengths = pad_packed_sequence(PackedSequence(data, sizes), batch_first=True)
    states = _as_tuple(hx)
    if order is not None:
        states = tuple(s.index_select(1, order) for s in states)
    y, last = _run_layers(module, x, states, lengths, sizes)
    if back is not None:
        last = tuple(s.index_select(1, back) for s in last)
    y_data = pack_padded_sequence(y, lengths, batch_first=True).data
    return PackedSequence(y_data, sizes, order, back), _as_given(module, last)


def _run_layers(
    module: Any, x: Tensor, states: States, lengths: Tensor | None, batch_sizes: Tensor | None
) -> tuple[Tensor, States]:
    """All layers over x (batch, time, features): outputs (batch, time, directions state), and the last states."""
    directions = 1 + module.bidirectional
    last: list[States] = []
    for layer in range(module.num_layers):
        if layer > 0 and module.dropout and module.training:
            # drawn in torch's order, so that a seed gives the same training run with and without us
            x = x * _dropout(x, module.dropout, batch_sizes)
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            start = tuple(s[index] for s in states)
            y, *ends = module._layer(x, tuple(module.all_weights[index]), start, lengths, direction == 1)
            outputs.append(y)
            last.append(tuple(ends))
        x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
    return x, tuple(torch.stack(parts) for parts in zip(*last, strict=True))


def _dropout(x: Tensor, probability: float, batch_sizes: Tensor | None) -> Tensor:
    """0 or 1 / (1 - probability) for each number, drawn in torch's order: by time first, or as data are packed."""
    batch, time, width = x.shape
    if batch_sizes is None:
        return functional.dropout(x.new_ones(time, batch, width), probability).transpose(0, 1)
    drawn = functional.dropout(x.new_ones(int(batch_sizes.sum()), width), probability)
    return pad_packed_sequence(PackedSequence(drawn, batch_sizes), batch_first=True)[0]
