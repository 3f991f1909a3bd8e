"""LSTM and GRU in C++: rows of the batch over threads, products and gates of a step fused, no barrier in time.

csrc/gated/plan.h has the layout. A training step keeps x, h, the four blocks of gates and of an LSTM the cells: (6 or 5)
state + features numbers a token. Backward, weight gradients are summed over some steps at once while these are in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import checks
from holdfast.kernels._common.arguments import dense, flags, present, sizes, verify
from holdfast.kernels._common.calls import call
from holdfast.kernels._common.memory import empty

BLOCKS = 4  # of a row of gates, also of a GRU: its content has a part of the inputs and one of the states
GRADIENTS = ("grad_x", "grad_w_ih", "grad_w_hh", "grad_b", "grad_h0", "grad_c0")

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define(
    "gated_forward(Tensor x, Tensor w_ih, Tensor w_hh, Tensor b, Tensor? h0, Tensor? c0, Tensor? lengths, bool gru, "
    "bool reverse, bool keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "gated_backward(Tensor x, Tensor w_ih, Tensor w_hh, Tensor? h0, Tensor? c0, Tensor? lengths, Tensor h, Tensor gates, "
    "Tensor cells, Tensor? grad_h, Tensor? grad_last, Tensor? grad_c_last, bool gru, bool reverse, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _shapes(x: Tensor, w_hh: Tensor, gru: bool, keep: bool) -> tuple[tuple[int, ...], ...]:
    """Of h, last, c_last, gates and cells."""
    (batch, time, _), state = x.shape, w_hh.shape[1]
    cells = (batch, time, state) if keep and not gru else (0,)
    gates = (batch, time, BLOCKS, state) if keep else (0,)
    return (batch, time, state), (batch, state), (0,) if gru else (batch, state), gates, cells


def _verify(x: Tensor, w_ih: Tensor, w_hh: Tensor, lengths: Tensor | None, gru: bool) -> tuple[int, int, int]:
    """Batch, time and state, after a check of what C relies on."""
    present("gated", w_ih, w_hh)
    batch, time, features = sizes("gated", "x", x, "batch time features")
    state = sizes("gated", "w_hh", w_hh, "gates state")[1]
    rows = (3 if gru else 4) * state
    verify("gated", x, (w_ih, (rows, features)), (w_hh, (rows, state)))
    if lengths is not None:
        checks.lengths("gated", lengths, (batch,), time, x.device)
    return batch, time, state


def _run(name: str, x: Tensor, w_ih: Tensor, w_hh: Tensor, gru: bool, reverse: bool, **tensors: Tensor | None) -> None:
    batch, time, features = x.shape
    given = {key: dense(t) for key, t in {"x": x, "w_ih": w_ih, "w_hh": w_hh, **tensors}.items()}
    filled = {key: t for key, t in given.items() if t is not None and t.numel()}
    call(
        "gated", f"gated_{name}", x.dtype, batch=batch, time=time, features=features, state=w_hh.shape[1], gru=gru,
        reverse=reverse, **filled,
    )  # fmt: skip


def _forward(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor, h0: Tensor | None, c0: Tensor | None, lengths: Tensor | None,
    gru: bool, reverse: bool, keep: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    batch, _, state = _verify(x, w_ih, w_hh, lengths, gru)
    verify("gated", x, (b, (BLOCKS, state)), (h0, (batch, state)), (c0, (batch, state)))
    h, last, c_last, gates, cells = (empty(shape, x.dtype) for shape in _shapes(x, w_hh, gru, keep))
    if h.numel() == 0:  # no step: sizes without memory behind them end here
        for result, start in ((last, h0), (c_last, c0)):
            if result.numel():
                result.zero_() if start is None else result.copy_(start)
        return h, last, c_last, gates, cells
    results = {"h": h, "last": last, "c_last": c_last, "gates": gates, "cells": cells}
    _run("forward", x, w_ih, w_hh, gru, reverse, b=b, h0=h0, c0=c0, lengths=lengths, **results)
    return h, last, c_last, gates, cells


def _gradient_shapes(x: Tensor, w_ih: Tensor, w_hh: Tensor) -> tuple[tuple[int, ...], ...]:
    rows = (x.shape[0], w_hh.shape[1])
    return tuple(x.shape), tuple(w_ih.shape), tuple(w_hh.shape), (BLOCKS, w_hh.shape[1]), rows, rows


def _backward(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, h0: Tensor | None, c0: Tensor | None, lengths: Tensor | None, h: Tensor,
    gates: Tensor, cells: Tensor, grad_h: Tensor | None, grad_last: Tensor | None, grad_c_last: Tensor | None, gru: bool,
    reverse: bool, wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    flags("gated", "wanted", wanted, len(GRADIENTS))
    present("gated", h, gates, cells)
    batch, _, state = _verify(x, w_ih, w_hh, lengths, gru)
    shape_h, rows, _, shape_gates, shape_cells = _shapes(x, w_hh, gru, True)
    verify("gated", x, (h0, rows), (c0, rows), (h, shape_h), (gates, shape_gates), (cells, shape_cells))
    verify("gated", x, (grad_h, shape_h), (grad_last, rows), (grad_c_last, rows))
    gradients = [
        empty(shape if want else (0,), x.dtype)
        for shape, want in zip(_gradient_shapes(x, w_ih, w_hh), wanted, strict=True)
    ]
    if h.numel() == 0:
        for gradient in gradients:
            gradient.zero_()
        for gradient, start in zip(gradients[4:], (grad_last, grad_c_last), strict=True):
            if gradient.numel() and start is not None:
                gradient.copy_(start)
        return tuple(gradients)
    kept = {"h0": h0, "c0": c0, "lengths": lengths, "h": h, "gates": gates, "cells": cells}
    given = {"grad_h": grad_h, "grad_last": grad_last, "grad_c_last": grad_c_last}
    _run("backward", x, w_ih, w_hh, gru, reverse, **kept, **given, **dict(zip(GRADIENTS, gradients, strict=True)))
    return tuple(gradients)


def _forward_meta(x: Tensor, w_ih: Tensor, w_hh: Tensor, b: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    _, _, _, gru, _, keep = rest
    return tuple(x.new_empty(shape) for shape in _shapes(x, w_hh, gru, keep))


def _backward_meta(x: Tensor, w_ih: Tensor, w_hh: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    shapes = _gradient_shapes(x, w_ih, w_hh)
    return tuple(x.new_empty(shape if want else (0,)) for shape, want in zip(shapes, rest[-1], strict=True))


_LIBRARY.impl("gated_forward", _forward, "CPU")
_LIBRARY.impl("gated_backward", _backward, "CPU")
_LIBRARY.impl("gated_forward", _forward_meta, "Meta")
_LIBRARY.impl("gated_backward", _backward_meta, "Meta")
