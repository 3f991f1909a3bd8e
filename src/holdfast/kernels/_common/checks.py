"""Checks of arguments that the kernels share: each error says what was expected, what it got and what to do.

Every check takes the name of the public function first (`"scan"`), then the name of the argument (`"b"`).
Checks of shapes, dtypes and devices read no data and so are safe under `torch.compile`; those that read
values (`lengths`) skip the values while a graph is being traced, where there are none, and on a GPU, where reading one
makes the host wait for all that was launched before: HOLDFAST_CHECKS=full has them read there too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, is_fake

from holdfast._readers import describe
from holdfast.errors import ArgumentError, DtypeError, ShapeError, unknown_name

REAL = (torch.float32, torch.float64)
HALF = (torch.bfloat16, torch.float16)
FLOATS = (*REAL, *HALF)
COMPLEX = (torch.complex64, torch.complex128)
BACKENDS = ("auto", "reference", "chunked", "native", "triton")
ENVIRONMENT = "HOLDFAST_CHECKS"  # auto (default): values are checked on a CPU; full: on other devices too
MAX_BYTES = 2**62  # products of sizes and strides below this cannot wrap around in int64


def tensor(function: str, name: str, value: object, dtypes: Sequence[torch.dtype]) -> Tensor:
    """Refuses what is not a dense tensor of one of `dtypes`; returns the value, now known to be a tensor."""
    if not isinstance(value, Tensor):
        raise DtypeError(f"{function}: expected {name} to be a torch.Tensor, got {describe(value)}")
    if value.layout is not torch.strided:
        raise DtypeError(f"{function}: expected {name} to be dense, got {value.layout}; call {name}.to_dense()")
    if value.is_nested:
        raise DtypeError(
            f"{function}: expected {name} to be dense, got a nested tensor; call {name}.to_padded_tensor(0) and give lengths"
        )
    local(function, name, value)
    if value.dtype not in dtypes:
        names = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        raise DtypeError(f"{function}: expected {name} in one of {names}, got {describe(value)}; convert it")
    return value


def local(function: str, name: str, value: Tensor) -> None:
    """Refuses a DTensor: kernels read the memory of this process."""
    if hasattr(value, "device_mesh"):
        raise DtypeError(
            f"{function}: expected {name} as a tensor of this process, got a DTensor; call its .to_local() or .full_tensor(), "
            "or, for a method other than forward of a module under fully_shard, "
            "torch.distributed.fsdp.register_fsdp_forward_method(module, 'step')"
        )


def shape(function: str, name: str, value: Tensor, expected: Sequence[int], why: str) -> None:
    """Refuses a tensor whose shape is not `expected`; `why` says where that shape comes from."""
    if tuple(value.shape) != tuple(expected):
        raise ShapeError(f"{function}: expected {name} of shape {tuple(expected)} ({why}), got {tuple(value.shape)}")


def ndim(function: str, name: str, value: Tensor, dims: str) -> None:
    """Refuses a tensor that has not as many dimensions as `dims` has words ("batch time features")."""
    if value.ndim != dims.count(" ") + 1:
        raise ShapeError(f"{function}: expected {name} of shape ({dims}), got {tuple(value.shape)}")


def same_device(function: str, **tensors: Tensor | None) -> None:
    """Refuses tensors on different devices; None is passed over."""
    first: torch.device | None = None
    fake = False
    for t in tensors.values():
        if t is None:
            continue
        fake = fake or type(t) is FakeTensor
        device = t.device
        if first is not None and device != first:
            got = ", ".join(f"{name} on {x.device}" for name, x in tensors.items() if x is not None)
            raise ArgumentError(
                f"{function}: expected all tensors on one device, got {got}; move them with .to(device)"
            )
        first = device
    if fake and not torch.compiler.is_compiling() and not all(t is None or is_fake(t) for t in tensors.values()):
        names = ", ".join(name for name, t in tensors.items() if type(t) is FakeTensor)
        raise ArgumentError(f"{function}: expected tensors of one kind, got fake ones ({names}) and real ones")


def tensors(
    function: str, given: Mapping[str, object], dtypes: Sequence[torch.dtype], optional: Sequence[str] = ()
) -> None:
    """`tensor` for each of `given`; an `optional` one may be None."""
    for name, value in given.items():
        if value is not None or name not in optional:
            tensor(function, name, value, dtypes)


def shapes(
    function: str, given: Mapping[str, Tensor | None], expected: Mapping[str, tuple[Sequence[int], str]]
) -> None:
    """`shape` for each name of `expected`, a shape with its reason; None is passed over."""
    for name, (wanted, why) in expected.items():
        value = given[name]
        if value is not None and value.shape != wanted:
            shape(function, name, value, wanted, why)


def promoted(given: Iterable[Tensor | None]) -> torch.dtype:
    """The dtype that all together are computed in: float32 or wider, so that a state never is in half precision."""
    dtype = torch.float32
    for x in given:
        if x is not None and x.dtype is not dtype:  # promote_types of two equal ones takes 0.2 us
            dtype = torch.promote_types(dtype, x.dtype)
    return dtype


def same_dtype(function: str, **tensors: Tensor | None) -> None:
    """Refuses tensors of different dtypes; None is passed over."""
    present = {name: t.dtype for name, t in tensors.items() if t is not None}
    if len(set(present.values())) > 1:
        got = ", ".join(f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in present.items())
        raise DtypeError(f"{function}: expected all tensors in one dtype, got {got}; convert them with .to(dtype)")


def addressable(function: str, name: str, sizes: Sequence[int], itemsize: int) -> None:
    """Refuses sizes whose bytes cannot be counted in 63 bits; memory itself runs out long before."""
    if torch.compiler.is_exporting():  # a size that is left open cannot be bounded by a guard
        return
    if math.prod(sizes) * itemsize >= MAX_BYTES:
        raise ShapeError(
            f"{function}: {name} of shape {tuple(sizes)} is larger than the address space; use a smaller batch, "
            "sequence or width"
        )


def lengths(
    function: str, value: object, batch: Sequence[int], time: int, device: torch.device, *, backend: str = ""
) -> None:
    """Refuses lengths that are not an int64 tensor of the batch's shape with values from 0 to `time`.

    Reading the values takes 10 us: with backend="native" that is left to the operator, which does it for all callers.
    On a GPU values are not read (see `at_hand`): there the kernels take a length past the end for the end.
    """
    ends: Int64[Tensor, "*batch"] = tensor(function, "lengths", value, (torch.int64,))
    shape(function, "lengths", ends, batch, "one length for each row of the batch")
    if ends.device != device:
        raise ArgumentError(f"{function}: expected lengths on {device}, got {ends.device}; move it with .to(device)")
    if backend == "native" or not at_hand(ends) or ends.numel() == 0:
        return
    low, high = (int(x) for x in ends.aminmax())
    if low < 0 or high > time:
        raise ArgumentError(
            f"{function}: expected 0 <= lengths <= {time} (the time steps), got values from {low} to {high};"
            " clamp them, or pad the time dimension"
        )


def resets(function: str, value: object, steps: Sequence[int], device: torch.device) -> None:
    """Refuses resets that are not a bool tensor with one mark for each step of each row."""
    marks = tensor(function, "resets", value, (torch.bool,))
    shape(function, "resets", marks, steps, "one for each step of each row")
    if marks.device != device:
        raise ArgumentError(f"{function}: expected resets on {device}, got {marks.device}; move it with .to(device)")


def finite(function: str, **tensors: Tensor | None) -> None:
    """Refuses NaN and infinity in any of the tensors; None is passed over."""
    for name, value in tensors.items():
        if value is None or not readable(value):
            continue
        bad = value.numel() - int(torch.isfinite(value).sum())
        if bad:
            raise ArgumentError(
                f"{function}: expected finite values, got {bad} of {value.numel()} in {name} that are NaN or "
                "infinite; find where they arise, for example with torch.autograd.set_detect_anomaly(True)"
            )


def flags(function: str, **values: object) -> None:
    """Refuses anything that is not True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ArgumentError(f"{function}: expected {name} to be True or False, got {describe(value)}")


def backend(function: str, value: object, known: Sequence[str] = BACKENDS) -> None:
    """Refuses a backend that this kernel does not have."""
    if not isinstance(value, str) or value not in known:
        raise unknown_name(f"backend of {function}", value, known)


def at_hand(value: Tensor) -> bool:
    """True where reading values costs nothing but the look: on a CPU, or anywhere with HOLDFAST_CHECKS=full."""
    return readable(value) and (value.is_cpu or os.environ.get(ENVIRONMENT, "auto") == "full")


def readable(value: Tensor) -> bool:
    """True where values can be read: not on the meta device, not traced by a compiler, not mapped by vmap."""
    return (
        not torch.compiler.is_compiling()
        and value.device.type != "meta"
        and not is_fake(value)
        and not torch._C._functorch.is_batchedtensor(value)
    )
