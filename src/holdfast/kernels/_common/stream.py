"""The STREAM triad over float32 arrays: what the memory system gives, the roofline of the scans."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import library


def triad(out: Float[Tensor, " n"], x: Float[Tensor, " n"], y: Float[Tensor, " n"], scale: float) -> None:
    """Writes x + scale * y into `out`: contiguous float32 CPU tensors of one size."""
    for name, tensor in (("out", out), ("x", x), ("y", y)):
        if tensor.shape != out.shape or not tensor.is_contiguous() or tensor.dtype != torch.float32:
            raise ShapeError(
                f"triad: expected {name} contiguous float32 of shape {tuple(out.shape)}, "
                f"got {tensor.dtype} {tuple(tensor.shape)}, contiguous={tensor.is_contiguous()}"
            )
    pointer = ctypes.c_void_p
    run = library.function("holdfast_triad", [pointer, pointer, pointer, ctypes.c_float, ctypes.c_int64, ctypes.c_int])
    run(out.data_ptr(), x.data_ptr(), y.data_ptr(), scale, out.numel(), library.threads())
