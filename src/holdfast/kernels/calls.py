"""The one way into a kernel of the C library: arguments by name, in a structure that the library itself describes.

csrc/common/call.h has the other half. `holdfast_<kernel>_fields` tells the fields of a kernel's struct as text; the
structure here is built from it, so that a name or a type that does not agree is an error and never a wrong address. A
kernel's function gives the bytes of workspace that it still lacks, 0 after it has run.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from holdfast.kernels import library
from holdfast.kernels.memory import empty

_TYPES = {"int64_t": ctypes.c_int64, "int32_t": ctypes.c_int32, "double": ctypes.c_double}


@functools.cache
def structure(kernel: str) -> type[ctypes.Structure]:
    """The arguments of `kernel` as a ctypes structure, by the library's own description."""
    text = library.function(f"holdfast_{kernel}_fields", [], ctypes.c_char_p)().decode()
    pairs = [field.rsplit(" ", 1) for field in text.split(";") if field]
    fields = [(name, ctypes.c_void_p if "*" in kind else _TYPES[kind]) for kind, name in pairs]
    # without a __dict__ a name that the kernel does not have is an AttributeError
    return type(f"{kernel}_call", (ctypes.Structure,), {"_fields_": fields, "__slots__": ()})


@functools.cache
def _function(kernel: str, name: str) -> tuple[type[ctypes.Structure], Any]:
    fields = structure(kernel)
    return fields, library.function(f"holdfast_{name}", [ctypes.POINTER(fields)], ctypes.c_int64)


def call(kernel: str, name: str, dtype: torch.dtype, /, **arguments: Tensor | float | None) -> Tensor | None:
    """Runs `holdfast_<name>`, whose arguments are those of `kernel`; returns its workspace, None where it needs none.

    Args:
        kernel: whose structure of arguments.
        name: the function.
        dtype: of the elements, float32 or float64 (of complex numbers, that of their parts).
        arguments: fields of the structure; what is left out is 0 or null. Tensors have to be as the kernel reads them,
            with memory behind them (`arguments.verify`).
    """
    fields, function = _function(kernel, name)
    prepared = fields()
    prepared.wide, prepared.threads = dtype is torch.float64, library.threads()
    for key, value in arguments.items():
        if value is not None:
            setattr(prepared, key, value.data_ptr() if isinstance(value, Tensor) else value)
    needed = function(prepared)
    if needed == 0:
        return None
    # uninitialised on purpose; torch aligns it to a cache line
    workspace = empty((needed,), torch.uint8)
    prepared.workspace = workspace.data_ptr()
    function(prepared)
    return workspace
