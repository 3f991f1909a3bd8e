"""Mamba and Mamba-2: A = -exp(A_log), a step multiplies the state by exp(dt A), dt = softplus(... + bias)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from holdfast.nn._views.decay_view import DecayView, shaped
from holdfast.nn._views.view import StepSource
from holdfast.nn.acceleration import kind_of

SELECTIVE = (
    "A = -exp(A_log) is negative by construction, before and after: another parameterization changes the gradients of A, "
    "not whether the model can diverge. NaN in such a model come from its step sizes (softplus of dt_proj) and the "
    "learning rate: lower it, clip gradients, keep dt_proj and A in float32"
)


def recognise(path: str, module: Any) -> list[DecayView]:
    """A mixer by its weights; one decay a head is Mamba-2's in a class known to be so, as the gated delta rule has it too."""
    A = getattr(module, "A_log", None)
    if not isinstance(A, Tensor) or A.ndim not in (1, 2):
        return []
    if A.ndim == 2:
        channels, states = A.shape
        whole = shaped(module, D=(channels,), dt_proj__bias=(channels,), dt_proj__weight=None, x_proj__weight=None)
        if not whole or module.x_proj.weight.shape != (module.dt_proj.weight.shape[1] + 2 * states, channels):
            return []
    elif not _is_mamba2(module) or not shaped(module, D=tuple(A.shape), dt_bias=tuple(A.shape)):
        return []
    return [MambaView(path, module, A.ndim == 2)]


def _is_mamba2(module: Any) -> bool:
    """A mixer of transformers, or the class of the package mamba_ssm."""
    own = any(kind.__module__.startswith("mamba_ssm.modules.mamba2") for kind in type(module).__mro__)
    return own or kind_of(module) is not None


class MambaView(DecayView):
    """The state of a mixer, on zero input."""

    def __init__(self, path: str, module: Any, first: bool) -> None:
        def step_size() -> Tensor:
            bias = module.dt_proj.bias.unsqueeze(-1) if first else module.dt_bias
            return functional.softplus(bias.detach().to(module.A_log.dtype))

        super().__init__(path, module, "A_log", "log_negative", step_size)
        self.by_construction = SELECTIVE
        self.selective = kind_of(module) is not None
        limited = isinstance(getattr(module, "time_step_limit", None), (tuple, list))
        bias, weight = ("dt_proj.bias", "dt_proj.weight") if first else ("dt_bias", None)
        self.steps = StepSource(bias, weight, "time_step_limit" if limited else None)
