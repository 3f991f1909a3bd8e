"""The network inside another library's object, and another recurrence in the place of its LSTM, GRU or RNN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from holdfast._arguments import checked
from holdfast.errors import ArgumentError
from holdfast.nn._base import AbstractRecurrent
from holdfast.nn._drop_in import RecurrentStack

TORCH_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN)


def network_inside(thing: Any) -> nn.Module:
    """The module that an object trains: a module itself, else the one among its attributes, lists of them included.

    Forecasters of darts and neuralforecast, algorithms of stable-baselines3 and estimators of skorch hold one each. Where
    there are several, those with a recurrence count.

    >>> import torch, holdfast
    >>> class Forecaster:
    ...     network = torch.nn.LSTM(1, 4)
    ...     def __init__(self):
    ...         self.model = torch.nn.Sequential(torch.nn.LSTM(1, 4))
    >>> holdfast.nn.network_inside(Forecaster())
    Sequential(
      (0): LSTM(1, 4)
    )

    Args:
        thing: a module, or an object that holds one.

    Returns:
        the module itself, not a copy.

    Raises:
        ArgumentError: an object without a module, or with several.
    """
    if isinstance(thing, nn.Module):
        return thing
    found = dict(_modules(thing))
    if len(found) > 1:
        found = {name: module for name, module in found.items() if recurrent_modules(module)} or found
    kind = type(thing).__name__
    if not found:
        raise ArgumentError(
            f"model must be a module, or an object that holds one, got {kind} without a module; if it builds its network in "
            "fit(), call that first (for 0 epochs to leave it untrained)"
        )
    if len({id(module) for module in found.values()}) > 1:
        raise ArgumentError(
            f"model must hold one network, got {kind} with several: {', '.join(found)}; pass one of them"
        )
    return next(iter(found.values()))


def _modules(thing: Any) -> Iterator[tuple[str, nn.Module]]:
    """Modules with weights among the attributes of an object, not those inside another of them."""
    for name, value in getattr(thing, "__dict__", {}).items():
        parts: Any = {name: value}
        if isinstance(value, Mapping):
            parts = {f"{name}[{key!r}]": part for key, part in value.items()}
        elif isinstance(value, (list, tuple)):
            parts = {f"{name}[{place}]": part for place, part in enumerate(value)}
        for path, part in parts.items():
            if isinstance(part, nn.Module) and any(True for _ in part.parameters()):
                yield path, part


def recurrent_modules(model: nn.Module) -> dict[str, nn.Module]:
    """torch's LSTM, GRU and RNN, RecurrentStack and our layers in a model by name, not those inside one another."""
    kinds = (*TORCH_RECURRENT, RecurrentStack, AbstractRecurrent)
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(not above or name.startswith(f"{above}.") for above in found)
        if isinstance(module, kinds) and not inside:
            found[name] = module
    return found


@checked
def swap_recurrences(model: Any, layer: str = "lru", *, state_size: int | None = None, **options: Any) -> list[str]:
    """Puts a `RecurrentStack` of the same sizes where a model has torch.nn.LSTM, GRU or RNN, in place.

    Its weights are new ones: train the model afterwards, with an optimizer that is made after the swap. States of an LSTM
    stay a pair (h, c); those of GRU and RNN become a tuple, to be passed back unchanged.

    Args:
        model: a module, or an object that holds one, as `network_inside` finds it.
        layer: the recurrence, as `RecurrentStack` names it.
        state_size: states of each layer; None is what `RecurrentStack` chooses.
        options: other keyword arguments of the layer.

    Returns:
        the names of what was swapped.

    Raises:
        ArgumentError: a model without torch.nn.LSTM, GRU or RNN inside, or that is one itself.
        UnknownNameError: an unknown layer.

    Example:
        >>> import torch, holdfast
        >>> model = torch.nn.Sequential(torch.nn.LSTM(3, 8, batch_first=True))
        >>> holdfast.nn.swap_recurrences(model, "lru", state_size=4)
        ['0']
        >>> type(model[0]).__name__
        'RecurrentStack'
    """
    network = network_inside(model)
    old = {
        name: module
        for name, module in network.named_modules(remove_duplicate=False)
        if isinstance(module, TORCH_RECURRENT)
    }
    if "" in old:
        raise ArgumentError(
            f"swap_recurrences: expected a model that contains torch.nn.LSTM, GRU or RNN, got the "
            f"{type(network).__name__} itself; build a RecurrentStack instead"
        )
    if not old:
        raise ArgumentError(
            f"swap_recurrences: expected a model that contains torch.nn.LSTM, GRU or RNN, got {type(network).__name__} "
            "without any"
        )
    made = {id(module): _stack_like(module, layer, state_size, options) for module in old.values()}
    for name, module in old.items():
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, made[id(module)])
    return list(old)


def _stack_like(module: Any, layer: str, state_size: int | None, options: Mapping[str, Any]) -> RecurrentStack:
    weight = next(module.parameters())
    made = RecurrentStack(
        module.input_size,
        module.hidden_size,
        module.num_layers,
        batch_first=module.batch_first,
        dropout=module.dropout,
        bidirectional=module.bidirectional,
        proj_size=module.proj_size,
        layer=layer,
        state_size=state_size,
        state_form="lstm" if isinstance(module, nn.LSTM) else "layers",
        device=weight.device,
        dtype=weight.dtype,
        **options,
    )
    return made.train(module.training)
