"""One step of the S4D recurrence, for streams: there the calls cost more than the arithmetic, so it is one call in C++."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.kernels._common import autograd, checks, library
from holdfast.kernels._common.calls import call, dense, sizes, verify

_DTYPES = (*checks.FLOATS, *checks.COMPLEX)
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def s4d_step(u: Tensor, state: Tensor, factor: Tensor, gain: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the S4D recurrence: the output and the next state.

    h+ = factor h + gain u and y = 2 Re[c h+] + d u; for real factors y = c h+ + d u. All in the precision of the state.

    Args:
        u: inputs (batch, features).
        state: h before the step (batch, features, modes), with a last dimension of 2 (real and imaginary part) where
            the factors are complex.
        factor: discretized eigenvalues (features, modes), or with a batch dimension before.
        gain: discretized input weights, shaped like `factor`.
        c: output weights (features, modes), complex ones as pairs (features, modes, 2).
        d: direct path (features,).

    Returns y (batch, features) and the state after the step.
    """
    # a step of a stream takes 20 us in all: the checks of a public call would take as long, so plain tensors go to C first
    plain = autograd.untracked(u, state, factor, gain, c, d) and not library.missing()
    if not (plain and _in_place(u, state, factor, gain, c, d)):
        u, state, factor, gain, c, d = _in_one_dtype(u, state, factor, gain, c, d)
    if plain and factor.ndim == 2 and u.dtype in checks.REAL:
        return _native(u, state, factor, gain, c, d)
    v = u.unsqueeze(-1)
    if not factor.is_complex():
        h = factor * state + gain * v
        return (h * c).sum(-1) + d * u, h
    if not torch.compiler.is_exporting():
        h = torch.addcmul(gain * v, factor, torch.view_as_complex(state.contiguous()))
        y = 2 * (h * torch.view_as_complex(c.contiguous())).sum(-1).real
        return torch.addcmul(y, d, u), torch.view_as_real(h)
    return step_of_pairs(u, state, torch.view_as_real(factor), torch.view_as_real(gain), c, d)


def step_of_pairs(
    u: Tensor, state: Tensor, factor: Tensor, gain: Tensor, c: Tensor, d: Tensor
) -> tuple[Tensor, Tensor]:
    """`s4d_step` in real arithmetic, for ONNX, which has no complex numbers.

    Args:
        u: inputs (batch, features).
        state: h before the step as pairs (batch, features, modes, 2).
        factor: discretized eigenvalues as pairs (features, modes, 2), or with a batch dimension before.
        gain: discretized input weights, shaped like `factor`.
        c: output weights (features, modes, 2).
        d: direct path (features,).
    """
    v = u.unsqueeze(-1)
    (a, b), (p, q), (re, im), (c_re, c_im) = (pair.unbind(-1) for pair in (factor, gain, state, c))
    h_re, h_im = a * re - b * im + p * v, a * im + b * re + q * v
    return 2 * (c_re * h_re - c_im * h_im).sum(-1) + d * u, torch.stack([h_re, h_im], dim=-1)


def _in_place(*tensors: Tensor | None) -> bool:
    """True if plain tensors are all there and in dtypes that go together, so that `_native` has the rest to check."""
    if any(t is None for t in tensors):
        return False
    u, state, factor, gain, c, d = (t.dtype for t in tensors if t is not None)
    return u is state is c is d and factor is gain and (factor is state or factor is _COMPLEX.get(state))


def _in_one_dtype(u: Tensor, state: Tensor, factor: Tensor, gain: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    """All in the dtype of the state, and on one device: weights may be in any other, half precision included."""
    tensors = (u, state, factor, gain, c, d)
    named = dict(zip(("u", "state", "factor", "gain", "c", "d"), tensors, strict=True))
    checks.tensors("s4d_step", named, _DTYPES)
    checks.same_device("s4d_step", **named)
    real, pair = state.dtype, _COMPLEX.get(state.dtype, state.dtype) if factor.is_complex() else state.dtype
    wanted = (real, real, pair, pair, real, real)
    return tuple(t if t.dtype is dtype else t.to(dtype) for t, dtype in zip(tensors, wanted, strict=True))


def _native(u: Tensor, state: Tensor, factor: Tensor, gain: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    (batch, features), modes = sizes("s4d_step", "u", u, "batch features"), factor.shape[1]
    pair = (2,) if factor.is_complex() else ()
    weights = (features, modes)
    verify("s4d_step", u, (state, (batch, *weights, *pair)), (c, (*weights, *pair)), (d, (features,)))
    verify("s4d_step", factor, (factor, weights), (gain, weights), dtypes=(_COMPLEX[u.dtype] if pair else u.dtype,))
    u, state, factor, gain, c, d = map(dense, (u, state, factor, gain, c, d))
    # both are dense here; by their shapes new ones take 1 us longer, of 20 that a step takes
    y, after = torch.empty_like(u), torch.empty_like(state)
    call(
        "s4d_step", "s4d_step", u.dtype, complex=bool(pair), batch=batch, features=features, modes=modes,
        u=u, state=state, factor=factor, gain=gain, c=c, d=d, y=y, next=after, threads=1,
    )  # fmt: skip
    return y, after
