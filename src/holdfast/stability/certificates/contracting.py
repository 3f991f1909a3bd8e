"""Whether a nonlinear recurrence contracts everywhere, from its matrix alone: the promise that is global."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from holdfast.errors import RangeError
from holdfast.nn._views.view import MemoryWeight
from holdfast.parameterizations import Contraction, EulerContraction
from holdfast.parameterizations.contractive import contractive


@dataclass(frozen=True)
class Contracting:
    """Two states that see the same inputs come nearer by `factor` at each step, in a norm that is the form's own.

    From rest |h|_2 <= gain sup |drive|_2, drive = W_ih x + b, at all times and for all inputs.
    """

    factor: float
    gain: float


def contraction_of(weight: MemoryWeight) -> Contracting | None:
    """That of h+ = sigma(W h + ...); of its own free weights where it was stabilised, else of W if the form holds it."""
    W = weight.value.cpu().double()
    form, free = Contraction(), None
    if parametrize.is_parametrized(weight.module, weight.name):
        stack = weight.module.parametrizations[weight.name]  # type: ignore[index]
        if isinstance(stack[0], Contraction):
            free = tuple(getattr(stack, f"original{i}").detach().cpu() for i in range(3))
    try:
        return _measured(form, form.right_inverse(W) if free is None else free)
    except RangeError:
        return None


def _measured(form: Contraction, free: tuple[Tensor, ...]) -> Contracting:
    factor = float(torch.linalg.matrix_norm(contractive(free[0].double()), 2))
    H = form.metric(*free)
    largest = float(form.scales(*free).max())
    smallest = float(torch.linalg.eigvalsh(H)[0])
    # |D v|^2 (1 + A) <= 2 |D v|^2
    gain = math.sqrt(2 / smallest) * largest / (1 - factor) if smallest > 0 and factor < 1 else math.inf
    return Contracting(factor, gain)


def settles(W: Tensor, dt: float) -> bool:
    """Whether Euler steps of `dt` come to rest on every constant input, by the form that says so."""
    try:
        EulerContraction(dt).right_inverse(W.detach().cpu().double())
    except RangeError:
        return False
    return True
