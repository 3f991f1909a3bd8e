"""One step of a stack of LSTM, GRU or RNN layers, for streams: there the calls cost more than the arithmetic, so it is one
call in C++ with weights that lie ready for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.kernels._common import autograd
from holdfast.kernels._common.calls import LOWEST_ADDRESS, call, dense, prepared
from holdfast.kernels.gated._reference import Weights

KINDS = {"lstm": 0, "gru": 1, "tanh": 2, "relu": 3}  # of csrc/gated/step.cpp
VARYING = ("batch", "x", "h", "c", "y", "h_next", "c_next")  # from step to step


def bias_blocks(kind: str, weights: Weights) -> Tensor | None:
    """Both biases of a layer as one, a row for each block of csrc/gated/plan.h; None where it has none."""
    if weights.b_ih is None or weights.b_hh is None:
        return None
    if kind != "gru":
        return (weights.b_ih + weights.b_hh).view(4 if kind == "lstm" else 1, -1)
    (r, z, n), (r_h, z_h, n_h) = (b.view(3, -1).unbind(0) for b in (weights.b_ih, weights.b_hh))
    return torch.stack([n, r + r_h, z + z_h, n_h])


class PackedCells:
    """Layers of one direction with their weights as they are now, in the order in which C++ reads them.

    Args:
        kind: "lstm", "gru", or the nonlinearity of an RNN, "tanh" or "relu".
        layers: the weights of each, all in float32 or float64 on a CPU.
    """

    def __init__(self, kind: str, layers: Sequence[Weights]) -> None:
        w_ih, w_hh = layers[0][:2]
        self.dtype, self.features, self.state = w_ih.dtype, w_ih.shape[1], w_hh.shape[1]
        self.layers, self.has_cells = len(layers), kind == "lstm"
        self._weights = torch.cat([_packed(kind, weights) for weights in layers])
        self._run = prepared(
            "gated_step", "gated_step", self.dtype, VARYING, kind=KINDS[kind], features=self.features, state=self.state,
            layers=self.layers, weights=self._weights,
        )  # fmt: skip
        self._expect(1)

    def _expect(self, batch: int) -> None:
        shapes = ((batch, self.features), (self.layers, batch, self.state))
        # empty_like is the shortest way to a new tensor
        self._expected = (*shapes, torch.empty((batch, self.state), dtype=self.dtype))

    def step(self, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """One step of all layers: the last one's outputs, the next states and cells. None where C++ does not take it.

        Args:
            x: inputs (batch, features), plain, dense and in the dtype of the weights, as the others; else None is returned.
            h: states before the step (layers, batch, state).
            c: cells before the step, of an LSTM; else None.
        """
        # everything that C relies on, by hand: the functions that name what is wrong take as long as the step itself
        if x is None or h is None or (c is None) is self.has_cells or not autograd.untracked(x, h, c):
            return None
        inputs, states, outputs = self._expected
        if x.shape != inputs or h.shape != states:
            if x.ndim != 2:
                return None
            self._expect(x.shape[0])
            inputs, states, outputs = self._expected
            if x.shape != inputs or h.shape != states:
                return None
        if (
            not (x.dtype is h.dtype is self.dtype and x.is_contiguous() and h.is_contiguous())
            or x.is_neg()
            or h.is_neg()
        ):
            return None
        x_at, h_at = x.data_ptr(), h.data_ptr()
        if x_at < LOWEST_ADDRESS or h_at < LOWEST_ADDRESS:
            return None
        y, h_next = torch.empty_like(outputs), torch.empty_like(h)
        if c is None:
            self._run(x.shape[0], x_at, h_at, 0, y.data_ptr(), h_next.data_ptr(), 0)
            return y, h_next, None
        if c.shape != states or c.dtype is not self.dtype or not c.is_contiguous() or c.is_neg():
            return None
        if c.data_ptr() < LOWEST_ADDRESS:
            return None
        c_next = torch.empty_like(c)
        self._run(x.shape[0], x_at, h_at, c.data_ptr(), y.data_ptr(), h_next.data_ptr(), c_next.data_ptr())
        return y, h_next, c_next


def _packed(kind: str, weights: Weights) -> Tensor:
    w_ih, w_hh, b = dense(weights.w_ih), dense(weights.w_hh), dense(bias_blocks(kind, weights))
    sizes = {"features": w_ih.shape[1], "state": w_hh.shape[1], "kind": KINDS[kind]}
    packed = call("gated_step", "gated_step_pack", w_ih.dtype, **sizes, w_ih=w_ih, w_hh=w_hh, b=b)
    assert packed is not None  # a layer has weights
    return packed
