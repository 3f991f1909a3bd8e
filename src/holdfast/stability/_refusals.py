"""What `stabilize` refuses before it changes anything, and which weights are one because they share their parameters."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from holdfast.errors import ArgumentError, listed
from holdfast.nn import RecurrenceView
from holdfast.nn._views.view import MemoryWeight
from holdfast.stability._checkpoints import is_stabilized

Chosen = tuple[MemoryWeight, RecurrenceView | None]


def check_weights(weights: Iterable[MemoryWeight]) -> None:
    """Refuses weights without numbers of their own: on the meta device, sharded, computed from others, done already."""
    done = []
    for weight in weights:
        if is_stabilized(weight.module, weight.name):
            done.append(weight.path)
            continue
        part = getattr(weight.module, weight.name)
        if not isinstance(part, nn.Module) and weight.name not in {
            **weight.module._parameters,
            **weight.module._buffers,
        }:
            raise ArgumentError(
                f"{weight.path} is computed from other weights (weight_norm, spectral_norm or another parametrization); "
                "expected a parameter. Remove that first (torch.nn.utils.parametrize.remove_parametrizations), or name "
                "the weights to stabilize without it: names=[...]. Nothing was changed"
            )
        for tensor in part.parameters() if isinstance(part, nn.Module) else (part,):
            _check_numbers(weight.path, tensor)
    if done:
        raise ArgumentError(
            f"already stabilised: {listed(done)}. Call undo() of that result to stabilize anew, or name other weights: "
            "names=[...]. Nothing was changed"
        )


def _check_numbers(path: str, tensor: Tensor) -> None:
    if tensor.is_meta:
        raise ArgumentError(f"{path} is on the meta device and holds no numbers; load the weights, then stabilize")
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
        raise ArgumentError(
            f"{path} is a {type(tensor).__name__}, expected a plain parameter; stabilize before the model is sharded "
            "(fully_shard), quantized or otherwise wrapped"
        )


def tied_weights(model: nn.Module, chosen: list[Chosen]) -> list[tuple[list[MemoryWeight], RecurrenceView | None]]:
    """The weights, those that share their parameters together; refused where something else shares them too."""
    groups: dict[tuple[int, ...], tuple[list[MemoryWeight], RecurrenceView | None]] = {}
    for weight, view in chosen:
        key = tuple(id(p) for p in weight.free.values()) or (id(getattr(weight.module, weight.name)),)
        groups.setdefault(key, ([], view))[0].append(weight)
    for parameters, (weights, _) in groups.items():
        if weights[0].storage == "own" and not weights[0].decides:
            continue  # a layer bounds its phases and step sizes itself: nothing is done to them
        places = {_place(model, path) for weight in weights for path in weight.free}
        for path, p in model.named_parameters(remove_duplicate=False):
            if id(p) in parameters and _place(model, path) not in places:
                raise ArgumentError(
                    f"{weights[0].path} is shared with {path}, which is not among the weights to stabilize; untie them. "
                    "Nothing was changed"
                )
        if len({_reading(weight) for weight in weights}) > 1:
            raise ArgumentError(
                f"{listed(w.path for w in weights)} share their parameters and read them differently; untie them. "
                "Nothing was changed"
            )
    return [*groups.values()]


def _place(model: nn.Module, path: str) -> tuple[int, str]:
    """The module that holds a parameter, which may have several paths itself, and the name there."""
    prefix, _, name = path.rpartition(".")
    return id(model.get_submodule(prefix)), name


def _reading(weight: MemoryWeight) -> tuple[str, str]:
    """How a module reads the numbers of the weight."""
    if weight.storage != "own":
        return weight.storage, ""
    part = getattr(weight.module, weight.name)
    form = part if isinstance(part, nn.Module) else weight.module
    return weight.name, f"{form.parameterization!r} {getattr(weight.module, 'euler_step', None)}"
