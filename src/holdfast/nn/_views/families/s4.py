"""S4D and S5 of other libraries: real and imaginary parts of eigenvalues, a log step size, and what reads the modes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from holdfast.nn._views.decay_view import DecayView, shaped


def recognise(path: str, module: nn.Module) -> list[DecayView]:
    """By all of their weights, whose shapes fit each other."""
    return _s4d(path, module) or _s5(path, module)


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
    return [DecayView(path, module, "log_A_real", "log_negative", dt, imaginary="A_imag", others=("log_dt",))]


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
    return [DecayView(path, module, "Lambda_re", "value", dt, imaginary="Lambda_im", others=("log_step",))]
