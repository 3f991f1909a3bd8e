"""The last look at tensors before C reads them, whoever called: the one way from a tensor to a pointer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from holdfast.errors import ArgumentError, DtypeError, ShapeError
from holdfast.kernels._common import checks
from holdfast.kernels._common.memory import empty

Maybe = TypeVar("Maybe", Tensor, Tensor | None)
LOWEST_ADDRESS = 1 << 32
Expected = tuple[Tensor | None, tuple[int, ...]]


def verify(function: str, like: Tensor, *expected: Expected, dtypes: Sequence[torch.dtype] = checks.REAL) -> None:
    """Refuses what C would misread: each tensor must have the shape beside it, and dtype and device of `like`.

    The public functions have said the same in better words; this is for those who call torch.ops.holdfast themselves.
    """
    dtype = like.dtype
    if dtype not in dtypes:
        checks.tensor(function, "the tensors", like, dtypes)
    pointer(like)
    for value, shape in expected:
        if value is None:
            continue
        if value.data_ptr() < LOWEST_ADDRESS:  # asked here too: a call of `pointer` takes longer than all else
            pointer(value)
        if value.shape != shape:
            raise ShapeError(
                f"{function}: expected a tensor of shape {tuple(shape)}, which goes with the others, got "
                f"{checks.describe(value)}; call holdfast.kernels.{function}"
            )
        if value.dtype is not dtype or not value.is_cpu:
            raise DtypeError(
                f"{function}: expected all tensors in {dtype} on the cpu, got {checks.describe(value)}; "
                f"call holdfast.kernels.{function}, which converts"
            )


def present(function: str, *needed: Tensor | None) -> None:
    """Refuses None: torch's operators let it through also where their schema asks for a tensor."""
    if any(value is None for value in needed):
        raise DtypeError(
            f"{function}: expected tensors, got None in the place of one; call holdfast.kernels.{function}"
        )


def sizes(function: str, name: str, value: Tensor, dims: str) -> tuple[int, ...]:
    """The shape of `value`, after a check that it has the dimensions `dims` ("batch time features")."""
    present(function, value)
    checks.ndim(function, name, value, dims)
    return tuple(value.shape)


def flags(function: str, name: str, value: Sequence[bool], count: int) -> None:
    """Refuses a list of choices that has not one for each of `count` gradients."""
    if len(value) != count:
        raise ArgumentError(f"{function}: expected {count} entries in {name}, got {len(value)}")


def dense(value: Maybe) -> Maybe:
    """The values one after another in memory, as they are meant: negation and conjugation done, not noted."""
    if value is None or (value.is_contiguous() and not value.is_neg() and not value.is_conj()):
        return value
    return empty(value.shape, value.dtype).copy_(value)


def in_dtype(value: Maybe, dtype: torch.dtype) -> Maybe:
    """`value.to(dtype)`, which takes 0.9 us also where there is nothing to convert."""
    return value if value is None or value.dtype is dtype else value.to(dtype)


def readable_steps(x: Tensor) -> Tensor:
    """A sequence (batch, time, ...) itself where each step is dense and as it is meant, else a copy."""
    inner = 1
    for size, stride in zip(reversed(x.shape[2:]), reversed(x.stride()[2:]), strict=True):
        if size != 1 and stride != inner:
            return dense(x)
        inner *= size
    return x if not x.is_neg() and not x.is_conj() else dense(x)


def pointer(value: Tensor | None) -> int | None:
    """The address of the values, None for what was not given; refuses a tensor without memory."""
    if value is None:
        return None
    address = value.data_ptr()
    # freed storage starts at 0, and a view into it a little further on; allocators hand out addresses above, and asking
    # the storage itself costs 0.3 us a tensor
    if address < LOWEST_ADDRESS and value.numel() and (address == 0 or value.untyped_storage().nbytes() == 0):
        raise ArgumentError(
            f"expected tensors with memory behind them, got {checks.describe(value)} without (freed storage, or a zero "
            "tensor); under FSDP gather the weights first (summon_full_params), or call the module's forward"
        )
    return address
