"""Recurrences that their user described by a step (`holdfast.nn.StepFunction`)."""

from __future__ import annotations

from torch import nn

from holdfast.nn._views.step_function import JacobianView, StepFunction


def recognise(path: str, module: nn.Module) -> list[JacobianView]:
    """The view of the step."""
    return [module.view(path)] if isinstance(module, StepFunction) else []
