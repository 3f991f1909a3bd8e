"""RWKV-4: a step multiplies numerator and denominator by exp(-exp(time_decay))."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.nn._views.decay_view import DecayView, shaped


def recognise(path: str, module: Any) -> list[DecayView]:
    """Its attention: one decay and one first weight a channel, beside key, value and receptance."""
    decay = getattr(module, "time_decay", None)
    if not isinstance(decay, Tensor) or decay.ndim != 1:
        return []
    n = len(decay)
    parts = dict.fromkeys(("key__weight", "value__weight", "receptance__weight"))
    if not shaped(module, time_first=(n,), **parts) or len(module.key.weight) != n:
        return []
    return [DecayView(path, module, "time_decay", "log_negative", lambda: torch.ones_like(module.time_decay))]
