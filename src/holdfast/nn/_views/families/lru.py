"""LRU of other libraries: lam = exp(-exp(nu_log) + i exp(theta_log)), one step a unit of time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.nn._views.decay_view import DecayView, shaped


def recognise(path: str, module: Any) -> list[DecayView]:
    """Its ring of eigenvalues and their normalization, one number a mode each, beside B and C."""
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
