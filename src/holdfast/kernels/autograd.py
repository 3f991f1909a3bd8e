"""Faster ways into a kernel, for shapes that take less time than torch's way of calling it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """What `function.apply(*arguments)` does, without its inspection of the signature at every call (35-60 us).

    That inspection fills in default arguments of a forward that has a setup_context; here all are given. Under
    torch.compile and torch.func the full way is taken.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


def untracked(x: Tensor) -> bool:
    """True where nobody looks on: a plain CPU tensor, no gradients, no graph being traced, no transform of torch.func.

    Then a function of the native library can be called without torch's dispatcher and its way back into Python.
    """
    if torch.is_grad_enabled() or type(x) is not Tensor or x.device.type != "cpu":
        return False
    watched = torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active()
    return not watched
