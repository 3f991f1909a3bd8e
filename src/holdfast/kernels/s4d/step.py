"""One step of the S4D recurrence, for streams: there the calls cost more than the arithmetic, so it is one call in C++."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from holdfast.kernels import autograd, library

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


@functools.cache
def _function(dtype: torch.dtype) -> Any:
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    return library.function(f"holdfast_s4d_step_{_SUFFIX[dtype]}", [ctypes.c_int, size, size, size, *[pointer] * 8])


def s4d_step(u: Tensor, state: Tensor, factor: Tensor, gain: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """h+ = factor h + gain u, y = 2 Re[c h+] + d u; for real factors y = c h+ + d u.

    Shapes: u and y (batch, features); factor and gain (features, modes), or with a batch before; complex numbers of c
    (features, modes, 2) and of the states (batch, features, modes, 2) are real pairs. The final state comes second.
    """
    if autograd.untracked(u) and factor.ndim == 2 and u.dtype in _SUFFIX and not library.missing():
        return _native(u, state, factor, gain, c, d)
    v = u.unsqueeze(-1)
    if not factor.is_complex():
        h = factor * state + gain * v
        return (h * c).sum(-1) + d * u, h
    if not torch.compiler.is_exporting():
        h = torch.addcmul(gain * v, factor, torch.view_as_complex(state.contiguous()))
        y = 2 * (h * torch.view_as_complex(c)).sum(-1).real
        return torch.addcmul(y, d, u), torch.view_as_real(h)
    # the same in real arithmetic: complex tensors cannot be exported to ONNX
    (a, b), (p, q) = (torch.view_as_real(z).unbind(-1) for z in (factor, gain))
    (re, im), (c_re, c_im) = state.unbind(-1), c.unbind(-1)
    h_re, h_im = a * re - b * im + p * v, a * im + b * re + q * v
    return 2 * (c_re * h_re - c_im * h_im).sum(-1) + d * u, torch.stack([h_re, h_im], dim=-1)


def _native(u: Tensor, state: Tensor, factor: Tensor, gain: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    u, state, factor, gain, c = (
        u.contiguous(),
        state.contiguous(),
        factor.contiguous(),
        gain.contiguous(),
        c.contiguous(),
    )
    batch, features = u.shape
    y, after = torch.empty_like(u), torch.empty_like(state)
    _function(u.dtype)(
        factor.is_complex(), batch, features, factor.shape[1], u.data_ptr(), state.data_ptr(), factor.data_ptr(),
        gain.data_ptr(), c.data_ptr(), d.contiguous().data_ptr(), y.data_ptr(), after.data_ptr(),
    )  # fmt: skip
    return y, after
