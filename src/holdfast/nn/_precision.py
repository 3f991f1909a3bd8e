"""Half precision around a recurrence: the state is float32, whatever the inputs are, and outputs are rounded once.

A recurrence in bfloat16 would forget or diverge: 1 - 2^-9 is the nearest number below 1. On a CPU inputs and weights are
widened. On a GPU, where the kernels read half precision, inputs keep it, and autocast brings them to it: the dtype of a
sequence says in which one it is projected.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as torch_module

from holdfast.kernels._common import gpu
from holdfast.kernels._linear import linear, pays

HALF_DTYPES = (torch.bfloat16, torch.float16)
_NO_CONTEXT = nullcontext()
AnyModule = TypeVar("AnyModule", bound=nn.Module)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, else the dtype itself."""
    return torch.float32 if dtype in HALF_DTYPES else dtype


def widened(x: Tensor) -> Tensor:
    """`x` in the dtype of the state."""
    return x.float() if x.dtype in HALF_DTYPES else x


def entering(x: Tensor) -> Tensor:
    """`x` as a layer with projections computes with it: half precision, its own or autocast's, on a GPU alone."""
    kind = x.device.type
    if kind == "meta" or torch.compiler.is_exporting() or not gpu.preferred(x.device) or gpu.missing(x.device):
        return widened(x)
    low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    return x.to(low) if low in HALF_DTYPES and x.dtype != torch.float64 else x


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`weight x + bias` in the dtype of `x`, to which weights are rounded; sums are float32 inside the product."""
    if x.dtype is weight.dtype:
        return linear(x, weight, bias)
    return linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class AcceleratedLinear(nn.Linear):
    """torch.nn.Linear by our own product where that is faster; what `accelerate` makes of one."""

    def forward(self, input: Tensor) -> Tensor:
        """As torch's own."""
        if torch.jit.is_scripting():
            return functional.linear(input, self.weight, self.bias)
        return linear(input, self.weight, self.bias)


def applied(module: nn.Module, x: Tensor) -> Tensor:
    """`module(x)`, by our own product where that is faster and calling a plain nn.Linear does nothing else."""
    if not torch.compiler.is_compiling() and pays() and type(module) is nn.Linear and not changed(module):
        return linear(x, module.weight, module.bias)
    return module(x)


def changed(module: nn.Module) -> bool:
    """Whether a call does more than the class says: hooks, of all modules too, or a forward of its own."""
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    before = torch_module._global_forward_pre_hooks or torch_module._global_backward_pre_hooks
    after = torch_module._global_forward_hooks or torch_module._global_backward_hooks
    return bool(own or before or after) or "forward" in module.__dict__


def projected(x: Tensor, module: nn.Module) -> Tensor:
    """`module(x)` in the dtype of `x`; a module that took the place of an nn.Linear is called as it is."""
    if x.dtype not in HALF_DTYPES:
        return applied(module, x)
    if isinstance(module, nn.Linear) and type(module) in (nn.Linear, AcceleratedLinear):
        return project(x, module.weight, module.bias)
    return module(widened(x)).to(x.dtype)


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
