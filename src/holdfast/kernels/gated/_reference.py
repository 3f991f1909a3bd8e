"""LSTM and GRU as plain loops over time, in any dtype and on any device; weights and gates as torch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    """Of one layer and direction, gates one after another: (gates state, features), (gates state, state), two biases."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None


def lstm_reference(
    x: Tensor, weights: Weights, h0: Tensor | None = None, c0: Tensor | None = None, *,
    lengths: Tensor | None = None, reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Outputs h (batch, time, state), and the last h and c of every row.

        i, f, g, o = W_ih x + b_ih + W_hh h + b_hh;  c' = sigmoid(f) c + sigmoid(i) tanh(g),  h' = sigmoid(o) tanh(c')

    Args:
        x: inputs (batch, time, features).
        weights: with four gates: input, forget, content, output.
        h0: state before the first step (batch, state); None is zero.
        c0: cell before the first step; None is zero.
        lengths: int64 (batch,): steps of each row; outputs after its end are 0.
        reverse: run from the last step of each row to the first.
    """

    def step(x_t: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (_inner(weights, x_t) + _hidden(weights, h)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    return _loop(step, x, weights, (h0, c0), lengths, reverse)


def gru_reference(
    x: Tensor, weights: Weights, h0: Tensor | None = None, *, lengths: Tensor | None = None, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """Outputs h (batch, time, state), and the last h of every row.

        r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh),  n = tanh(W_in x + b_in + r (W_hn h + b_hn)),  h' = (1 - z) n + z h

    Args:
        x: inputs (batch, time, features).
        weights: with three gates: reset, update, content.
        h0: state before the first step (batch, state); None is zero.
        lengths: int64 (batch,): steps of each row; outputs after its end are 0.
        reverse: run from the last step of each row to the first.
    """

    def step(x_t: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        (r_x, z_x, n_x), (r_h, z_h, n_h) = (part.chunk(3, 1) for part in (_inner(weights, x_t), _hidden(weights, h)))
        r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
        n = torch.tanh(n_x + r * n_h)
        return n + z * (h - n), c

    return _loop(step, x, weights, (h0, None), lengths, reverse)[:2]


def _inner(weights: Weights, x: Tensor) -> Tensor:
    return torch.nn.functional.linear(x, weights.w_ih, weights.b_ih)


def _hidden(weights: Weights, h: Tensor) -> Tensor:
    return torch.nn.functional.linear(h, weights.w_hh, weights.b_hh)


def _loop(
    step: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], x: Tensor, weights: Weights,
    start: tuple[Tensor | None, Tensor | None], lengths: Tensor | None, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, time, _ = x.shape
    zero = x.new_zeros(batch, weights.w_hh.shape[1])
    h, c = (zero if s is None else s for s in start)
    room = x.new_empty(batch, time, zero.shape[1])  # refuses what no memory holds before a loop over as many steps
    if room.numel() == 0:
        return room, h, c
    outputs: list[Tensor] = []
    inputs = x.unbind(1)  # never an index inside the loop: its gradient would be as large as x at every step
    for t in range(time - 1, -1, -1) if reverse else range(time):
        h_next, c_next = step(inputs[t], h, c)
        if lengths is not None:
            runs = (t < lengths).unsqueeze(1)
            h_next, c_next = torch.where(runs, h_next, h), torch.where(runs, c_next, c)
            outputs.append(torch.where(runs, h_next, torch.zeros_like(h_next)))
        else:
            outputs.append(h_next)
        h, c = h_next, c_next
    if reverse:
        outputs.reverse()
    return torch.stack(outputs, 1), h, c
