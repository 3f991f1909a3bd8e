"""Building a model around weights at hand: on the meta device, and never larger than the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from holdfast.errors import ArgumentError


@dataclass
class _Budget:
    """What the weights at hand still allow to be built."""

    tensors: int
    elements: int


# of this thread alone: the hook below is called for the modules of every thread
_BUDGET: ContextVar[_Budget | None] = ContextVar("_BUDGET", default=None)


@contextmanager
def built_around(weights: Iterable[Tensor]) -> Iterator[None]:
    """Inside, modules are built without memory, and one with more weights than `weights` raises ArgumentError.

    A config is not trusted: a state_size of 1e9 or a depth of 1e9 stops at the first weight that is too many.
    """
    sizes = [weight.numel() for weight in weights]
    token = _BUDGET.set(_Budget(len(sizes), sum(sizes)))
    hook = register_module_parameter_registration_hook(_spend)
    try:
        # on the meta device: weights come from the file, and a start of their own would be drawn and discarded
        with torch.device("meta"):
            yield
    finally:
        hook.remove()
        _BUDGET.reset(token)


def check_elements(count: int) -> None:
    """Refuses to make `count` numbers on the CPU where the weights at hand have fewer."""
    budget = _BUDGET.get()
    if budget is not None and count > budget.elements:
        raise ArgumentError(
            f"the file holds weights for {budget.elements} more elements, and its description asks for a layer of {count}; "
            "save the model again"
        )


def _spend(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    budget = _BUDGET.get()
    if budget is None or parameter is None:
        return
    check_elements(parameter.numel())
    budget.tensors -= 1
    budget.elements -= parameter.numel()
    if budget.tensors < 0:
        raise ArgumentError(
            f"the file holds no weights for {name} of another {type(module).__name__}, which its description asks for; save "
            "the model again"
        )
