"""Our kernels under the names and with the arguments of the functions that transformers' recurrent modules call.

Sequences are (batch, channels, time) there and (batch, time, channels) here. States in a cache are written in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.kernels import causal_conv, scan, selective
from holdfast.kernels._common.segments import Cuts, in_pieces
from holdfast.kernels.selective import selective_heads
from holdfast.nn._delta_rule import delta_rule, delta_step, inverse_norm, start_state
from holdfast.nn._mlstm import mlstm
from holdfast.nn._packed_calls import present_resets
from holdfast.nn._wkv import wkv

SILU_NAMES = ("silu", "swish")


def causal_conv1d_fn(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
) -> Tensor:
    """The causal convolution of (batch, channels, time); activation silu or None."""
    resets = present_resets(hidden_states.shape[-1])
    return causal_conv(hidden_states.mT, weight, bias, silu=activation in SILU_NAMES, resets=resets)[0].mT


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
    """Mamba's scan of (batch, channels, time), from `initial_states` (batch, channels, states) or from zero."""
    y, last = selective(
        hidden_states.mT, dt.mT, A, B.mT, C.mT, D, z=None if z is None else z.mT, dt_bias=delta_bias,
        dt_softplus=delta_softplus, h0=kwargs.get("initial_states"), resets=present_resets(hidden_states.shape[-1]),
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

    def run(
        u: Tensor, dt: Tensor, B: Tensor, C: Tensor, h0: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        how: Any = {"dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": dt_limit}
        return selective_heads(u, dt, A, B, C, D, **how, h0=h0, lengths=lengths)

    resets = present_resets(hidden_states.shape[1])
    if resets is None:
        y, last = run(hidden_states, dt, B, C, initial_states, None)
    else:
        sequences = {"u": hidden_states, "dt": dt, "B": B, "C": C}
        y, last = in_pieces("selective_heads", run, sequences, initial_states, Cuts(None, resets, None, False))
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


def torch_chunk_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, chunk_size: int = 64,
    initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The gated delta rule of (batch, time, heads, width); the size of a block is our own."""
    bounds = kwargs.get("cu_seqlens")
    resets = present_resets(query.shape[1]) if bounds is None else None
    sequences, state = _delta_arguments(query, key, value, g, beta, initial_state)

    def run(*rest: Any) -> tuple[Tensor, Tensor]:
        *parts, start, lengths = rest
        if lengths is not None:  # steps with beta = 0 and g = 0 leave the state as it is
            inside = torch.arange(query.shape[1], device=query.device)[: parts[0].shape[1]] < lengths.unsqueeze(-1)
            parts = [torch.where(inside.view(*inside.shape, *(1,) * (x.ndim - 2)), x, 0) for x in parts]
        scale = query.shape[-1] ** -0.5
        q, k, v, g, beta = parts
        return delta_rule(q, k, v, g, beta, start, scale=scale, normalize=use_qk_l2norm_in_kernel)

    if bounds is None and resets is None:
        y, last = run(*sequences, state, None)
    else:
        named = dict(zip(("query", "key", "value", "g", "beta"), sequences, strict=True))
        y, last = in_pieces("gated delta rule", run, named, state, Cuts(None, resets, bounds, False))
    return y.to(query.dtype), last if output_final_state else None


def torch_recurrent_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor | None = None,
    output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The same for one step; for several by blocks."""
    if query.shape[1] != 1 or kwargs.get("cu_seqlens") is not None:
        return torch_chunk_gated_delta_rule(
            query, key, value, g, beta, initial_state=initial_state, output_final_state=output_final_state,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, **kwargs,
        )  # fmt: skip
    (q, k, v, g, beta), given = _delta_arguments(query, key, value, g, beta, initial_state)
    state = start_state(given, k, v)
    if use_qk_l2norm_in_kernel:
        q, k = (x * inverse_norm(x) for x in (q, k))
    q, k, v, g, beta = (x.squeeze(1) for x in (q * q.shape[-1] ** -0.5, k, v, g, beta))
    y, last = delta_step(q, k, v, g, beta, state)
    return y.unsqueeze(1).to(query.dtype), last if output_final_state else None


def _delta_arguments(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Tensor | None
) -> tuple[list[Tensor], Tensor | None]:
    """In float32 or better."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    q, k, v, g, beta = (x.to(dtype) for x in (query, key, value, g, beta))
    return [q, k, v, g, beta], None if state is None else state.to(dtype)


def rwkv_linear_attention(
    time_decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, state: Any = None, return_state: bool = False
) -> tuple[Tensor, Any]:
    """RWKV-4's attention of (batch, time, channels); `state` is the triple (numerator, denominator, maximum)."""
    y, last = wkv(torch.exp(time_decay), time_first, key, value, None if state is None else tuple(state))
    return y.to(key.dtype), list(last) if return_state or state is not None else state


def rnn_scan(
    self: Any, hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor, recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`_rnn_scan` of RecurrentGemma's unit: h+ = a h + x, forgotten where a document begins."""
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return super(type(self), self)._rnn_scan(hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype)
    dtype = torch.promote_types(acc_dtype, hidden_states.dtype)
    a = torch.where(reset, recurrent_gate.new_zeros(()), recurrent_gate).to(dtype)
    start = None if recurrent_states is None else recurrent_states.to(device=a.device, dtype=dtype)
    h, last = scan(a, hidden_states.to(dtype), start)
    return h.to(hidden_states.dtype), last


def mlstm_forward(
    self: Any, query: Tensor, key: Tensor, value: Tensor, igate: Tensor, fgate: Tensor, c_initial: Tensor | None = None,
    n_initial: Tensor | None = None, m_initial: Tensor | None = None, return_last_states: bool | None = None,
    mode: str | None = None,
) -> Any:  # fmt: skip
    """`forward` of xLSTM's backend, (batch, heads, time, width), at any length without a loop over its last steps."""
    states = (c_initial, n_initial, m_initial)
    training = "train" in (mode or self.config.mode)
    returned = self.config.return_last_states if return_last_states is None else return_last_states
    given = [state for state in states if state is not None]
    steps, padded = query.shape[2], self.config.mode == "train_with_padding"
    refused = (steps % self.config.chunk_size and not padded) or (padded and returned) if training else not steps
    if torch.compiler.is_exporting() or torch.jit.is_tracing() or refused or len(given) in (1, 2):
        how = {"return_last_states": return_last_states, "mode": mode}
        return super(type(self), self).forward(query, key, value, igate, fgate, *states, **how)
    start = (given[0], given[1], given[2]) if given else None
    y, last = mlstm(query, key, value, igate, fgate, start, epsilon=self.config.eps)
    y = y.to(query.dtype)
    return (y, last) if returned or not training else y


def _moved(state: Tensor, factor: Tensor, gained: Tensor, weights: Tensor) -> Tensor:
    """state o factor + gained o weights, written into `state`; in one pass less where nothing is to be differentiated."""
    # autograd needs the state as it was
    if not torch.is_grad_enabled() and factor.dtype is state.dtype:
        return state.mul_(factor).addcmul_(gained, weights)
    h = torch.addcmul(factor * state.clone(), gained, weights)  # backward reads the state as it was before the copy
    state.copy_(h)
    return h


def _read(h: Tensor, C: Tensor, D: Tensor | None, u: Tensor, z: Tensor | None) -> Tensor:
    """(h C + D u) silu(z), in the dtype of u."""
    y = (h @ C.to(h.dtype).unsqueeze(-1)).squeeze(-1)
    y = y if D is None else torch.addcmul(y, u, D)
    return (y if z is None else y * functional.silu(z)).to(u.dtype)


def nothing(*_: Any, **__: Any) -> None:
    """In the place of a fused function: the mixer then goes on step by step, through the functions above."""


FUNCTIONS = {
    function.__name__: function
    for function in (
        causal_conv1d_fn, causal_conv1d_update, mamba_selective_scan, mamba_selective_state_update, mamba2_chunk_scan,
        mamba2_selective_state_update, torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule,
        rwkv_linear_attention,
    )
} | {"mamba_inner_fn": nothing, "mamba2_split_conv1d_scan_combined": nothing}  # fmt: skip

# methods of ours in the place of a module's own, where what it calls is a method and no function
METHODS: dict[str, dict[str, Any]] = {
    "RecurrentGemmaRglru": {"_rnn_scan": rnn_scan},
    "xLSTMBackend": {"forward": mlstm_forward},
}
# what their own forward calls in the version that these were written for
NEEDED = {"RecurrentGemmaRglru": ("_rnn_scan",), "xLSTMBackend": ("_inference_fn", "_train_fn")}
