"""Where torch's recurrent modules rest on zero input, and how far one step from there is from the boundary.

A small deviation d from the state of rest becomes J d in one step, J the Jacobian of the step there: 1 - max |lam(J)| is
the distance to the boundary, for gates and saturated units as for plain ones. The state is followed from 0, so a module
that never settles is judged where it was last.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import jacrev
from torch.nn import functional

from holdfast.stability.cells import Cell, cell_of, state_size, weights_of

STEPS = 1000  # that a state is followed for


class RestMargins:
    """The margin of every layer and direction of a module, by the name of its weight; None where its cell is not known.

    States are kept from call to call: along training the next rest is near the last.

    Args:
        module: a torch.nn.RNN, GRU or LSTM.
    """

    def __init__(self, module: nn.RNNBase) -> None:
        self.module = module
        self.cell = cell_of(module)
        self._states: dict[str, Tensor] = {}

    @torch.no_grad()
    def margin(self, name: str) -> float:
        """1 - max |lam| of one step of the recurrence with the weight `name`, as weight_hh_l0.

        Args:
            name: of the recurrent weight.
        """
        assert self.cell is not None
        index, reverse = int(name.removesuffix("_reverse").rpartition("l")[2]), name.endswith("_reverse")
        state, drive, w, b = self._at_rest(self.cell, index, reverse)
        cell = self.cell
        J = jacrev(lambda h: cell(drive, h, w, b))(state)
        if not bool(torch.isfinite(J).all()):
            return -torch.inf
        return 1 - float(torch.linalg.eigvals(J).abs().max())

    def _at_rest(self, cell: Cell, index: int, reverse: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        module = self.module
        below = torch.zeros(module.input_size, dtype=torch.float64)
        if index:
            ways = (False, True) if module.bidirectional else (False,)
            below = torch.cat([self._at_rest(cell, index - 1, way)[0][: module.hidden_size] for way in ways])
        w_ih, b_ih, w, b = (
            None if v is None else v.detach().cpu().double() for v in weights_of(module, index, reverse)
        )
        assert w_ih is not None and w is not None
        drive = functional.linear(below, w_ih, b_ih)
        key = f"{index} {reverse}"
        state = self._states.get(key, drive.new_zeros(state_size(module)))
        for _ in range(STEPS):
            moved = cell(drive, state, w, b)
            still = float((moved - state).abs().max()) < 1e-12
            state = moved
            if still:
                break
        if bool(torch.isfinite(state).all()):
            self._states[key] = state
        return state, drive, w, b
