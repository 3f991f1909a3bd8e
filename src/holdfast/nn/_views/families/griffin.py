"""Griffin's RG-LRU (RecurrentGemma): a gate r multiplies the state by exp(-8 r softplus(recurrent_param))."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.nn._views.decay_view import DecayView, shaped

_EXPONENT = 8.0


def recognise(path: str, module: Any) -> list[DecayView]:
    """Its recurrent unit: a rate a channel, and gates of blocks that cover all channels."""
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
            return _EXPONENT * torch.sigmoid(module.recurrent_gate_bias.detach()).flatten()

        super().__init__(path, module, "recurrent_param", "softplus_negative", step_size)
        self.left_alone = (
            f"{self.path} is left as it is: a gate r multiplies the state by exp(-8 r softplus(weight)), below 1 whatever "
            "the weight. If training diverges, lower the learning rate or clip gradients"
        )
