"""Fresh memory for large results: 2 MB pages where the system has them.

malloc maps a tensor above 32 MB anew at every call, and first touch of 4 KB pages is the slowest part of such a
call (8 GB/s, against 24 GB/s with 2 MB pages and 30 GB/s of warm memory).
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import OutOfMemoryError
from holdfast.kernels._common import library

_CPU = torch.device("cpu")  # made once: from a string it costs 0.5 us a call


@functools.cache
def _advise() -> Any:
    return library.function("holdfast_advise_large", [ctypes.c_void_p, ctypes.c_int64])


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor, dense whatever it stands for; needs the native library."""
    try:
        result = torch.empty(shape, dtype=dtype, device=_CPU)
    except RuntimeError as error:  # sizes are checked before: all that is left to fail is the memory
        raise OutOfMemoryError(
            f"no memory for {math.prod(shape) * dtype.itemsize} bytes, a {dtype} tensor of shape {tuple(shape)}; "
            "use a smaller batch or a shorter sequence"
        ) from error
    if result.nbytes >= library.number("fresh_bytes"):
        _advise()(result.data_ptr(), result.nbytes)
    return result
