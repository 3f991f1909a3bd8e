"""The RNN on GPUs: products over all of time by torch, the recurrence in one launch where W fits on the chip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.errors import BackendError
from holdfast.kernels._common import gpu
from holdfast.kernels._common.gpu import ceil_div, power_of_two
from holdfast.kernels.rnn import _autograd as autograd
from holdfast.kernels.rnn import _chunked
from holdfast.kernels.rnn._autograd import Backend
from holdfast.kernels.rnn._reference import RNNSaved, RNNSettings, RNNTensors

MAX_STATES = 128  # W in float32 is 64 KB then, and 144 KB of shared memory with what tl.dot takes
ROWS = 16  # of a program: the fewest that tl.dot takes


def _fits(x: Tensor, w: Tensor, settings: RNNSettings) -> bool:
    """Whether the kernel takes it; a call that asked for it by name is refused otherwise."""
    fits = w.ndim == 2 and w.shape[0] <= MAX_STATES and x.dtype == torch.float32
    if not fits and settings.backend == "triton":
        raise BackendError(
            f"rnn: the Triton kernel takes float32 and a matrix W of at most {MAX_STATES} states, got {x.dtype} and w of "
            f"shape {tuple(w.shape)}; use backend='auto'"
        )
    return fits


def _constants(settings: RNNSettings, dts: Tensor | None, lengths: Tensor | None, w: Tensor) -> dict[str, Any]:
    states = w.shape[0]
    return {
        "HAS_DTS": dts is not None, "HAS_LENGTHS": lengths is not None, "EULER": settings.dt is not None,
        "REVERSE": settings.reverse, "ACTIVATION": settings.activation, "PRECISION": gpu.dot_precision(w.device),
        "ROWS": ROWS, "STATES": max(16, power_of_two(states)), "num_warps": 4 if states <= 64 else 8, "num_stages": 1,
    }  # fmt: skip


def _dense(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.contiguous()


def _forward(tensors: RNNTensors, settings: RNNSettings, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, w, u, b, h0, dts, lengths = tensors
    if not _fits(x, w, settings):
        return _chunked.forward(tensors, settings, keep)
    from holdfast.kernels.rnn._triton_kernels import rnn_forward_kernel

    rows, time, _ = x.shape
    states = w.shape[0]
    drive = functional.linear(x, u, b)
    h, last = torch.empty_like(drive), x.new_empty((rows, states))
    y = torch.empty_like(drive) if keep else x.new_empty(0)
    gpu.launch(
        rnn_forward_kernel, (ceil_div(rows, ROWS),), x, drive, w.contiguous(), _dense(h0), _dense(dts), _dense(lengths),
        h, y, last, rows, time, states, settings.dt or 0.0, HAS_H0=h0 is not None, KEEP=keep,
        **_constants(settings, dts, lengths, w),
    )  # fmt: skip
    return h, last, y


def _backward(
    saved: RNNSaved, grad_h: Tensor | None, grad_last: Tensor | None, settings: RNNSettings, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    if not _fits(saved.x, saved.w, settings):
        return _chunked.backward(saved, grad_h, grad_last, settings, wanted)
    from holdfast.kernels.rnn._triton_kernels import rnn_backward_kernel

    rows, time, states = saved.h.shape
    values = saved.h if settings.dt is None else saved.y
    deltas, of_h0 = torch.empty_like(saved.h, memory_format=torch.contiguous_format), saved.h.new_empty((rows, states))
    of_dts = None if saved.dts is None else saved.h.new_empty((rows, time))
    gpu.launch(
        rnn_backward_kernel, (ceil_div(rows, ROWS),), saved.h, saved.w.contiguous(), values.contiguous(),
        _dense(saved.dts), _dense(saved.lengths), _dense(grad_h), _dense(grad_last), deltas, of_h0, of_dts, rows, time,
        states, settings.dt or 0.0, HAS_GRAD=grad_h is not None, HAS_LAST=grad_last is not None,
        **_constants(settings, saved.dts, saved.lengths, saved.w),
    )  # fmt: skip
    return _chunked.gradients(saved, (deltas, of_h0, of_dts if wanted[5] else None), settings, wanted)


autograd.register("triton", Backend(_chunked.in_full_precision(_forward), _chunked.in_full_precision(_backward)))
