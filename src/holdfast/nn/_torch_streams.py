"""torch's LSTM, GRU and RNN one step at a time, for streams: the weights packed once, and one call in C++ for all layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.kernels._common import checks, library
from holdfast.kernels._common.autograd import untracked
from holdfast.kernels._common.calls import dense
from holdfast.kernels.gated import gru_reference, lstm_reference
from holdfast.kernels.gated._reference import Weights
from holdfast.kernels.gated._step import PackedCells
from holdfast.nn._base import Stepper
from holdfast.nn._call_arguments import check_input

States = tuple[Tensor, ...]


def torch_stepper(module: nn.RNNBase) -> Stepper:
    """One step of torch's LSTM, GRU or RNN as a module `forward(x, state)`.

    Args:
        module: of one direction and without proj_size; its weights are copied.
    """
    cells = StreamedCells(module)
    return Stepper(cells, cells.cells.weight_ih_l0.new_zeros(1, module.input_size))


class StreamedCells(nn.Module):
    """A copy of torch's LSTM, GRU or RNN that has a `step`.

    Args:
        module: of one direction and without proj_size.
    """

    def __init__(self, module: nn.RNNBase) -> None:
        super().__init__()
        if module.bidirectional:
            raise ArgumentError(
                f"stepper: a bidirectional {torch_kind(module).__name__} needs the whole sequence; use bidirectional=False"
            )
        if module.proj_size:
            raise ArgumentError(
                f"stepper: expected an LSTM without proj_size, got proj_size={module.proj_size}; call the module with "
                "sequences of one step instead"
            )
        self.cells = _plain_copy(module)
        self._packed: PackedCells | None = None

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step: outputs (batch, state), and the state after it in the form of torch's module.

        Args:
            x: inputs of this step (batch, features).
            state: the state before it: h (layers, batch, state), of an LSTM (h, c); None is zeros.
        """
        packed = self._packed
        if packed is None:
            return self._first_step(x, state)
        if not packed.has_cells:
            done = packed.step(x, state, None)
            if done is not None:
                return done[:2]
        elif type(state) is tuple and len(state) == 2:
            done = packed.step(x, *state)
            if done is not None:
                return done[0], done[1:]
        return self._checked_step(x, state)

    def _first_step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Packs the weights where C++ takes them."""
        weights = self.cells._flat_weights
        with torch.no_grad():
            if not library.missing() and untracked(*weights) and weights[0].dtype in checks.REAL:
                self._packed = PackedCells(self._kind(), self._layers())
        return self._checked_step(x, state)

    def _checked_step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """A step with anything: wrong arguments are named, and what C++ does not take is computed by torch's operators."""
        cells, name = self.cells, torch_kind(self.cells).__name__
        check_input(name, x, ("batch", "features"), cells.input_size, cells.weight_ih_l0)
        h, c = self._ready(x, state)
        if self._packed is not None and untracked(x, h, c):
            done = self._packed.step(dense(x), dense(h), dense(c))
            if done is not None:
                return done[0], done[1] if c is None else done[1:]
        ends = []
        for layer, weights in enumerate(self._layers()):
            x, *end = _plain_step(self._kind(), x, weights, h[layer], None if c is None else c[layer])
            ends.append(end)
        after = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        return x, after if c is not None else after[0]

    def _ready(self, x: Tensor, state: Any) -> tuple[Tensor, Tensor | None]:
        """h and c before the step, checked, or zeros."""
        shape = (self.cells.num_layers, x.shape[0], self.cells.hidden_size)
        lstm = isinstance(self.cells, nn.LSTM)
        if state is None:
            zeros = x.new_zeros(shape)
            return zeros, zeros if lstm else None
        name = torch_kind(self.cells).__name__
        parts = tuple(state) if lstm and isinstance(state, (tuple, list)) else (state,)
        expected = f"(h, c) of shape {shape} each" if lstm else f"h of shape {shape}"
        if len(parts) != 1 + lstm or not all(_is_state(part, shape) for part in parts):
            got = ", ".join(checks.describe(part) for part in parts)
            raise ShapeError(f"{name}: expected the state as {expected} for x of {tuple(x.shape)}, got {got}")
        if any(part.dtype is not x.dtype or part.device != x.device for part in parts):
            got = ", ".join(checks.describe(part) for part in parts)
            raise DtypeError(f"{name}: expected a state in {x.dtype} on {x.device} as x, got {got}")
        return parts[0], parts[1] if lstm else None

    def _kind(self) -> str:
        if isinstance(self.cells, nn.RNN):
            return self.cells.nonlinearity
        return "lstm" if isinstance(self.cells, nn.LSTM) else "gru"

    def _layers(self) -> list[Weights]:
        return [Weights(*weights) for weights in self.cells.all_weights]

    def _apply(self, fn: Any, recurse: bool = True) -> StreamedCells:
        self._packed = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *given: Any) -> None:
        self._packed = None
        super()._load_from_state_dict(*given)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}  # packed for this machine, and bound to its memory


def _is_state(part: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(part, Tensor) and part.layout is torch.strided and not part.is_nested and part.shape == shape


def torch_kind(module: nn.Module) -> type[nn.RNNBase]:
    """torch's class of an LSTM, GRU or RNN, whatever class stands before it."""
    return next(kind for kind in (nn.LSTM, nn.GRU, nn.RNN) if isinstance(module, kind))


def _plain_copy(module: nn.RNNBase) -> Any:
    """Of torch's own class with the effective weights, which a parametrization may compute."""
    kind: Any = torch_kind(module)
    options: dict[str, Any] = {"num_layers": module.num_layers, "bias": module.bias}
    if isinstance(module, nn.RNN):
        options["nonlinearity"] = module.nonlinearity
    weights = [weight for layer in module.all_weights for weight in layer]
    first = weights[0]
    copy = kind(module.input_size, module.hidden_size, **options, device=first.device, dtype=first.dtype)
    with torch.no_grad():
        for to, weight in zip((w for layer in copy.all_weights for w in layer), weights, strict=True):
            to.copy_(weight)
    return copy


def _plain_step(kind: str, x: Tensor, weights: Weights, h: Tensor, c: Tensor | None) -> tuple[Tensor, ...]:
    """One layer by torch's operators, which autograd follows and exporters know: outputs, h, and of an LSTM c."""
    if kind == "lstm":
        y, *ends = lstm_reference(x.unsqueeze(1), weights, h, c)
        return y.squeeze(1), *ends
    if kind == "gru":
        y, *ends = gru_reference(x.unsqueeze(1), weights, h)
        return y.squeeze(1), *ends
    linear = nn.functional.linear
    sums = linear(x, weights.w_ih, weights.b_ih) + linear(h, weights.w_hh, weights.b_hh)
    y = torch.tanh(sums) if kind == "tanh" else torch.relu(sums)
    return y, y
