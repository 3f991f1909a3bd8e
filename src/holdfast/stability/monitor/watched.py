"""What a monitor looks at: each recurrent weight's parameters, and how far its recurrence is from the boundary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from holdfast.errors import ArgumentError, listed, unknown_name
from holdfast.nn import AbstractRecurrent
from holdfast.nn.recurrent import RecurrentWeight, belongs, find_recurrent
from holdfast.parameterizations import AbstractParameterization
from holdfast.stability.cells import cell_of
from holdfast.stability.rest import RestMargins


@dataclass(frozen=True, eq=False)
class Watched:
    """A weight with its parameters, and how far its recurrence is from the boundary.

    `margin()` is that of one step, as `certify` has it, `continuous()` the same per unit of time; None where there is none.
    `dense` margins cost eigenvalues of a matrix. `crosses` says whether the weight can reach the boundary at all: a
    stable parameterization cannot, however near it comes.
    """

    path: str
    parameters: tuple[nn.Parameter, ...]
    margin: Callable[[], float] | None = None
    dense: bool = False
    crosses: bool = False
    continuous: Callable[[], float] | None = None

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
    known = {watched.path for watched in found}
    extra = [Watched(n, _behind(n, every)) for n in names if n not in known]
    if not found and not extra:
        raise ArgumentError(
            "no recurrent weight was found; name them: GradientMonitor(model, names=['layer.weight']). "
            f"The model's weights: {listed(every)}"
        )
    return [watched for watched in found + extra if watched.parameters]


def _behind(path: str, every: dict[str, nn.Parameter]) -> tuple[nn.Parameter, ...]:
    return tuple(p for name, p in every.items() if belongs(name, path))


def _watched(weight: RecurrentWeight, every: dict[str, nn.Parameter]) -> Watched:
    parameters = _behind(weight.path, every)
    module, name = weight.module, weight.name
    if weight.kind == "torch":
        assert isinstance(module, nn.RNNBase)
        if cell_of(module) is None:
            return Watched(weight.path, parameters)  # an LSTM with projections
        rest = RestMargins(module)
        plain = isinstance(module, nn.RNN) and not nn.utils.parametrize.is_parametrized(module, name)
        return Watched(weight.path, parameters, lambda: rest.margin(name), True, plain)
    if weight.kind == "named":
        rate = lambda: -float(weight.eigenvalues().max())  # noqa: E731
        if weight.storage != "value":
            return Watched(weight.path, parameters, lambda: _per_step(weight), continuous=rate)
        return Watched(weight.path, parameters, lambda: -math.expm1(-rate()), False, True, rate)
    assert isinstance(module, AbstractRecurrent)
    return _of_layer(weight.path, parameters, module, name)


def _of_layer(path: str, parameters: tuple[nn.Parameter, ...], layer: AbstractRecurrent, name: str) -> Watched:
    form = layer.boundary_form
    if name != layer.boundary_name or form is None:
        return Watched(path, parameters)  # phases, frequencies, step sizes, gates
    crosses = layer.euler_step is not None or _crosses(form, layer.time)
    rate = None
    if layer.time == "continuous":  # Euler's rule has a margin of its own, which is one of steps
        rate = layer.margin if layer.euler_step is None else lambda: -float(layer.eigenvalues().detach().real.max())
    return Watched(path, parameters, layer.step_margin, layer.recurrent_matrix() is not None, crosses, rate)


def _per_step(weight: RecurrentWeight) -> float:
    lam, dt = weight.eigenvalues(), weight.step_size()
    return -float(torch.expm1(lam if dt is None else lam * dt).max())


def _crosses(f: nn.Module, time: str) -> bool:
    if not isinstance(f, AbstractParameterization):
        return False  # the matrix forms are stable wherever their weights go
    values = f.range
    high, low = values.high, values.low
    if time == "continuous":
        return high > 0 or (high == 0 and not values.high_open)
    return high > 1 or low < -1 or (high == 1 and not values.high_open) or (low == -1 and not values.low_open)
