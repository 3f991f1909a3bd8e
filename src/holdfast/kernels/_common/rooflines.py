"""What this machine can give at most, measured by C functions without a kernel around: the rooflines of the benchmarks."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import library


def triad(out: Float[Tensor, " n"], x: Float[Tensor, " n"], y: Float[Tensor, " n"], scale: float) -> None:
    """The STREAM triad, the limit of the scans: writes x + scale * y into `out`, contiguous float32 CPU tensors of one size."""
    for name, tensor in (("out", out), ("x", x), ("y", y)):
        if tensor.shape != out.shape or not tensor.is_contiguous() or tensor.dtype != torch.float32:
            raise ShapeError(
                f"triad: expected {name} contiguous float32 of shape {tuple(out.shape)}, "
                f"got {tensor.dtype} {tuple(tensor.shape)}, contiguous={tensor.is_contiguous()}"
            )
    pointer = ctypes.c_void_p
    run = library.function("holdfast_triad", [pointer, pointer, pointer, ctypes.c_float, ctypes.c_int64, ctypes.c_int])
    run(out.data_ptr(), x.data_ptr(), y.data_ptr(), scale, out.numel(), library.threads())


def exponential_limit(states: int, steps: int) -> float:
    """The limit of the selective scan, one exponential and one multiply-add for each state and step; gives a sum of states.

    Runs `states` states (batch and channels included) through `steps` steps of h = exp(dt a) h + dt in registers, in float32.
    """
    run = library.function("holdfast_selective_limit", [ctypes.c_int64, ctypes.c_int64, ctypes.c_int], ctypes.c_float)
    return float(run(states, steps, library.threads()))
