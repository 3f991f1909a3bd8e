"""torch.nn.RNN, GRU and LSTM, a view for each layer and direction, and one step of each in plain operations.

The modules run as one fused operator that has no batching rule; vmap, Jacobians and equilibria need the step. A cell takes
the drive of the input, W_ih x + b_ih, and the state, and gives the next state; an LSTM's state is [h | c].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from holdfast.nn._views.families.holdfast_layers import gated_words
from holdfast.nn._views.rest import Driven, StepMap
from holdfast.nn._views.view import Gate, MemoryWeight, NonlinearView, RecurrenceView

Cell = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
State = Float[Tensor, "*batch state"]
_LONGER = {
    "forget": "raise the bias of its forget gate, b[n:2n] of bias_hh, by 1 or more",
    "update": "raise the bias of its update gate",
}


def tanh_cell(drive: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    """h+ = tanh(drive + W h + b)."""
    return torch.tanh(drive + functional.linear(state, w, b))


def relu_cell(drive: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    """h+ = relu(drive + W h + b); at the kink the slope of clamp is 1 where that of relu is 0.

    A network without bias rests on the kink of every unit: with slope 0 its Jacobian would be 0 whatever W is.
    """
    return torch.clamp(drive + functional.linear(state, w, b), min=0)


def gru_cell(drive: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    """torch's GRU: h+ = (1 - z) n + z h, n = tanh(drive_n + r (W_n h + b_n))."""
    r_x, z_x, n_x = drive.chunk(3, dim=-1)
    r_h, z_h, n_h = functional.linear(state, w, b).chunk(3, dim=-1)
    z = torch.sigmoid(z_x + z_h)
    n = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return (1 - z) * n + z * state


def gru_candidate(drive: Tensor, state: State, w: Tensor, b: Tensor | None) -> State:
    """n of torch's GRU: equal to h at an equilibrium and nowhere else."""
    r_x, _, n_x = drive.chunk(3, dim=-1)
    r_h, _, n_h = functional.linear(state, w, b).chunk(3, dim=-1)
    return torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)


def lstm_cell(drive: Tensor, state: State, w: Tensor, b: Tensor | None, project: Tensor | None = None) -> State:
    """torch's LSTM on the joint state [h | c]: c+ = f c + i g, h+ = o tanh(c+), through `project` where there is one."""
    h, c = state.split([w.shape[1], w.shape[0] // 4], dim=-1)
    i, f, g, o = (drive + functional.linear(h, w, b)).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return torch.cat([h if project is None else functional.linear(h, project), c], dim=-1)


def cell_of(module: nn.RNNBase | nn.RNNCellBase) -> Cell | None:
    """The cell of a torch module; None for a projected LSTM, whose step has one weight more, and for other classes."""
    if isinstance(module, (nn.LSTM, nn.LSTMCell)):
        return None if getattr(module, "proj_size", 0) else lstm_cell
    if isinstance(module, (nn.GRU, nn.GRUCell)):
        return gru_cell
    if isinstance(module, (nn.RNN, nn.RNNCell)):
        return relu_cell if module.nonlinearity == "relu" else tanh_cell
    return None


def state_size(module: nn.RNNBase | nn.RNNCellBase) -> int:
    """Numbers in the state of one layer and direction."""
    if isinstance(module, (nn.LSTM, nn.LSTMCell)):
        return module.hidden_size + output_size(module)
    return module.hidden_size


def output_size(module: nn.RNNBase | nn.RNNCellBase) -> int:
    """Numbers in the output of one layer and direction, the first of its state."""
    return getattr(module, "proj_size", 0) or module.hidden_size


def ends_of(module: nn.RNNBase, layer: int) -> list[str]:
    """How the weights of one layer end, one name for each direction: _l0, _l0_reverse."""
    return [f"_l{layer}{way}" for way in (("", "_reverse") if module.bidirectional else ("",))]


def weights_of(module: nn.RNNBase | nn.RNNCellBase, end: str) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """W_ih, b_ih, W_hh, b_hh of one layer and direction, by the end of their names; "" in a cell."""
    b_ih, b_hh = (getattr(module, f"bias_{kind}{end}") if module.bias else None for kind in ("ih", "hh"))
    return getattr(module, f"weight_ih{end}"), b_ih, getattr(module, f"weight_hh{end}"), b_hh


class Unrolled(nn.Module):
    """The same function as a torch recurrent module in eval mode, as a loop over time that vmap can vectorize.

    Its weights are those of the module, under the module's own names below `inner`.
    """

    def __init__(self, inner: nn.RNNBase) -> None:
        super().__init__()
        self.inner = inner
        cell = cell_of(inner)
        assert cell is not None
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        """The output sequence, in the module's own layout."""
        time = 1 if self.inner.batch_first else 0
        for layer in range(self.inner.num_layers):
            x = torch.cat([self._run(x, end, time) for end in ends_of(self.inner, layer)], dim=-1)
        return x

    def _run(self, x: Tensor, end: str, time: int) -> Tensor:
        reverse = end.endswith("_reverse")
        w_ih, b_ih, w_hh, b_hh = weights_of(self.inner, end)
        drives = functional.linear(x, w_ih, b_ih).unbind(time)
        state = drives[0].new_zeros(*drives[0].shape[:-1], state_size(self.inner))
        outputs: list[Tensor] = []
        for drive in reversed(drives) if reverse else drives:
            state = self.cell(drive, state, w_hh, b_hh)
            outputs.append(state[..., : self.inner.hidden_size])
        return torch.stack(outputs[::-1] if reverse else outputs, dim=time)


def recognise(path: str, module: nn.Module) -> list[RecurrenceView]:
    """A view for each layer and direction, the lowest layer first."""
    if isinstance(module, nn.RNNCellBase) and cell_of(module) is not None:
        return [TorchView(path, module, "", ())]
    if not isinstance(module, nn.RNNBase) or (cell_of(module) is None and not getattr(module, "proj_size", 0)):
        return []
    views: list[RecurrenceView] = []
    below: tuple[TorchView, ...] = ()
    for layer in range(module.num_layers):
        # a layer reads both directions of the one below it
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
        # torch's own name also for a heir or an accelerated module
        name = next(k.__name__ for k in type(module).__mro__ if k.__module__.startswith("torch.nn.modules"))
        self.kind = f"torch.nn.{name}"
        # the gate that lets a state stay; both lie at n:2n of the biases
        keeping = {"LSTM": "forget", "GRU": "update"}.get(name.removesuffix("Cell"))
        self.elementwise = keeping is None
        if keeping is not None:
            n, bias, writes = module.hidden_size, f"bias_hh{end}", 0 if keeping == "forget" else None
            self.gate = Gate(keeping, bias, n, 2 * n, beside=f"bias_ih{end}", writes=writes) if module.bias else None
            self.left_alone = gated_words(self.path, name, _LONGER[keeping])

    @property
    def owner(self) -> str:
        return self._owner

    @property
    def crosses(self) -> bool:  # type: ignore[override]
        """Gates bound the state, and so does the form of a stabilized weight."""
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

        # a closed update gate stands still everywhere: only candidate = h is an equilibrium
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
