"""One step of torch's recurrent modules in plain operations: what vmap, Jacobians and equilibria need.

torch.nn.RNN, GRU and LSTM run as one fused operator that has no batching rule. A cell takes the drive of the input,
W_ih x + b_ih, and the state, and gives the next state; an LSTM's state is [h | c].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

Cell = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
State = Float[Tensor, "*batch state"]


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
    """The same function as a torch recurrent module in eval mode, as a loop over time that vmap can vectorise.

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
