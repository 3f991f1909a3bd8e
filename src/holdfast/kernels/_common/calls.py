"""From tensors to C: the last look at a tensor, room for results, and the one call.

`verify` refuses what C would misread, whoever called. `empty` makes room for results. `call` hands over arguments by
name, in a structure that the library itself describes (csrc/common/call.h has the other half): `holdfast_<kernel>_fields`
tells the fields of a kernel's struct as text, so that a name or a type that does not agree is an error and never a wrong
address. A kernel's function gives the bytes of workspace that it still lacks, 0 after it has run.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from holdfast.errors import ArgumentError, DtypeError, OutOfMemoryError, ShapeError
from holdfast.kernels._common import checks, library

Maybe = TypeVar("Maybe", Tensor, Tensor | None)
# no allocator that torch uses hands out memory below 4 GB; freed storage and views into it are there
LOWEST_ADDRESS = 1 << 32
_MIN_BLOCKED_SIZE = 256  # both sizes of a transposed matrix; a smaller one is in the caches, and each costs a call
Expected = tuple[Tensor | None, tuple[int, ...]]

# letters of the struct module, which pads as the C compiler does
_LETTERS = {"int64_t": "q", "int32_t": "i", "double": "d", "*": "P"}
_CPU = torch.device("cpu")  # made once: from a string it costs 0.5 us per call


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
                f"{function}: expected a tensor of shape {tuple(shape)}, to match the other arguments, got "
                f"{checks.describe(value)}; call holdfast.kernels.{function}, which checks and names its arguments"
            )
        # is_cpu before the devices, whose comparison takes 0.2 us
        apart = value.is_cpu is not like.is_cpu or (not value.is_cpu and value.device != like.device)
        if value.dtype is not dtype or apart:
            raise DtypeError(
                f"{function}: expected all tensors in {dtype} on {like.device}, got {checks.describe(value)}; "
                f"call holdfast.kernels.{function}, which converts"
            )


def present(function: str, *needed: Tensor | None) -> None:
    """Refuses None: torch's operators let it through also where their schema asks for a tensor."""
    for value in needed:  # a loop: any() over a generator takes 0.4 us more
        if value is None:
            raise DtypeError(f"{function}: expected tensors, got None instead of one; call holdfast.kernels.{function}")


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
    result = empty(value.shape, value.dtype)
    if value.ndim == 3 and value.stride(1) == 1 and min(value.shape[1:]) >= _MIN_BLOCKED_SIZE:
        # torch copies one transposed matrix by blocks, but not a batch: 1 x 2,048 x 1,536 took 25 ms, row by row 2 ms
        for to, of in zip(result, value, strict=True):
            to.copy_(of)
        return result
    return result.copy_(value)


def in_dtype(value: Maybe, dtype: torch.dtype) -> Maybe:
    """`value.to(dtype)`, which takes 0.9 us also where there is nothing to convert."""
    return value if value is None or value.dtype is dtype else value.to(dtype)


def readable_steps(x: Tensor) -> Tensor:
    """A sequence (batch, time, ...) itself where each step is dense and as it is meant, else a copy."""
    # is_contiguous() would refuse columns of a larger tensor, which a kernel reads where they lie
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
            f"expected tensors with allocated memory, got {checks.describe(value)} without (freed storage, or a zero tensor of "
            "autograd); under FSDP gather the weights first (summon_full_params), or call the module's forward"
        )
    return address


@functools.cache
def _advise() -> Any:
    return library.function("holdfast_advise_large", [ctypes.c_void_p, ctypes.c_int64])


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor, dense whatever it stands for; needs the native library."""
    try:
        result = torch.empty(shape, dtype=dtype, device=_CPU)
    except RuntimeError as error:  # sizes are checked before: all that is left to fail is the memory
        raise OutOfMemoryError(
            f"cannot allocate {math.prod(shape) * dtype.itemsize:,} bytes for a {dtype} tensor of shape {tuple(shape)}; use a "
            "smaller batch or a shorter sequence"
        ) from error
    # malloc maps a tensor above 32 MB again at every call, and first touch of 4 KB pages is then the slowest part of it:
    # 8 GB/s, against 24 GB/s with 2 MB pages and 30 GB/s of warm memory
    if result.nbytes >= library.number("fresh_bytes"):
        _advise()(result.data_ptr(), result.nbytes)
    return result


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
            with memory behind them (`verify`).
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


def prepared(
    kernel: str, name: str, dtype: torch.dtype, varying: tuple[str, ...], /, **constants: Tensor | int
) -> Callable[..., int]:
    """`call` for the steps of a stream, at a quarter of its cost: a function of what changes from step to step.

    Args:
        kernel: whose structure of arguments: first `wide`, `threads` (which is 1) and the constants, then those that vary.
        name: the function, which needs no workspace.
        dtype: of the elements, float32 or float64.
        varying: the fields whose numbers and addresses the returned function takes, in this order; those after them are 0.
        constants: fields of the structure; the caller keeps these tensors.
    """
    layout, function = _function(kernel, name)
    given = {"wide": dtype is torch.float64, "threads": 1, **constants}
    fields = list(layout.zeros)
    first, then = fields[: len(given)], fields[len(given) : len(given) + len(varying)]
    if set(first) != set(given) or tuple(then) != varying:
        raise ArgumentError(f"{kernel}: expected the fields {fields} in this order, got {sorted(given)} and {varying}")
    head = tuple(value.data_ptr() if isinstance(value, Tensor) else value for value in map(given.__getitem__, first))
    tail = (0,) * (len(fields) - len(given) - len(varying))
    pack = layout.pack
    return lambda *rest: function(pack(*head, *rest, *tail))
