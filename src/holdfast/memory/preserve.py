"""Running a model without leaving a trace: weights, buffers, modes, attributes, gradients and random states return."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.errors import ArgumentError

# containers inside a module's __dict__ whose contents may change while the container stays the same object
_CONTAINERS = ("_parameters", "_buffers", "_modules")


def modules_of(model: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a model runs: itself, or those that a function is bound to, encloses or names."""
    if isinstance(model, nn.Module):
        return [model]
    if isinstance(model, functools.partial):
        held = [model.func, *model.args, *model.keywords.values()]
        return [m for item in held if callable(item) for m in modules_of(item)]
    found = [getattr(model, "__self__", None)]
    function = getattr(model, "__func__", model)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a cell that is filled later
            continue
    code = getattr(function, "__code__", None)
    if code is not None:
        found += [function.__globals__.get(name) for name in code.co_names]
    found += list(vars(model).values()) if hasattr(model, "__dict__") and not hasattr(model, "__code__") else []
    return [item for item in found if isinstance(item, nn.Module)]


@contextmanager
def undisturbed(model: Callable[..., Any], *, evaluate: bool = True) -> Iterator[None]:
    """Puts the model's modules into eval mode (unless `evaluate` is false) and everything back at the end.

    Costs one copy of the weights for the time of the measurement: a forward that rewrites a weight or a buffer, or
    keeps its last state as an attribute, is undone too. Hooks stay where they are and see the runs.
    """
    modules = list(dict.fromkeys(m for root in modules_of(model) for m in root.modules()))
    refuse_unready(modules)
    saved = [_snapshot(module) for module in modules]
    tensors = {t: t.detach().clone() for m in modules for t in (*m.parameters(False), *m.buffers(False))}
    grads = {p: (p.grad, p.requires_grad) for m in modules for p in m.parameters(False)}
    states = _random_states()
    try:
        if evaluate:
            for module in modules:
                module.training = False  # not .eval(): a module may override it with side effects
        yield
    finally:
        for module, attributes in zip(modules, saved, strict=True):
            _restore(module, attributes)
        with torch.no_grad():
            for tensor, value in tensors.items():
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        for parameter, (grad, wanted) in grads.items():
            parameter.grad = grad
            parameter.requires_grad_(wanted)
        _restore_random(states)


def refuse_unready(modules: Iterable[nn.Module]) -> None:
    """Raises ArgumentError where a weight or buffer has no numbers yet: a lazy module, or one on the meta device."""
    for module in modules:
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            where = f"{name} of the model's {type(module).__name__}"
            if nn.parameter.is_lazy(tensor):
                raise ArgumentError(f"{where} is lazy and has no shape yet; run the model once on an input first")
            if tensor.is_meta:
                raise ArgumentError(
                    f"{where} is on the meta device and has no numbers; call model.to_empty(device='cpu') and load them"
                )


def _snapshot(module: nn.Module) -> dict[str, Any]:
    attributes = dict(module.__dict__)
    for name in _CONTAINERS:
        attributes[name] = (attributes[name], dict(attributes[name]))
    return attributes


def _restore(module: nn.Module, attributes: dict[str, Any]) -> None:
    for name in _CONTAINERS:
        container, contents = attributes[name]
        if not _same(container, contents):
            container.clear()
            container.update(contents)
        attributes[name] = container
    for name in set(module.__dict__) - set(attributes):
        del module.__dict__[name]
    module.__dict__.update(attributes)


def _same(container: dict[str, Any], contents: dict[str, Any]) -> bool:
    return list(container) == list(contents) and all(container[name] is contents[name] for name in contents)


def _random_states() -> tuple[Any, ...]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()


def _restore_random(states: tuple[Any, ...]) -> None:
    cpu, cuda, python, numpy = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    np.random.set_state(numpy)
