"""Faster ways into a kernel, for shapes that take less time than torch's way of calling it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from holdfast.errors import BackendError

PLAIN = (Tensor, torch.nn.Parameter)  # the classes whose tensors are known to have memory of their own


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """What `function.apply(*arguments)` does, without its inspection of the signature at every call (35-60 us).

    That inspection fills in default arguments of a forward that has a setup_context; here all are given. Under
    torch.compile and torch.func the full way is taken.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def untracked(*tensors: Tensor | None) -> bool:
    """True if all are None or dense, plain CPU tensors and nothing follows them: no autograd, tracing or transforms.

    Then a function of the native library can be called without torch's dispatcher and its way back into Python. A
    subclass (DTensor, FakeTensor) may have no memory of its own, whichever argument it is: only the dispatcher
    unwraps it.
    """
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
        return False
    # inside a mode (FakeTensorMode, FlopCounterMode) also new tensors may be without memory
    if torch._C._len_torch_dispatch_stack() > 0:
        return False
    for t in tensors:  # a loop: all() over a generator takes 0.5 us more
        if t is not None and not (type(t) in PLAIN and t.is_cpu and t.layout is torch.strided and not t.is_nested):
            return False
    return True


def has_tangent(*tensors: Tensor | None) -> bool:
    """True where forward mode follows one of the tensors; inside a transform of torch.func, where it may."""
    if forward_ad._current_level < 0:
        return False
    if torch._C._are_functorch_transforms_active():  # an inner transform hides the tangents of an outer one
        return True
    return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def refuse_tangents(function: str, backend: str, *tensors: Tensor | None) -> None:
    """Refuses forward mode, which only plain torch operations follow; a kernel would drop the tangents."""
    if has_tangent(*tensors):
        raise BackendError(
            f"{function}: expected reverse mode, the only one that backend {backend!r} has, got tensors with tangents "
            "(torch.func.jvp, jacfwd, forward_ad); use backend='reference', of a layer its step in a loop, or "
            "torch.func.vjp or jacrev"
        )
