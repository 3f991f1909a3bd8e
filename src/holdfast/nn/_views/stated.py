"""A weight that only its user calls a recurrence, by its path."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from holdfast._types import Time
from holdfast.errors import ArgumentError, ShapeError, listed
from holdfast.nn._recurrent_weight import Structure
from holdfast.nn._views.rest import StepMap
from holdfast.nn._views.view import MemoryWeight, RecurrenceView, matrix_map, modes_map

STATED_NOTE = (
    "stated: that the state moves by this weight alone, linearly and in this kind of time, is your word; nothing in the "
    "model was seen to show it. StepFunction describes a recurrence by its step instead"
)


class StatedView(RecurrenceView):
    """h+ = W h or dh/dt = W h, because the user says so; a unit of time counts as one step."""

    stated = True
    crosses = True
    remarks = (STATED_NOTE,)

    def __init__(self, weight: MemoryWeight, time: Time) -> None:
        super().__init__(weight.path, weight.module, (weight,))
        self.time = time
        self.kind = "named eigenvalues" if weight.diagonal else "named matrix"

    @property
    def owner(self) -> str:
        return self.path.rpartition(".")[0]

    def matrix(self) -> Tensor | None:
        return None if self.weights[0].diagonal else self.weights[0].value

    def eigenvalues(self) -> Tensor:
        value = self.weights[0].value
        return value if self.weights[0].diagonal else torch.linalg.eigvals(value.cpu().double())

    def margin(self) -> float:
        lam = self.eigenvalues()
        return 1 - float(lam.abs().max()) if self.time == "discrete" else -math.expm1(float(lam.real.max()))

    def step_map(self) -> StepMap:
        W = self.matrix()
        return modes_map(self.eigenvalues(), self.time) if W is None else matrix_map(W, self.time)


def stated_weight(model: nn.Module, path: str, structure: Structure | None = None) -> MemoryWeight:
    """The weight at a path, a square matrix or eigenvalues: a vector, complex numbers, or where said so."""
    prefix, _, name = path.rpartition(".")
    try:
        module = model.get_submodule(prefix)
        value = getattr(module, name)
    except AttributeError:
        known = listed(n for n, _ in model.named_parameters())
        raise ArgumentError(f"expected the name of a weight or layer ({known}), got {path!r}") from None
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        raise ArgumentError(f"expected the name of a weight, got {path}, which is a {type(value).__name__}")
    # a square matrix of complex numbers is rare, a table of complex eigenvalues is not
    if structure is None:
        structure = "diagonal" if value.ndim == 1 or value.is_complex() else "dense"
    return MemoryWeight(path, module, name, "value", structure == "diagonal")


def stated_view(model: nn.Module, path: str, time: Time | None, structure: Structure | None) -> StatedView:
    """The view of a weight that the user calls a recurrence in `time`."""
    weight = stated_weight(model, path, structure)
    if time is None:
        raise ArgumentError(
            f"time is needed for {path}, got None; pass time='continuous' for dh/dt = W h, or 'discrete' for h+ = W h"
        )
    value = weight.value
    if not weight.diagonal and (value.ndim != 2 or value.shape[0] != value.shape[1] or value.is_complex()):
        raise ShapeError(
            f"{path} must be a real square matrix, got {value.dtype} of shape {tuple(value.shape)}; for eigenvalues pass "
            "structure='diagonal'"
        )
    return StatedView(weight, time)
