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
from holdfast.kernels import library

FRESH_BYTES = 32 << 20


@functools.cache
def _advise() -> Any:
    return library.function("holdfast_advise_large", [ctypes.c_void_p, ctypes.c_int64])


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor, dense whatever it stands for; needs the native library."""
    try:
        result = torch.empty(shape, dtype=dtype)
    except RuntimeError as error:  # sizes are checked before: all that is left to fail is the memory
        raise OutOfMemoryError(
            f"no memory for {math.prod(shape) * dtype.itemsize} bytes, a {dtype} tensor of shape {tuple(shape)}; "
            "use a smaller batch or a shorter sequence"
        ) from error
    size = result.numel() * result.element_size()
    if size >= FRESH_BYTES:
        _advise()(result.data_ptr(), size)
    return result


@functools.cache
def _same() -> Any:
    pointer = ctypes.c_void_p
    return library.function("holdfast_same", [pointer, pointer, pointer, ctypes.c_int64], ctypes.c_int)


class Copies:
    """Copies of some tensors, to tell later whether these still hold the same numbers.

    In one call of C for all of them where it can be: torch.equal takes 3 us a tensor, at every step of a stream.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._copies = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
        self._places: tuple[tuple[int, int], ...] = ()
        self._arguments: tuple[Any, ...] = ()

    def equal(self, tensors: Sequence[Tensor]) -> bool:
        """True where each of the tensors has the dtype, shape and numbers of its copy."""
        places = tuple([(t.data_ptr(), t.nbytes) for t in tensors])
        if places != self._places:
            self._arguments = ()
            pairs = list(zip(self._copies, tensors, strict=True))
            if any(x.dtype is not y.dtype or x.shape != y.shape or x.device != y.device for x, y in pairs):
                return False
            if library.missing() or not all(t.device.type == "cpu" and t.is_contiguous() for t in tensors):
                return all(torch.equal(x, y) for x, y in pairs)
            self._places, self._arguments = places, self._prepare(places)
        return bool(_same()(*self._arguments))

    def _prepare(self, places: tuple[tuple[int, int], ...]) -> tuple[Any, ...]:
        count = len(places)
        before = (ctypes.c_void_p * count)(*(copy.data_ptr() for copy in self._copies))
        now = (ctypes.c_void_p * count)(*(place for place, _ in places))
        return before, now, (ctypes.c_int64 * count)(*(size for _, size in places)), count
