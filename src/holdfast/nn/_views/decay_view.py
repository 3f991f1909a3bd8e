"""Recurrences of other libraries that store one eigenvalue a mode, each with its step size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from holdfast.nn._pace import assigned, checked_time_constants, from_margins
from holdfast.nn._views.rest import StepMap
from holdfast.nn._views.view import MemoryWeight, RecurrenceView, Storage, modes_map

_KINDS = {
    "log_negative": "eigenvalues -exp(weight)",
    "softplus_negative": "eigenvalues -softplus(weight)",
    "value": "eigenvalues",
}
DECAYING_NOTE = (
    "its decay exp(-exp(weight)) is below 1 by construction, before and after: another parameterization changes the "
    "gradients of the decay, not whether the model can diverge"
)


class DecayView(RecurrenceView):
    """Modes that a step multiplies by exp(dt lam), dt on zero input.

    Args:
        owner: path of the module.
        module: the module.
        name: the weight that stores real parts.
        storage: how it stores them.
        step_size: dt, of a shape that multiplies the weight.
        imaginary: the weight that stores imaginary parts, where there is one.
        others: logarithms of further numbers that the factor of a step depends on, such as step sizes.
    """

    time = "continuous"

    def __init__(
        self, owner: str, module: nn.Module, name: str, storage: Storage, step_size: Callable[[], Tensor],
        *, imaginary: str | None = None, others: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        dot = f"{owner}." if owner else ""
        kinds: dict[str, Storage] = {} if imaginary is None else {imaginary: "frequency"}
        kinds.update({other: "log_positive" for other in others})
        rest = (MemoryWeight(dot + n, module, n, kind, True, decides=False) for n, kind in kinds.items())
        super().__init__(dot + name, module, (MemoryWeight(dot + name, module, name, storage, True), *rest))
        self._owner, self.kind, self.step_size, self.imaginary = owner, _KINDS[storage], step_size, imaginary
        self.crosses = storage == "value"
        self.by_construction = None if self.crosses else DECAYING_NOTE

    @property
    def owner(self) -> str:
        return self._owner

    def eigenvalues(self) -> Tensor:
        weight = self.weights[0]
        value = weight.value
        if weight.storage == "log_negative":
            value = -torch.exp(value)
        elif weight.storage == "softplus_negative":
            value = -functional.softplus(value)
        return value if self.imaginary is None else torch.complex(value, getattr(self.module, self.imaginary).detach())

    def time_constants(self) -> Tensor:
        return from_margins(-torch.expm1(self.eigenvalues().real.double() * self.step_size().detach().double()))

    def time_weights(self) -> tuple[Tensor, ...]:
        return tuple(p for weight in self.weights if weight.decides for p in weight.free.values())

    @torch.no_grad()
    def set_time_constants(self, steps: Tensor) -> None:
        values, now = checked_time_constants(steps), self.time_constants()
        frequency = None if self.imaginary is None else getattr(self.module, self.imaginary)
        rates = 1 / (assigned(now, values, frequency).to(now.device) * self.step_size().detach().double())
        weight = self.weights[0]
        if weight.storage == "log_negative":
            stored = torch.log(rates)
        else:
            stored = -rates if weight.storage == "value" else rates + torch.log(-torch.expm1(-rates))
        own = getattr(self.module, weight.name)
        if parametrize.is_parametrized(self.module, weight.name):
            setattr(self.module, weight.name, stored.to(own))
        else:
            own.copy_(stored)

    def margin(self) -> float:
        return -float(torch.expm1(self.eigenvalues().real * self._steps_at_rest()).max())

    def step_map(self) -> StepMap:
        return modes_map(torch.exp(self.eigenvalues() * self._steps_at_rest()), "discrete")

    def _steps_at_rest(self) -> Tensor:
        """Where the model rests, or those of zero input of its own; of a shape that multiplies the weight."""
        own = self.step_size().detach()
        if self.resting_input is not None and (steps := self.step_sizes(self.resting_input[None, None])) is not None:
            return steps.flatten().reshape(own.shape).to(own)
        return own if self.resting_steps is None else self.resting_steps.reshape(own.shape).to(own)


def shaped(module: nn.Module, **shapes: tuple[int, ...] | None) -> bool:
    """Whether the module has these weights, by name (`dt_proj__bias` is dt_proj.bias); None takes any shape."""
    for name, shape in shapes.items():
        weight: object = module
        for part in name.split("__"):
            weight = getattr(weight, part, None)
        if not isinstance(weight, Tensor) or (shape is not None and tuple(weight.shape) != shape):
            return False
    return True
