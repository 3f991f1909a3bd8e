"""What would have become of the eigenvalues if they had been the weights themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from holdfast.nn import AbstractRecurrent, recurrences
from holdfast.parameterizations import AbstractParameterization

BETAS = (0.9, 0.999)  # Adam's own
EPSILON = 1e-8


@dataclass(eq=False)
class _Shadow:
    weight: nn.Parameter
    form: AbstractParameterization
    time: str
    lam: Tensor
    first: Tensor
    second: Tensor


class DirectShadow:
    """Eigenvalues lam = f(w) moved by Adam as if they were weights, with dLoss/dlam = (dLoss/dw) / f'(w).

    The gradients are those that the model meets on its own, stable way: this says when direct weights would first leave
    the stable region, not how they would go on.

    Args:
        model: its recurrent layers of independent modes are followed; `left` stays None where it has none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.left: int | None = None
        self._shadows = [
            shadow
            for view in recurrences(model)
            if isinstance(view.module, AbstractRecurrent)
            for shadow in _of(view.module)
        ]

    @torch.no_grad()
    def step(self, rate: float, number: int) -> None:
        """One step of Adam; `left` becomes its number when the first eigenvalue is at or past the boundary."""
        for shadow in self._shadows:
            if shadow.weight.grad is None:
                continue
            slope = shadow.form.derivative(shadow.weight).double()
            gradient = (shadow.weight.grad.double() / slope).nan_to_num(0.0, 0.0, 0.0)
            shadow.first.lerp_(gradient, 1 - BETAS[0])
            shadow.second.lerp_(gradient.square(), 1 - BETAS[1])
            mean = shadow.first / (1 - BETAS[0] ** (number + 1))
            size = (shadow.second / (1 - BETAS[1] ** (number + 1))).sqrt()
            shadow.lam -= rate * mean / (size + EPSILON)
            out = shadow.lam >= 0 if shadow.time == "continuous" else shadow.lam.abs() >= 1
            if self.left is None and bool(out.any()):
                self.left = number


def _of(layer: AbstractRecurrent) -> list[_Shadow]:
    name, form = layer.boundary_name, layer.boundary_form
    weight = None if name is None else getattr(layer, name)
    if not isinstance(form, AbstractParameterization) or not isinstance(weight, nn.Parameter):
        return []
    lam = form(weight).detach().double()
    return [_Shadow(weight, form, layer.time, lam, torch.zeros_like(lam), torch.zeros_like(lam))]
