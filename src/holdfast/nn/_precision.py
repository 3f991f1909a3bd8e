"""Half precision around a recurrence: inputs and weights are widened, the state is float32, outputs are rounded once.

A recurrence in bfloat16 would forget or diverge: 1 - 2^-9 is the nearest number below 1.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

HALF_DTYPES = (torch.bfloat16, torch.float16)
_NO_CONTEXT = nullcontext()
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, else the dtype itself."""
    return torch.float32 if dtype in HALF_DTYPES else dtype


def widened(x: Tensor) -> Tensor:
    """`x` in the dtype of the state."""
    return x.float() if x.dtype in HALF_DTYPES else x


def widened_twin(module: AnyModule) -> AnyModule:
    """The same module with the same settings and float32 weights, which pass gradients on to the half-precision ones.

    The copy is shallow and made by hand: `copy.copy` refuses parametrized modules.
    """
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    # coefficients of the half-precision weights are not those of the twin
    twin.__dict__.pop("_kept", None)
    for kind in ("_parameters", "_buffers"):
        tensors = module.__dict__[kind].items()
        twin.__dict__[kind] = {name: None if tensor is None else widened(tensor) for name, tensor in tensors}
    children = module.__dict__["_modules"].items()
    twin.__dict__["_modules"] = {name: None if child is None else widened_twin(child) for name, child in children}
    return twin


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """A context in which autocast, if it is on for the device of `x`, does not round the coefficients."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # torch knows no autocast for the meta device
        return _NO_CONTEXT
    return torch.autocast(device_type=kind, enabled=False)
