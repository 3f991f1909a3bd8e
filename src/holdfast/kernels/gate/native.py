"""The gated residual in C++ as torch operators."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import OutOfMemoryError, ShapeError
from holdfast.kernels import library
from holdfast.kernels.arguments import dense, pointer, present, verify
from holdfast.kernels.memory import empty

# the widest vector of float32: a width that is no multiple would need masks
GRAIN = 16
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define("gate_forward(Tensor y, Tensor x, Tensor weight, Tensor bias, bool keep) -> (Tensor, Tensor)")
_LIBRARY.define(
    "gate_backward(Tensor y, Tensor weight, Tensor bias, Tensor z, Tensor grad) -> (Tensor, Tensor, Tensor)"
)


@functools.cache
def _function(name: str, dtype: torch.dtype, pointers: int) -> Any:
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    return library.function(
        f"holdfast_gate_{name}_{_SUFFIX[dtype]}", [size, size, *[pointer] * pointers, ctypes.c_int], ctypes.c_int
    )


def _run(name: str, tensors: tuple[Tensor | None, ...]) -> None:
    y = tensors[0]
    assert y is not None
    width = y.shape[-1]
    function = _function(name, y.dtype, len(tensors))
    if not function(y.numel() // width, width, *map(pointer, tensors), library.threads()):
        raise OutOfMemoryError(f"gate: no memory for the tiles of {name}; use fewer threads")


def _verify(y: Tensor, weight: Tensor, bias: Tensor, *others: tuple[Tensor, tuple[int, ...]]) -> None:
    width = y.shape[-1] if y.ndim else 0
    if width == 0 or width % GRAIN:
        raise ShapeError(f"gate: expected a width in whole {GRAIN}s, came y of shape {tuple(y.shape)}")
    verify("gate", y, (weight, (2 * width, width)), (bias, (2 * width,)), *others)


def gate_forward(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """The result, and gelu(y) weight' where it is to be kept for backward."""
    present("gate", y, x, weight, bias)
    _verify(y, weight, bias, (x, y.shape))
    out = empty(y.shape, y.dtype)
    z = empty((*y.shape[:-1], weight.shape[0]) if keep else (0,), y.dtype)
    _run("forward", (*map(dense, (y, weight, bias, x)), out, z if keep else None))
    return out, z


def gate_backward(y: Tensor, weight: Tensor, bias: Tensor, z: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of y, weight and bias; that of x is `grad` itself."""
    present("gate", y, weight, bias, z, grad)
    _verify(y, weight, bias, (z, (*y.shape[:-1], weight.shape[0])), (grad, y.shape))
    of_y, of_weight, of_bias = (empty(t.shape, t.dtype) for t in (y, weight, bias))
    _run("backward", (*map(dense, (y, weight, bias, z, grad)), of_y, of_weight, of_bias))
    return of_y, of_weight, of_bias


def _forward_meta(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty((*y.shape[:-1], weight.shape[0]) if keep else (0,))


def _backward_meta(y: Tensor, weight: Tensor, bias: Tensor, z: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return y.new_empty(y.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


_LIBRARY.impl("gate_forward", gate_forward, "CPU")
_LIBRARY.impl("gate_backward", gate_backward, "CPU")
_LIBRARY.impl("gate_forward", _forward_meta, "Meta")
_LIBRARY.impl("gate_backward", _backward_meta, "Meta")
