"""A matrix computed once in a forward pass: torch.nn.RNN reads each of its weights four times in one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class _Passes(threading.local):
    """The forward passes that this thread is in, and the matrices computed in them with what they are of."""

    def __init__(self) -> None:
        self.depth = 0
        self.matrices: dict[tuple[int, ...], tuple[Any, Tensor]] = {}


_PASSES = _Passes()


def once_in_a_pass(form: nn.Module, free: tuple[Tensor, ...], make: Callable[..., Tensor]) -> Tensor:
    """make(*free), or what it gave in this forward pass for the same form and free weights."""
    if _PASSES.depth == 0 or torch.compiler.is_compiling():
        return make(*free)
    key = (id(form), torch.is_grad_enabled(), *map(id, free))
    if key not in _PASSES.matrices:
        _PASSES.matrices[key] = ((form, free), make(*free))  # what is kept has an address of its own
    return _PASSES.matrices[key][1]


def compute_once(module: nn.Module) -> Callable[[], None]:
    """Lets a module compute its matrices once in each of its forward passes; returns what ends this."""
    if _begin in module._forward_pre_hooks.values():
        return lambda: None
    handles = (module.register_forward_pre_hook(_begin), module.register_forward_hook(_end, always_call=True))

    def unhook() -> None:
        for handle in handles:
            handle.remove()

    return unhook


def _begin(module: nn.Module, arguments: object) -> None:
    _PASSES.depth += 1


def _end(module: nn.Module, arguments: object, outputs: object) -> None:
    _PASSES.depth = max(0, _PASSES.depth - 1)  # a hook that failed before ours leaves a pass that never began
    if _PASSES.depth == 0:
        _PASSES.matrices.clear()
