"""Published architectures, in transformers or other libraries, whose decays are known by all of their weights.

Mamba and Mamba-2: A = -exp(A_log), a step multiplies the state by exp(dt A), dt = softplus(... + bias). Griffin's RG-LRU
(RecurrentGemma): a gate r multiplies the state by exp(-8 r softplus(recurrent_param)). LRU: lam = exp(-exp(nu_log) +
i exp(theta_log)). RWKV-4: a step multiplies numerator and denominator by exp(-exp(time_decay)). S4D and S5: real and
imaginary parts of eigenvalues, a log step size, and what reads the modes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from holdfast.nn._acceleration import kind_of
from holdfast.nn._pace import assigned, checked_time_constants, from_margins
from holdfast.nn._views.rest import StepMap
from holdfast.nn._views.view import MemoryWeight, RecurrenceView, StepSource, Storage, modes_map

_KINDS = {
    "log_negative": "eigenvalues -exp(weight)",
    "softplus_negative": "eigenvalues -softplus(weight)",
    "value": "eigenvalues",
}
DECAYING_NOTE = (
    "its decay exp(-exp(weight)) is below 1 by construction, before and after: another parameterization changes the "
    "gradients of the decay, not whether the model can diverge"
)

SELECTIVE_NOTE = (
    "A = -exp(A_log) is negative by construction, before and after: another parameterization changes the gradients of A, "
    "not whether the model can diverge. NaN in such a model come from its step sizes (softplus of dt_proj) and the "
    "learning rate: lower it, clip gradients, keep dt_proj and A in float32"
)
_GATE_EXPONENT = 8.0  # c of Griffin's gate


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
        # torch then writes through the inverse of the parametrization
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


def recognise(path: str, module: nn.Module) -> list[DecayView]:
    """The views of the first architecture that the module is one of."""
    for architecture in (_griffin, _lru, _mamba, _rwkv, _s4d, _s5):
        if views := architecture(path, module):
            return views
    return []


def _mamba(path: str, module: Any) -> list[DecayView]:
    """A mixer by its weights; one decay per head is Mamba-2's in a class known to be so, as the gated delta rule has it too."""
    A = getattr(module, "A_log", None)
    if not isinstance(A, Tensor) or A.ndim not in (1, 2):
        return []
    if A.ndim == 2:
        channels, states = A.shape
        # A_log alone says nothing: other architectures have a weight of that name
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
        self.by_construction = SELECTIVE_NOTE
        # step sizes on data are seen by hooks on the kernels, which only mixers of transformers call
        self.selective = kind_of(module) is not None
        limited = isinstance(getattr(module, "time_step_limit", None), (tuple, list))
        bias, weight = ("dt_proj.bias", "dt_proj.weight") if first else ("dt_bias", None)
        self.steps = StepSource(bias, weight, "time_step_limit" if limited else None)


def _griffin(path: str, module: Any) -> list[DecayView]:
    """Its recurrent unit: a rate per channel, and gates of blocks that cover all channels."""
    rates, bias = (getattr(module, name, None) for name in ("recurrent_param", "recurrent_gate_bias"))
    if not isinstance(rates, Tensor) or not isinstance(bias, Tensor) or bias.ndim != 2:
        return []
    heads, width = bias.shape
    gates = {f"{kind}_gate_weight": (heads, width, width) for kind in ("recurrent", "input")}
    if tuple(rates.shape) != (heads * width,) or not shaped(module, input_gate_bias=(heads, width), **gates):
        return []
    return [GriffinView(path, module)]


