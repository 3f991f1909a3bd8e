"""The kernels package of Hugging Face: our CPU kernels where transformers asks it for functions of recurrent models.

transformers' Mamba and gated delta rule models call functions that the package may replace, by their names and the device;
it has none of these for CPUs. `register()` offers ours, and `model.set_use_kernels(True)` takes them. `holdfast.accelerate`
needs neither and changes one model; this changes the functions of transformers for every model of the process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from holdfast.errors import ArgumentError, BackendError
from holdfast.nn import _mixer_functions as ours
from holdfast.nn._packed_calls import BOUNDS, packed_call


def register() -> tuple[str, ...]:
    """Offers our kernels for CPUs: `register(); model.set_use_kernels(True)`. Gives the names of the functions."""
    mapping = cpu_mapping()
    _package().register_kernel_mapping(mapping)
    return tuple(mapping)


def cpu_mapping() -> dict[str, dict[str, dict[Any, Offer]]]:
    """What `kernels.register_kernel_mapping` and `kernels.use_kernel_mapping` take: for training, inference and compile."""
    mode = _package().Mode
    modes = (mode.TRAINING | mode.TORCH_COMPILE, mode.INFERENCE | mode.TORCH_COMPILE)
    return {name: {"cpu": dict.fromkeys(modes, offer)} for name, offer in _OFFERS.items()}


def _package() -> Any:
    try:
        import kernels

        kernels.Mode  # noqa: B018  a folder of this name on the path is no package
    except (ImportError, AttributeError) as error:
        raise BackendError("the package kernels is not installed: pip install 'holdfast[kernels]'") from error
    return kernels


@dataclass(frozen=True)
class Offer:
    """One function of ours, as the package loads it: instead of from a repository of its Hub.

    Args:
        name: that transformers calls the function by.
        function: ours, with the arguments of theirs.
        time: axis of time in its first argument, where packed sequences have to be kept apart; None where it does that.
    """

    name: str
    function: Callable[..., Any]
    time: int | None = None

    def load(self) -> type[nn.Module]:
        """A module class whose forward is the function."""
        function, time = self.function, self.time

        def forward(self: nn.Module, *given: Any, **named: Any) -> Any:
            if time is None or not any(named.get(name) is not None for name in ("seq_idx", *BOUNDS)):
                return function(*given, **named)
            x: Tensor = given[0]
            with packed_call(x.mT if time == -1 else x, named):
                return function(*given, **named)

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        # the package compares signatures before it trusts a kernel
        forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [own, *inspect.signature(function).parameters.values()]
        )
        return type(self.name, (nn.Module,), {"forward": forward, "can_torch_compile": True, "has_backward": True})


def _convolution(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
) -> Tensor:
    return ours.causal_conv1d_fn(hidden_states, weight, bias, _known(activation), **kwargs)


def _convolution_step(
    hidden_states: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    return ours.causal_conv1d_update(hidden_states, conv_state, weight, bias, _known(activation))


def _known(activation: str | None) -> str | None:
    if activation not in (None, *ours.SILU_NAMES):
        raise ArgumentError(f"activation: expected None or one of {', '.join(ours.SILU_NAMES)}, got {activation!r}")
    return activation


def _selective_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, delta_bias: Tensor | None = None, delta_softplus: bool = False,
    return_last_state: bool = False, use_mambapy: bool = False, use_associative_scan: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    # the last two choose between transformers' own ways
    return ours.mamba_selective_scan(
        hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus, return_last_state, **kwargs
    )


def _state_update(
    state: Tensor, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    dt_bias: Tensor | None = None, dt_softplus: bool = False, z: Tensor | None = None, **kwargs: Any,
) -> Tensor:  # fmt: skip
    # one name for both: Mamba-2's states have heads
    step = ours.mamba2_selective_state_update if state.ndim == 4 else ours.mamba_selective_state_update
    return step(state, hidden_states, dt, A, B, C, D, dt_bias, dt_softplus, z, **kwargs)


_OFFERS = {
    offer.name: offer
    for offer in (
        Offer("causal_conv1d_fn", _convolution, time=-1),
        Offer("causal_conv1d_update", _convolution_step),
        Offer("selective_scan_fn", _selective_scan, time=-1),
        Offer("selective_state_update", _state_update),
        Offer("mamba_chunk_scan_combined", ours.mamba2_chunk_scan, time=1),
        Offer("chunk_gated_delta_rule", ours.torch_chunk_gated_delta_rule),
        Offer("fused_recurrent_gated_delta_rule", ours.torch_recurrent_gated_delta_rule),
    )
}
