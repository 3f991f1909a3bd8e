"""Running a model without leaving a trace: weights, buffers, modes, attributes, gradients and random states return."""

from __future__ import annotations

import copy
import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import ArgumentError

# containers inside a module's __dict__ whose contents may change while the container stays the same object
_CONTAINERS = ("_parameters", "_buffers", "_modules")
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # torch's own: weights are kept apart, hooks stay
MAX_DEPTH = 4  # levels of containers, objects and functions that are followed
_Contents = tuple[Any, Any]


def modules_of(model: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a model runs: itself, or those that a function is bound to, encloses, names or has as defaults.

    Containers, objects and other functions that hold them are followed too, a few levels deep.
    """
    modules: dict[int, nn.Module] = {}
    _collect(model, MAX_DEPTH, set(), modules)
    return list(modules.values())


def _collect(item: Any, depth: int, seen: set[int], modules: dict[int, nn.Module]) -> None:
    if id(item) in seen or depth < 0:
        return
    seen.add(id(item))
    if isinstance(item, nn.Module):
        modules[id(item)] = item
        return
    for part in _parts_of(item):
        _collect(part, depth - 1, seen, modules)


def _parts_of(item: Any) -> list[Any]:
    """What a function, container or object holds; nothing of classes, imported modules, tensors and plain values."""
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, (list, tuple, set, frozenset, deque)):
        return list(item)
    if isinstance(item, functools.partial):
        return [item.func, *item.args, *item.keywords.values()]
    if isinstance(item, types.MethodType):
        return [item.__self__, item.__func__]
    if isinstance(item, types.FunctionType):
        held = [*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values(), getattr(item, "__wrapped__", None)]
        for cell in item.__closure__ or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:  # a cell that is filled later
                continue
        return held + [item.__globals__[name] for name in item.__code__.co_names if name in item.__globals__]
    if isinstance(item, (type, types.ModuleType, Tensor, np.ndarray)) or not hasattr(item, "__dict__"):
        return []
    return list(vars(item).values())


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Puts the random states of torch, numpy and Python back at the end."""
    states = _random_states()
    try:
        yield
    finally:
        _restore_random(states)


@contextmanager
def undisturbed(model: Callable[..., Any], *, evaluate: bool = True) -> Iterator[None]:
    """Puts the model's modules into eval mode (unless `evaluate` is false) and everything back at the end.

    Costs one copy of the weights for the time of the measurement: a forward that rewrites a weight or a buffer, or
    keeps its last state as an attribute, is undone too, also inside lists, dicts and arrays. Hooks stay where they are
    and see the runs.
    """
    modules = list(dict.fromkeys(m for root in modules_of(model) for m in root.modules()))
    refuse_unready(modules)
    saved = [_snapshot(module) for module in modules]
    contents = _own_contents(modules)
    tensors = {t: t.detach().clone() for m in modules for t in (*m.parameters(False), *m.buffers(False))}
    # a parameter may stand for what a parametrization or functional_call computes: it has no gradient of its own
    own = [p for m in modules for p in m.parameters(False) if p.is_leaf]
    grads = {p: (p.grad, p.requires_grad) for p in own}
    states = _random_states()
    try:
        if evaluate:
            for module in modules:
                module.training = False  # not .eval(): a module may override it with side effects
        yield
    finally:
        for module, attributes in zip(modules, saved, strict=True):
            _restore(module, attributes)
        for item, held in contents:
            _put_back(item, held)
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
                raise ArgumentError(
                    f"{where} is a lazy parameter without a shape; run the model once on an input first"
                )
            if tensor.is_meta:
                raise ArgumentError(
                    f"{where} is on the meta device and holds no values; call model.to_empty(device='cpu') and load the weights"
                )


def _snapshot(module: nn.Module) -> dict[str, Any]:
    attributes = dict(module.__dict__)
    for name in _CONTAINERS:
        attributes[name] = (attributes[name], dict(attributes[name]))
    return attributes


def _own_contents(modules: Iterable[nn.Module]) -> list[_Contents]:
    """The contents of every list, dict, set, tensor and array among the attributes that are the module's own."""
    contents: dict[int, _Contents] = {}
    for module in modules:
        for name, value in module.__dict__.items():
            if name not in _MODULE_ATTRIBUTES:
                _record(value, MAX_DEPTH, contents)
    return list(contents.values())


def _record(item: Any, depth: int, contents: dict[int, _Contents]) -> None:
    if id(item) in contents or depth < 0 or isinstance(item, nn.Parameter) or getattr(item, "is_meta", False):
        return
    if isinstance(item, Tensor):
        contents[id(item)] = (item, item.detach().clone())
    elif isinstance(item, np.ndarray):
        contents[id(item)] = (item, item.copy())
    elif isinstance(item, (dict, list, set, deque)):
        contents[id(item)] = (item, copy.copy(item))
    if isinstance(item, (dict, list, tuple, set, deque)):
        for part in item.values() if isinstance(item, dict) else item:
            _record(part, depth - 1, contents)


@torch.no_grad()
def _put_back(item: Any, contents: Any) -> None:
    if isinstance(item, Tensor):
        # a write would change the version, and break a graph that holds the tensor
        if not torch.equal(item, contents):
            item.copy_(contents)
    elif isinstance(item, np.ndarray):
        item[...] = contents
    elif isinstance(item, (list, deque)):
        item.clear()
        item.extend(contents)
    else:
        item.clear()
        item.update(contents)


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
    # asking starts CUDA, which takes seconds and memory on every card
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()


def _restore_random(states: tuple[Any, ...]) -> None:
    cpu, cuda, python, numpy = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    np.random.set_state(numpy)
