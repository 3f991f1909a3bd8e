"""The linear recurrent unit tile by tile in C++: products and scan on some steps of a row while they are in the cache.

The states are written once and their gradients never reach memory. A whole step runs at 70-95% of the arithmetic of a
large square product, torch's products alone at 55-85% at these sizes; for wide layers torch's are the better ones.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import OutOfMemoryError
from holdfast.kernels import library
from holdfast.kernels.arguments import pointer
from holdfast.kernels.memory import empty

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
# the widest vector of float32: sizes that are no multiple would need masks
_GRAIN = 16
# a weight of 256 KB stays in the second cache beside the tiles
_LARGEST = 1 << 16


def suits(inputs: int, numbers: int, outputs: int) -> bool:
    """True where the layer's sizes fit the tiles."""
    whole = not any(size % _GRAIN or size == 0 for size in (inputs, numbers, outputs))
    return whole and numbers <= 1024 and numbers * max(inputs, outputs) <= _LARGEST


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Any:
    flag, pointer = ctypes.c_int, ctypes.c_void_p
    pointers = {"forward": 6, "backward": 7}[name]
    return library.function(
        f"holdfast_lru_fused_{name}_{_SUFFIX[dtype]}", [flag, flag, *[pointer] * pointers, flag], flag
    )


def _pointers(*tensors: Tensor | None) -> Any:
    return (ctypes.c_void_p * len(tensors))(*map(pointer, tensors))


def _sizes(u: Tensor, b: Tensor, c: Tensor) -> Any:
    return (ctypes.c_int64 * 5)(u.shape[0], u.shape[1], u.shape[2], b.shape[0], c.shape[0])


def _run(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    pointers = (x.data_ptr() if isinstance(x, Tensor) else x for x in arguments)
    if not _function(name, dtype)(*pointers, library.threads()):
        raise OutOfMemoryError(f"lru: no memory for the weights' copies in {name}; use fewer threads")


def forward(
    u: Tensor, lam: Tensor, planar: bool, b: Tensor, c: Tensor, d: Tensor | None, h0: Tensor | None,
    lengths: Tensor | None, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, all states and the final ones; every argument contiguous."""
    rows, time, _ = u.shape
    y, h = (empty((rows, time, size), u.dtype) for size in (c.shape[0], b.shape[0]))
    last = empty((rows, b.shape[0]), u.dtype)
    _run("forward", u.dtype, planar, reverse, _sizes(u, b, c), lengths, _pointers(u, lam, b, c, d, h0), h, y, last)
    return y, h, last


def backward(
    u: Tensor, lam: Tensor, planar: bool, b: Tensor, c: Tensor, d: Tensor | None, h0: Tensor | None,
    lengths: Tensor | None, reverse: bool, h: Tensor, grad_y: Tensor, grad_last: Tensor | None, wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of u, lam (a summand for each row), b, c, d and h0 where `wanted`; empty tensors elsewhere."""
    rows = (u.shape[0], b.shape[0])
    shapes = (u.shape, rows, b.shape, c.shape, (c.shape[0],), rows)
    asked = (*wanted[:4], wanted[4] and d is not None, True)
    grads = tuple(empty(shape if want else (0,), u.dtype) for shape, want in zip(shapes, asked, strict=True))
    places = _pointers(*(grad if want else None for grad, want in zip(grads, asked, strict=True)))
    _run(
        "backward", u.dtype, planar, reverse, _sizes(u, b, c), lengths, _pointers(u, lam, b, c, d, h0),
        h, grad_y, grad_last, places,
    )  # fmt: skip
    return grads  # type: ignore[return-value]
