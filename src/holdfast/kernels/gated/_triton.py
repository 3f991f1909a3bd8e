"""The recurrence of LSTM, GRU and the GRU in continuous time on GPUs as torch operators: one launch for all of time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import gpu
from holdfast.kernels._common.gpu import ceil_div, power_of_two

MAX_STATES = 64  # the matrices of four gates are 64 KB then, and 136 KB of shared memory with what tl.dot takes
ROWS = 16  # of a program: the fewest that tl.dot takes
GATES = {"lstm": 4, "gru": 3, "continuous": 3}
PARTS = {"lstm": 4, "gru": 4, "continuous": 3}  # sums inside the gates

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_CALL = "Tensor? steps, Tensor? lengths"
_SETTINGS = "str cell, float step, bool reverse"
_LIBRARY.define(
    f"gated_triton_forward(Tensor drive, Tensor w, Tensor? bias, Tensor? h0, Tensor? c0, {_CALL}, {_SETTINGS}) -> "
    "(Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    f"gated_triton_backward(Tensor w, Tensor sums, Tensor before, Tensor? cells, Tensor? cells_before, {_CALL}, "
    f"Tensor? grad_h, Tensor? grad_last, Tensor? grad_c, {_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor)"
)


def fits(w: Tensor) -> bool:
    """Whether the matrices of all gates stay on the chip, in float32."""
    return w.dtype == torch.float32 and w.shape[1] <= MAX_STATES


def _constants(w: Tensor, steps: Tensor | None, lengths: Tensor | None, cell: str, reverse: bool) -> dict[str, Any]:
    made = {
        "CELL": cell, "HAS_STEPS": steps is not None, "HAS_LENGTHS": lengths is not None, "REVERSE": reverse,
        "PRECISION": gpu.dot_precision(w.device), "ROWS": ROWS, "STATES": max(16, power_of_two(w.shape[1])), "num_stages": 1,
    }  # fmt: skip
    return made | LAUNCH.get(gpu.vendor(w.device), {"num_warps": 8})


# registers of a thread are bounded on NVIDIA's cards, where the compiler would spill to get two programs at once
LAUNCH: dict[str, dict[str, int]] = {"cuda": {"num_warps": 8, "maxnreg": 160}, "hip": {"num_warps": 4}}


def _dense(*values: Tensor | None) -> list[Tensor | None]:
    return [None if value is None else value.contiguous() for value in values]


def gated_triton_forward(
    drive: Tensor, w: Tensor, bias: Tensor | None, h0: Tensor | None, c0: Tensor | None, steps: Tensor | None,
    lengths: Tensor | None, cell: str, step: float, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """States, cells (empty but of an LSTM), the last state and the last cell."""
    from holdfast.kernels.gated._triton_kernels import gated_forward_kernel

    made = _forward_meta(drive, w, bias, h0, c0, steps, lengths, cell, step, reverse)
    rows, time, states = made[0].shape
    if drive.numel() == 0:
        return made[0], made[1], _start(h0, made[2]), _start(c0, made[3])
    tensors = _dense(drive, w, bias, h0, c0, steps, lengths)
    gpu.launch(
        gated_forward_kernel, (ceil_div(rows, ROWS),), drive, *tensors, *made, rows, time, states, step,
        GATES=GATES[cell], HAS_H0=h0 is not None, HAS_C0=c0 is not None,
        **_constants(w, steps, lengths, cell, reverse),
    )  # fmt: skip
    return made


def _start(given: Tensor | None, like: Tensor) -> Tensor:
    return like.zero_() if given is None else given.clone()


def gated_triton_backward(
    w: Tensor, sums: Tensor, before: Tensor, cells: Tensor | None, cells_before: Tensor | None, steps: Tensor | None,
    lengths: Tensor | None, grad_h: Tensor | None, grad_last: Tensor | None, grad_c: Tensor | None, cell: str,
    step: float, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the sums inside the gates, of the first state and cell, and of the steps; empty what there is not."""
    from holdfast.kernels.gated._triton_kernels import gated_backward_kernel

    tensors = _dense(w, sums, before, cells, cells_before, steps, lengths, grad_h, grad_last, grad_c)
    made = _backward_meta(w, sums, before, cells, cells_before, steps)
    rows, time, states = before.shape
    if before.numel() == 0:
        return made[0], _start(grad_last, made[1]), _start(grad_c, made[2]), made[3]
    gpu.launch(
        gated_backward_kernel, (ceil_div(rows, ROWS),), w, *tensors, *made, rows, time, states, step,
        PARTS=PARTS[cell], HAS_GRAD=grad_h is not None, HAS_LAST=grad_last is not None, HAS_C=grad_c is not None,
        **_constants(w, steps, lengths, cell, reverse),
    )  # fmt: skip
    return made


def _forward_meta(drive: Tensor, w: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (rows, time, _), states, lstm = drive.shape, w.shape[1], rest[5] == "lstm"
    h, last = drive.new_empty((rows, time, states)), drive.new_empty((rows, states))
    return h, drive.new_empty(h.shape if lstm else (0,)), last, drive.new_empty(last.shape if lstm else (0,))


def _backward_meta(
    w: Tensor, sums: Tensor, before: Tensor, cells: Tensor | None, cells_before: Tensor | None, steps: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows, time, states = before.shape
    of_c0 = before.new_empty((0,) if cells is None else (rows, states))
    of_steps = before.new_empty((0,) if steps is None else (rows, time))
    return sums.new_empty(sums.shape), before.new_empty((rows, states)), of_c0, of_steps


for _name, _kernel, _meta in (
    ("gated_triton_forward", gated_triton_forward, _forward_meta),
    ("gated_triton_backward", gated_triton_backward, _backward_meta),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _meta, "Meta")
