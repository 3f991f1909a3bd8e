"""What a monitor looks at: each recurrent weight's parameters, and how far its recurrence is from the boundary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from holdfast.errors import ArgumentError, unknown_name
from holdfast.nn import AbstractRecurrent
from holdfast.nn.recurrent import RecurrentWeight, belongs, find_recurrent
from holdfast.parameterizations import AbstractParameterization, spectral_margin


@dataclass(frozen=True, eq=False)
class Watched:
    """A weight with its parameters; `margin()` is the distance to the stability boundary, None where it has none.

    `dense` margins cost eigenvalues of a matrix. `crosses` says whether the weight can reach the boundary at all: a
    stable parameterization cannot, however near it comes.
    """

    path: str
    parameters: tuple[nn.Parameter, ...]
    margin: Callable[[], float] | None = None
    dense: bool = False
    crosses: bool = False

    @property
    def size(self) -> int:
        """Numbers in all its parameters."""
        return sum(p.numel() for p in self.parameters)


def find_watched(model: nn.Module, names: Sequence[str]) -> list[Watched]:
    """Every recurrent weight that is known, and the ones called by name."""
    every = dict(model.named_parameters())
    for name in names:
        if not any(belongs(path, name) for path in every):
            raise unknown_name("weight", name, every)
    found = [_watched(weight, every) for weight in find_recurrent(model)]
    listed = {watched.path for watched in found}
    extra = [Watched(n, _behind(n, every)) for n in names if n not in listed]
    if not found and not extra:
        raise ArgumentError(
            "no recurrent weight was found; name them: GradientMonitor(model, names=['layer.weight']). "
            f"The model's weights: {', '.join(every)}"
        )
    return [watched for watched in found + extra if watched.parameters]


def _behind(path: str, every: dict[str, nn.Parameter]) -> tuple[nn.Parameter, ...]:
    return tuple(p for name, p in every.items() if belongs(name, path))


def _watched(weight: RecurrentWeight, every: dict[str, nn.Parameter]) -> Watched:
    parameters = _behind(weight.path, every)
    module, name = weight.module, weight.name
    if weight.kind == "torch":
        if not isinstance(module, nn.RNN):
            return Watched(weight.path, parameters)  # a gated unit has no boundary of one matrix
        plain = not nn.utils.parametrize.is_parametrized(module, name)
        return Watched(weight.path, parameters, lambda: spectral_margin(getattr(module, name), "discrete"), True, plain)
    if weight.kind == "named":
        if weight.storage == "log_negative":
            return Watched(weight.path, parameters, lambda: float(getattr(module, name).detach().min().exp()))
        return Watched(weight.path, parameters, lambda: -float(getattr(module, name).detach().max()), False, True)
    assert isinstance(module, AbstractRecurrent)
    return _of_layer(weight.path, parameters, module, name)


def _of_layer(path: str, parameters: tuple[nn.Parameter, ...], layer: AbstractRecurrent, name: str) -> Watched:
    form = layer.boundary_form
    if name != layer.boundary_name or form is None:
        return Watched(path, parameters)  # phases, frequencies, step sizes, gates
    crosses = layer.euler_step is not None or _crosses(form, layer.time)
    return Watched(path, parameters, layer.margin, layer.recurrent_matrix() is not None, crosses)


def _crosses(f: nn.Module, time: str) -> bool:
    if not isinstance(f, AbstractParameterization):
        return False  # the matrix forms are stable wherever their weights go
    values = f.range
    high, low = values.high, values.low
    if time == "continuous":
        return high > 0 or (high == 0 and not values.high_open)
    return high > 1 or low < -1 or (high == 1 and not values.high_open) or (low == -1 and not values.low_open)
