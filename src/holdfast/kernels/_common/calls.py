"""The one way into a kernel of the C library: arguments by name, in a structure that the library itself describes.

csrc/common/call.h has the other half. `holdfast_<kernel>_fields` tells the fields of a kernel's struct as text; the
structure here is built from it, so that a name or a type that does not agree is an error and never a wrong address. A
kernel's function gives the bytes of workspace that it still lacks, 0 after it has run.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.kernels._common import library
from holdfast.kernels._common.memory import empty

# letters of the struct module, which pads as the C compiler does
_LETTERS = {"int64_t": "q", "int32_t": "i", "double": "d", "*": "P"}


class _Layout(NamedTuple):
    """A kernel's structure: every field with 0, in the order of C, and what writes their values one after another."""

    zeros: dict[str, int]
    pack: Callable[..., bytes]


@functools.cache
def _layout(kernel: str) -> _Layout:
    """The arguments of `kernel`, by the library's own description."""
    text = library.function(f"holdfast_{kernel}_fields", [], ctypes.c_char_p)().decode()
    pairs = [field.rsplit(" ", 1) for field in text.split(";") if field]
    packer = struct.Struct("@" + "".join(_LETTERS["*" if "*" in kind else kind] for kind, _ in pairs))
    return _Layout(dict.fromkeys((name for _, name in pairs), 0), packer.pack)


@functools.cache
def _function(kernel: str, name: str) -> tuple[_Layout, Any]:
    return _layout(kernel), library.function(f"holdfast_{name}", [ctypes.c_char_p], ctypes.c_int64)


def call(kernel: str, name: str, dtype: torch.dtype, /, **arguments: Tensor | float | None) -> Tensor | None:
    """Runs `holdfast_<name>`, whose arguments are those of `kernel`; returns its workspace, None where it needs none.

    Args:
        kernel: whose structure of arguments.
        name: the function.
        dtype: of the elements, float32 or float64 (of complex numbers, that of their parts).
        arguments: fields of the structure; what is left out is 0 or null. Tensors have to be as the kernel reads them,
            with memory behind them (`arguments.verify`).
    """
    (zeros, pack), function = _function(kernel, name)
    fields: dict[str, Any] = zeros.copy()
    fields["wide"], fields["threads"] = dtype is torch.float64, library.threads()
    for key, value in arguments.items():
        kind = type(value)
        # isinstance(value, Tensor) of a number takes 70 ns, these comparisons 10
        if kind is int or kind is bool or kind is float:
            fields[key] = value
        elif value is not None:
            fields[key] = value.data_ptr()  # type: ignore[union-attr]
    # one struct.pack of all fields takes 0.3 us, setting those of a ctypes.Structure one by one 1.5 us; a name that the
    # kernel does not have is one value too many for it
    needed = function(pack(*fields.values()))
    if needed == 0:
        return None
    # uninitialised on purpose; torch aligns it to a cache line
    workspace = empty((needed,), torch.uint8)
    fields["workspace"] = workspace.data_ptr()
    function(pack(*fields.values()))
    return workspace
