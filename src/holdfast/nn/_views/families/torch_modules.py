"""torch.nn.RNN, GRU and LSTM, a view for each layer and direction, and their cells."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from holdfast.nn._views.cells import (
    cell_of,
    ends_of,
    gru_candidate,
    gru_cell,
    lstm_cell,
    output_size,
    state_size,
    weights_of,
)  # fmt: skip
from holdfast.nn._views.families.holdfast_layers import gated_words
from holdfast.nn._views.rest import StepMap
from holdfast.nn._views.view import Gate, MemoryWeight, NonlinearView, RecurrenceView

_LONGER = {
    "forget": "raise the bias of its forget gate, b[n:2n] of bias_hh, by 1 or more",
    "update": "raise the bias of its update gate",
}


def recognise(path: str, module: nn.Module) -> list[RecurrenceView]:
    """A view for each layer and direction, the lowest layer first."""
    if isinstance(module, nn.RNNCellBase) and cell_of(module) is not None:
        return [TorchView(path, module, "", ())]
    if not isinstance(module, nn.RNNBase) or (cell_of(module) is None and not getattr(module, "proj_size", 0)):
        return []
    views: list[RecurrenceView] = []
    below: tuple[TorchView, ...] = ()
    for layer in range(module.num_layers):
        below = tuple(TorchView(path, module, end, below) for end in ends_of(module, layer))
        views.extend(below)
    return views


class TorchView(NonlinearView):
    """One layer and direction; an upper layer rests on the states that the lower ones reach."""

    module: nn.RNNBase | nn.RNNCellBase

    def __init__(self, owner: str, module: nn.RNNBase | nn.RNNCellBase, end: str, below: tuple[TorchView, ...]) -> None:
        dot = f"{owner}." if owner else ""
        names = [f"weight_hh{end}"] + ([f"weight_hr{end}"] if getattr(module, "proj_size", 0) else [])
        super().__init__(dot + names[0], module, tuple(MemoryWeight(dot + n, module, n, "step_matrix") for n in names))
        self._owner, self.end, self.below = owner, end, below
        name = next(k.__name__ for k in type(module).__mro__ if k.__module__.startswith("torch.nn.modules"))
        self.kind = f"torch.nn.{name}"
        keeping = {"LSTM": "forget", "GRU": "update"}.get(name.removesuffix("Cell"))
        self.elementwise = keeping is None
        if keeping is not None:
            n = module.hidden_size
            self.gate = Gate(keeping, f"bias_hh{end}", n, 2 * n, beside=f"bias_ih{end}") if module.bias else None
            self.left_alone = gated_words(self.path, name, _LONGER[keeping])

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        """Gates bound the state, and so does the form of a stabilised weight."""
        return self.left_alone is None and not parametrize.is_parametrized(self.module, self.weights[0].name)

    @torch.no_grad()
    def step_map(self) -> StepMap:
        module = self.module
        w_ih, b_ih, w, b = (None if v is None else _double(v) for v in weights_of(module, self.end))
        assert w_ih is not None and w is not None
        drive = functional.linear(self._input(), w_ih, b_ih)
        cell = cell_of(module) or partial(lstm_cell, project=_double(getattr(module, f"weight_hr{self.end}")))

        def motion(h: Tensor) -> Tensor:
            return cell(drive, h, w, b)

        def moved(h: Tensor) -> Tensor:
            return motion(h) - h

        def candidate(h: Tensor) -> Tensor:
            return gru_candidate(drive, h, w, b) - h

        return StepMap(motion, candidate if cell is gru_cell else moved, state_size(module), "discrete")

    def _input(self) -> Tensor:
        """What the layer reads while the model rests on zero input; zeros above a layer that rests nowhere."""
        if not self.below:
            return torch.zeros(self.module.input_size, dtype=torch.float64)
        size = output_size(self.module)
        points = [view.rest() for view in self.below]
        return torch.cat(
            [torch.zeros(size).double() if p is None else torch.from_numpy(p.state)[:size] for p in points]
        )


def _double(weight: Tensor) -> Tensor:
    return weight.detach().cpu().double()
