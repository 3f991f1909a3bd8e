"""LSTM and GRU in C++: rows of the batch over threads, products and gates of a step fused, no barrier in time.

csrc/gated/plan.h has the layout. A training step keeps x, h, four blocks of gates and of an LSTM the cells: 5 (LSTM: 6)
numbers per token and unit, and x. Backward, weight gradients are summed over some steps at once while these are in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from holdfast.kernels._common import checks
from holdfast.kernels._common.backends import define
from holdfast.kernels._common.calls import call, dense, empty, flags, present, sizes, verify

BLOCKS = 4  # of a row of gates, also of a GRU: its content has a part of the inputs and one of the states
GRADIENTS = ("grad_x", "grad_w_ih", "grad_w_hh", "grad_b", "grad_h0", "grad_c0")


class GatedTensors(NamedTuple):
    """What one layer reads in one direction; b (4, state) has the blocks of csrc/gated/plan.h."""

    x: Tensor
    w_ih: Tensor
    w_hh: Tensor
    b: Tensor
    h0: Tensor | None
    c0: Tensor | None
    lengths: Tensor | None

    @property
    def rows(self) -> tuple[int, int]:
        """The shape of a state."""
        return self.x.shape[0], self.w_hh.shape[1]


class GatedSettings(NamedTuple):
    """Whether it is a GRU, and runs from the last step to the first."""

    gru: bool
    reverse: bool


class GatedSaved(NamedTuple):
    """What backward needs of the forward pass beside its arguments."""

    h: Tensor
    gates: Tensor
    cells: Tensor


class GatedGradients(NamedTuple):
    """Of outputs, last state and last cell."""

    grad_h: Tensor | None
    grad_last: Tensor | None
    grad_c_last: Tensor | None


def _shapes(tensors: GatedTensors, gru: bool, keep: bool) -> tuple[tuple[int, ...], ...]:
    """Of h, last, c_last, gates and cells; what there is not is empty."""
    (batch, time, _), rows = tensors.x.shape, tensors.rows
    states = (batch, time, rows[1])
    gates = (batch, time, BLOCKS, rows[1]) if keep else (0,)
    return states, rows, (0,) if gru else rows, gates, states if keep and not gru else (0,)


def _gradient_shapes(tensors: GatedTensors) -> tuple[tuple[int, ...], ...]:
    rows = tensors.rows
    weights = (tuple(tensors.w_ih.shape), tuple(tensors.w_hh.shape), (BLOCKS, rows[1]))
    return tuple(tensors.x.shape), *weights, rows, rows


def _verify(tensors: GatedTensors, gru: bool) -> None:
    """What C relies on; lengths now have values to check, which they have not while a graph is traced."""
    x, w_ih, w_hh, b, h0, c0, lengths = tensors
    present("lstm", w_ih, w_hh, b)
    batch, time, features = sizes("lstm", "x", x, "batch time features")
    state = sizes("lstm", "w_hh", w_hh, "gates state")[1]
    gates = (3 if gru else 4) * state
    rows = (batch, state)
    verify("lstm", x, (w_ih, (gates, features)), (w_hh, (gates, state)), (b, (BLOCKS, state)), (h0, rows), (c0, rows))
    if lengths is not None:
        checks.lengths("lstm", lengths, (batch,), time, x.device)


def _run(name: str, tensors: GatedTensors, settings: GatedSettings, **others: Tensor | None) -> None:
    batch, time, features = tensors.x.shape
    given = {key: dense(t) for key, t in {**tensors._asdict(), **others}.items()}
    filled = {key: t for key, t in given.items() if t is not None and t.numel()}
    sizes_of = {"batch": batch, "time": time, "features": features, "state": tensors.w_hh.shape[1]}
    call("gated", f"gated_{name}", tensors.x.dtype, gru=settings.gru, reverse=settings.reverse, **sizes_of, **filled)


def native_forward(
    tensors: GatedTensors, settings: GatedSettings, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs, last state and cell, and where `keep` what backward needs; what there is not is empty."""
    _verify(tensors, settings.gru)
    h, last, c_last, gates, cells = (empty(shape, tensors.x.dtype) for shape in _shapes(tensors, settings.gru, keep))
    if h.numel() == 0:  # no step: sizes without memory behind them end here
        for result, start in ((last, tensors.h0), (c_last, tensors.c0)):
            if result.numel():
                result.zero_() if start is None else result.copy_(start)
        return h, last, c_last, gates, cells
    _run("forward", tensors, settings, h=h, last=last, c_last=c_last, gates=gates, cells=cells)
    return h, last, c_last, gates, cells


def _forward_meta(
    tensors: GatedTensors, settings: GatedSettings, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    h, last, c_last, gates, cells = (tensors.x.new_empty(shape) for shape in _shapes(tensors, settings.gru, keep))
    return h, last, c_last, gates, cells


def native_backward(
    tensors: GatedTensors, saved: GatedSaved, grads: GatedGradients, settings: GatedSettings, wanted: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients that are wanted, in the order of GRADIENTS; the others are empty."""
    flags("lstm", "wanted", wanted, len(GRADIENTS))
    present("lstm", *saved)
    _verify(tensors, settings.gru)
    states, rows, _, gates, cells = _shapes(tensors, settings.gru, True)
    verify("lstm", tensors.x, *zip(saved, (states, gates, cells), strict=True))
    verify("lstm", tensors.x, *zip(grads, (states, rows, rows), strict=True))
    results = [
        empty(shape if want else (0,), tensors.x.dtype)
        for shape, want in zip(_gradient_shapes(tensors), wanted, strict=True)
    ]
    if saved.h.numel() == 0:
        for result in results:
            result.zero_()
        for result, end in zip(results[4:], grads[1:], strict=True):
            if result.numel() and end is not None:
                result.copy_(end)
    else:
        named = dict(zip(GRADIENTS, results, strict=True))
        _run("backward", tensors, settings, **saved._asdict(), **grads._asdict(), **named)
    x, w_ih, w_hh, b, h0, c0 = results
    return x, w_ih, w_hh, b, h0, c0


def _backward_meta(
    tensors: GatedTensors, saved: GatedSaved, grads: GatedGradients, settings: GatedSettings, wanted: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    shapes = zip(_gradient_shapes(tensors), wanted, strict=True)
    x, w_ih, w_hh, b, h0, c0 = (tensors.x.new_empty(shape if want else (0,)) for shape, want in shapes)
    return x, w_ih, w_hh, b, h0, c0


define("gated_forward", native_forward, _forward_meta)
define("gated_backward", native_backward, _backward_meta)
