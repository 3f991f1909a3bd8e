"""What the Triton kernels need to know of a device: whether they run there, how wide it is, and how to launch on it.

Triton itself is imported by the modules `_triton_kernels` only, and these on a first call: a process that computes on
a CPU never loads it. With TRITON_INTERPRET=1 the same kernels run on CPU tensors, step by step, for tests.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

DEVICES = ("cuda", "xpu")  # ROCm's devices are named cuda, too
ENVIRONMENT = "HOLDFAST_TRITON"  # auto (default), off, or interpret: on CPU tensors too, for tests
# programs that keep a card busy where it cannot be asked: about 8 of 128 threads for each of 128 multiprocessors
_USUAL_PROGRAMS = 1024
_PROGRAMS_PER_PROCESSOR = 8


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """True where kernels run in Triton's interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1" and _installed()


def preferred(device: torch.device | str) -> bool:
    """True where the Triton kernels are the first choice: not on a CPU, unless HOLDFAST_TRITON=interpret.

    Args:
        device: where the tensors are.
    """
    if torch.device(device).type in ("cpu", "meta"):
        return os.environ.get(ENVIRONMENT, "auto") == "interpret" and interpreted()
    return True


def missing(device: torch.device | str) -> str:
    """Why the Triton kernels do not run on `device`, or an empty text.

    Args:
        device: where the tensors are.
    """
    kind = torch.device(device).type
    if os.environ.get(ENVIRONMENT, "auto") == "off":
        return f"switched off by {ENVIRONMENT}=off"
    if kind not in DEVICES and not (kind == "cpu" and interpreted()):
        return f"for {' and '.join(DEVICES)}, and the tensors are on {kind}"
    if not _installed():
        return "not installed; to get them, `pip install holdfast[triton]` (Linux)"
    return ""


# what torch.compiler.assume_constant_result does; calling that imports all of dynamo
missing._dynamo_marked_constant = True  # type: ignore[attr-defined]
preferred._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def programs(device: torch.device) -> int:
    """How many programs of 128 threads per launch on `device` aims at."""
    if device.type != "cuda":
        return _USUAL_PROGRAMS
    return _PROGRAMS_PER_PROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def has_double(device: torch.device) -> bool:
    """True if kernels on `device` can keep their states in float64."""
    return device.type != "xpu" or bool(torch.xpu.get_device_properties(device).has_fp64)


def vendor(device: torch.device) -> str:
    """Whose compiler makes the kernels of `device`: "cuda", "hip", "xpu", or "cpu" in the interpreter."""
    return "hip" if device.type == "cuda" and torch.version.hip is not None else device.type


def dot_precision(device: torch.device) -> str:
    """How tl.dot multiplies float32: by three products of its parts in TF32 on NVIDIA's cards, else as such."""
    return "tf32x3" if vendor(device) == "cuda" else "ieee"


def launch(kernel: Any, grid: Sequence[int], like: Tensor, *arguments: Any, **constants: Any) -> None:
    """Runs a Triton kernel on the device of `like`, whichever device is the current one."""
    if like.device.type == "cpu":
        place: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    else:
        place = torch.get_device_module(like.device).device(like.device)
    with place:
        kernel[tuple(grid)](*arguments, **constants)


def adjacent(value: Tensor) -> Tensor:
    """The values as they stand in memory, those of the last dimension side by side."""
    value = value.resolve_conj().resolve_neg()
    return value if value.stride(-1) == 1 or value.shape[-1] == 1 else value.contiguous()


def ceil_div(x: int, y: int) -> int:
    """x / y rounded up."""
    return -(-x // y)


def power_of_two(x: int) -> int:
    """The smallest power of two that is not below x."""
    return 1 << max(x - 1, 0).bit_length()
