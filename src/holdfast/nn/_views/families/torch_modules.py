"""torch.nn.RNN, GRU and LSTM, a view for each layer and direction, and their cells."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from holdfast.nn._views.cells import (
    Cell,
    cell_of,
    ends_of,
    gru_candidate,
    gru_cell,
    lstm_cell,
    output_size,
    state_size,
    weights_of,
)  # fmt: skip
from holdfast.nn._views.driven import Driven
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

    def gate_biases(self) -> dict[str, Tensor]:
        """torch adds two biases into each gate."""
        names = () if self.gate is None else (self.gate.bias, self.gate.bias.replace("bias_hh", "bias_ih"))
        return {name: getattr(self.module, name) for name in names}

    @torch.no_grad()
    def step_map(self) -> StepMap:
        w_ih, b_ih, w, b = self._weights_now()
        drive = functional.linear(self._input(), w_ih, b_ih)
        cell = self._cell()

        def motion(h: Tensor) -> Tensor:
            return cell(drive, h, w, b)

        def moved(h: Tensor) -> Tensor:
            return motion(h) - h

        def candidate(h: Tensor) -> Tensor:
            return gru_candidate(drive, h, w, b) - h

        return StepMap(motion, candidate if cell is gru_cell else moved, state_size(self.module), "discrete")

    def _weights_now(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        w_ih, b_ih, w, b = (None if v is None else _double(v) for v in weights_of(self.module, self.end))
        assert w_ih is not None and w is not None
        return w_ih, b_ih, w, b

    def _cell(self) -> Cell:
        project = getattr(self.module, f"weight_hr{self.end}", None)
        return cell_of(self.module) or partial(lstm_cell, project=None if project is None else _double(project))

    def driven(self) -> Driven:
        w_ih, b_ih, w, b = self._weights_now()
        cell = self._cell()
        return Driven(
            lambda x: functional.linear(self._read(x), w_ih, b_ih),
            lambda h, u: cell(u, h, w, b),
            state_size(self.module),
        )

    def _read(self, x: Tensor) -> Tensor:
        """What this layer and direction reads of the module's inputs, in the order of its steps."""
        x = x.double().cpu()
        if self.below:
            x = torch.cat([view._outputs(x) for view in self.below], -1)
        return x.flip(1) if self.end.endswith("_reverse") else x

    def _outputs(self, x: Tensor) -> Tensor:
        """Its outputs for inputs of the module, in the order of time."""
        driven = self.driven()
        y = driven.trajectory(driven.drive(x))[..., : output_size(self.module)]
        return y.flip(1) if self.end.endswith("_reverse") else y

    def _input(self) -> Tensor:
        """What the layer reads while the model rests on zero input; zeros above a layer that rests nowhere."""
        if not self.below:
            zeros = torch.zeros(self.module.input_size, dtype=torch.float64, device="cpu")
            return zeros if self.resting_input is None else self.resting_input
        size = output_size(self.module)
        points = [view.rest() for view in self.below]
        return torch.cat(
            [
                torch.zeros(size, dtype=torch.float64, device="cpu") if p is None else torch.from_numpy(p.state)[:size]
                for p in points
            ]
        )


def _double(weight: Tensor) -> Tensor:
    return weight.detach().cpu().double()
