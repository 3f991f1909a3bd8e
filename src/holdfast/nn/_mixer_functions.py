"""Our kernels under the names and with the arguments of the functions that transformers' Mamba mixers call.

Sequences are (batch, channels, time) there and (batch, time, channels) here. States in a cache are written in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.errors import ArgumentError
from holdfast.kernels import causal_conv, selective
from holdfast.kernels.selective import selective_heads

SILU_NAMES = ("silu", "swish")


def causal_conv1d_fn(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
) -> Tensor:
    """The causal convolution of (batch, channels, time); activation silu or None."""
    _refuse_packed(kwargs)
    return causal_conv(hidden_states.mT, weight, bias, silu=activation in SILU_NAMES)[0].mT


def causal_conv1d_update(
    hidden_states: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> Tensor:
    """The convolution at one more step, (batch, channels, 1), after the inputs in `conv_state`, which it joins."""
    window = torch.cat([conv_state, hidden_states], -1)
    # into the cache of transformers, whose tensors other code holds: in place
    conv_state.copy_(window[..., -conv_state.shape[-1] :])
    # a cache may be longer than the taps
    y = (window[..., -weight.shape[-1] :].to(weight.dtype) * weight).sum(-1)
    y = y if bias is None else y.add_(bias)
    return (functional.silu(y) if activation in SILU_NAMES else y).to(hidden_states.dtype).unsqueeze(-1)


def mamba_selective_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, delta_bias: Tensor | None = None, delta_softplus: bool = False,
    return_last_state: bool = False, **kwargs: Any,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Mamba's scan of (batch, channels, time), from zero."""
    y, last = selective(
        hidden_states.mT, dt.mT, A, B.mT, C.mT, D, z=None if z is None else z.mT, dt_bias=delta_bias,
        dt_softplus=delta_softplus,
    )  # fmt: skip
    return (y.mT, last) if return_last_state else y.mT


def mamba_selective_state_update(
    state: Tensor, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    dt_bias: Tensor | None = None, dt_softplus: bool = False, z: Tensor | None = None, **kwargs: Any,
) -> Tensor:  # fmt: skip
    """Mamba's scan at one more step, (batch, channels); `state` (batch, channels, states) is moved in place."""
    delta = dt if dt_bias is None else dt + dt_bias
    delta = (functional.softplus(delta) if dt_softplus else delta).to(state.dtype)
    # in place: (channels, states) numbers for every row are the largest tensor of a step
    factor = (delta.unsqueeze(-1) * A).exp_()
    h = _moved(state, factor, (delta * hidden_states).unsqueeze(-1), B.unsqueeze(1))
    return _read(h, C, D, hidden_states, z)


def mamba2_chunk_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, D: Tensor | None = None,
    dt_bias: Tensor | None = None, initial_states: Tensor | None = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False, **kwargs: Any,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Mamba-2's scan of (batch, time, heads, width); the size of a block is our own."""
    _refuse_packed(kwargs)
    y, last = selective_heads(
        hidden_states, dt, A, B, C, D, dt_bias=dt_bias, dt_softplus=dt_softplus, dt_limit=dt_limit, h0=initial_states
    )
    y = y.contiguous()  # mixers take views of it
    return (y, last) if return_final_states else y


def mamba2_selective_state_update(
    state: Tensor, hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    dt_bias: Tensor | None = None, dt_softplus: bool = False, z: Tensor | None = None, **kwargs: Any,
) -> Tensor:  # fmt: skip
    """Mamba-2's scan at one more step, (batch, heads, width); `state` (batch, heads, width, states) is moved in place."""
    share = state.shape[1] // B.shape[1]
    B, C = (x.repeat_interleave(share, 1) if share > 1 else x for x in (B, C))
    delta = dt if dt_bias is None else dt + dt_bias
    delta = (functional.softplus(delta) if dt_softplus else delta).to(state.dtype)
    one_rate = A.stride()[1:] == (0, 0) and dt.stride(-1) == 0  # of a head, written out for its width and states
    factor = torch.exp(delta[..., :1] * A[:, :1, 0] if one_rate else delta.unsqueeze(-1) * A)
    factor = factor.unsqueeze(-1) if one_rate else factor
    h = _moved(state, factor, (delta * hidden_states).unsqueeze(-1), B.unsqueeze(2))
    return _read(h, C, D, hidden_states, z)


def _moved(state: Tensor, factor: Tensor, gained: Tensor, weights: Tensor) -> Tensor:
    """state o factor + gained o weights, written into `state`; in one pass less where nothing is to be differentiated."""
    # autograd needs the state as it was
    if not torch.is_grad_enabled() and factor.dtype is state.dtype:
        return state.mul_(factor).addcmul_(gained, weights)
    h = torch.addcmul(factor * state, gained, weights)
    state.copy_(h)
    return h


def _read(h: Tensor, C: Tensor, D: Tensor | None, u: Tensor, z: Tensor | None) -> Tensor:
    """(h C + D u) silu(z), in the dtype of u."""
    y = (h @ C.to(h.dtype).unsqueeze(-1)).squeeze(-1)
    y = y if D is None else torch.addcmul(y, u, D)
    return (y if z is None else y * functional.silu(z)).to(u.dtype)


def _refuse_packed(kwargs: dict[str, Any]) -> None:
    given = [name for name in ("cu_seqlens", "seq_idx") if kwargs.get(name) is not None]
    if given:
        raise ArgumentError(
            f"an accelerated mixer does not keep packed sequences apart, got {given[0]}; pad them, or build the model "
            "of holdfast.nn.Mamba, which takes cu_seqlens"
        )


def nothing(*_: Any, **__: Any) -> None:
    """In the place of a fused function: the mixer then goes on step by step, through the functions above."""


FUNCTIONS = {
    function.__name__: function
    for function in (
        causal_conv1d_fn, causal_conv1d_update, mamba_selective_scan, mamba_selective_state_update, mamba2_chunk_scan,
        mamba2_selective_state_update,
    )
} | {"mamba_inner_fn": nothing, "mamba2_split_conv1d_scan_combined": nothing}  # fmt: skip