class GriffinView(DecayView):
    """The state of one unit, with the gate that zero input leaves."""

    def __init__(self, path: str, module: Any) -> None:
        def step_size() -> Tensor:
            return _GATE_EXPONENT * torch.sigmoid(module.recurrent_gate_bias.detach()).flatten()

        super().__init__(path, module, "recurrent_param", "softplus_negative", step_size)
        self.left_alone = (
            f"{self.path} is left as it is: a gate r multiplies the state by exp(-8 r softplus(weight)), below 1 whatever "
            "the weight. If training diverges, lower the learning rate or clip gradients"
        )

    def step_sizes(self, x: Tensor) -> Tensor:
        unit: Any = self.module
        bias, weight = (p.detach().double().cpu() for p in (unit.recurrent_gate_bias, unit.recurrent_gate_weight))
        parts = x.double().cpu().unflatten(-1, bias.shape)
        return _GATE_EXPONENT * torch.sigmoid(torch.einsum("...hi,hij->...hj", parts, weight) + bias).flatten(-2)


def _lru(path: str, module: Any) -> list[DecayView]:
    """Its ring of eigenvalues and their normalization, one number per mode each, beside B and C."""
    nu = getattr(module, "nu_log", None)
    if not isinstance(nu, Tensor) or nu.ndim != 1:
        return []
    modes = tuple(nu.shape)
    return [LRUView(path, module)] if shaped(module, theta_log=modes, gamma_log=modes, B=None, C=None) else []


class LRUView(DecayView):
    """The state of one unit; phases do not decide how far it is from the circle."""

    def __init__(self, path: str, module: Any) -> None:
        ones = lambda: torch.ones_like(module.nu_log)  # noqa: E731
        super().__init__(path, module, "nu_log", "log_negative", ones, others=("theta_log",))

    def eigenvalues(self) -> Tensor:
        return torch.complex(super().eigenvalues(), self.module.theta_log.detach().exp())  # type: ignore[operator]


def _rwkv(path: str, module: Any) -> list[DecayView]:
    """Its attention: one decay and one first weight per channel, beside key, value and receptance."""
    decay = getattr(module, "time_decay", None)
    if not isinstance(decay, Tensor) or decay.ndim != 1:
        return []
    n = len(decay)
    parts = dict.fromkeys(("key__weight", "value__weight", "receptance__weight"))
    if not shaped(module, time_first=(n,), **parts) or len(module.key.weight) != n:
        return []
    return [DecayView(path, module, "time_decay", "log_negative", lambda: torch.ones_like(module.time_decay))]


def _s4d(path: str, module: Any) -> list[DecayView]:
    """state-spaces' S4DKernel: log_A_real, A_imag (features, modes), log_dt (features,), C (features, modes[, 2])."""
    real = getattr(module, "log_A_real", None)
    if not isinstance(real, Tensor) or real.ndim != 2:
        return []
    shape = tuple(real.shape)
    C = getattr(module, "C", None)
    if not shaped(module, A_imag=shape, log_dt=shape[:1]) or not isinstance(C, Tensor) or tuple(C.shape[:2]) != shape:
        return []
    dt = lambda: module.log_dt.exp().unsqueeze(-1)  # noqa: E731
    view = DecayView(path, module, "log_A_real", "log_negative", dt, imaginary="A_imag", others=("log_dt",))
    view.log_step = "log_dt"
    return [view]


def _s5(path: str, module: Any) -> list[DecayView]:
    """S5's layer: Lambda_re, Lambda_im (modes,), log_step (modes,) or (modes, 1), B (modes, ...), C."""
    real = getattr(module, "Lambda_re", None)
    if not isinstance(real, Tensor) or real.ndim != 1:
        return []
    modes = real.shape[0]
    step, B = getattr(module, "log_step", None), getattr(module, "B", None)
    if not shaped(module, Lambda_im=(modes,), C=None) or not isinstance(step, Tensor) or step.numel() != modes:
        return []
    if not isinstance(B, Tensor) or B.shape[0] != modes:
        return []
    dt = lambda: module.log_step.exp().flatten()  # noqa: E731
    # stored as they are: nothing keeps real parts below 0
    view = DecayView(path, module, "Lambda_re", "value", dt, imaginary="Lambda_im", others=("log_step",))
    view.log_step = "log_step"
    return [view]
