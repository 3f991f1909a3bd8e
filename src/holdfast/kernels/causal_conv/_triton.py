"""The causal convolution on GPUs as torch operators, outputs only: the final state is a slice of the inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import checks, gpu
from holdfast.kernels._common.gpu import ceil_div

_CHANNELS, _STEPS = 64, 32  # of a program of 4 warps: 16 numbers for each thread

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_INPUTS = "Tensor x, Tensor weight, Tensor? bias, Tensor? state, Tensor? lengths, Tensor? reach, bool silu"
_LIBRARY.define(f"causal_conv_triton_forward({_INPUTS}) -> Tensor")
_LIBRARY.define(f"causal_conv_triton_backward({_INPUTS}, Tensor grad_y) -> (Tensor, Tensor, Tensor, Tensor)")


def _constants(x: Tensor, weight: Tensor, *optional: Tensor | None, silu: bool) -> dict[str, Any]:
    import triton.language as tl

    bias, state, lengths, reach = optional
    return {
        "TAPS": weight.shape[1], "HAS_BIAS": bias is not None, "HAS_STATE": state is not None,
        "HAS_LENGTHS": lengths is not None, "HAS_REACH": reach is not None, "SILU": silu,
        "CHANNELS": _CHANNELS, "STEPS": _STEPS, "num_warps": 4, "ACC": tl.float64 if x.dtype == torch.float64 else tl.float32,
    }  # fmt: skip


def _dense(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.contiguous()


def causal_conv_triton_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, lengths: Tensor | None,
    reach: Tensor | None, silu: bool,
) -> Tensor:  # fmt: skip
    """y, shaped like x."""
    from holdfast.kernels.causal_conv._triton_kernels import conv_forward_kernel

    y = x.new_empty(x.shape)
    if x.numel() == 0:
        return y
    rows, time, channels = x.shape
    x, state = gpu.adjacent(x), None if weight.shape[1] == 1 else state
    gpu.launch(
        conv_forward_kernel, (rows, ceil_div(channels, _CHANNELS), ceil_div(time, _STEPS)), x, x, weight.contiguous(),
        _dense(bias), _dense(state), lengths, _dense(reach), y, time, channels, *x.stride()[:2],
        **_constants(x, weight, bias, state, lengths, reach, silu=silu),
    )  # fmt: skip
    return y


def causal_conv_triton_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, lengths: Tensor | None,
    reach: Tensor | None, silu: bool, grad_y: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, weight, bias and state; empty for what was not given."""
    from holdfast.kernels.causal_conv._triton_kernels import conv_backward_kernel

    of_x, of_weight, of_bias, of_state = _backward_meta(x, weight, bias, state, lengths, reach, silu, grad_y)
    if x.numel() == 0:
        return of_x, of_weight.zero_(), of_bias.zero_(), of_state.zero_()
    rows, time, channels = x.shape
    taps = weight.shape[1]
    x, grad_y, state = gpu.adjacent(x), gpu.adjacent(grad_y), None if taps == 1 else state
    tiles = ceil_div(time + taps - 1, _STEPS)
    wide = torch.float32 if x.dtype in checks.HALF else x.dtype
    weights = x.new_empty((rows, tiles, channels, taps), dtype=wide)
    biases = None if bias is None else x.new_empty((rows, tiles, channels), dtype=wide)
    gpu.launch(
        conv_backward_kernel, (rows, ceil_div(channels, _CHANNELS), tiles), x, x, weight.contiguous(), _dense(bias),
        _dense(state), lengths, _dense(reach), grad_y, of_x, weights, biases, of_state, time, channels, *x.stride()[:2],
        *grad_y.stride()[:2], **_constants(x, weight, bias, state, lengths, reach, silu=silu),
    )  # fmt: skip
    of_bias = of_bias if biases is None else biases.sum((0, 1)).to(of_bias.dtype)
    return of_x, weights.sum((0, 1)).to(weight.dtype), of_bias, of_state


def _forward_meta(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


def _backward_meta(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight, bias, state = rest[:3]
    of_bias, of_state = (x.new_empty(0) if v is None else v.new_empty(v.shape) for v in (bias, state))
    return x.new_empty(x.shape), weight.new_empty(weight.shape), of_bias, of_state


for _name, _kernel, _meta in (
    ("causal_conv_triton_forward", causal_conv_triton_forward, _forward_meta),
    ("causal_conv_triton_backward", causal_conv_triton_backward, _backward_meta),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _meta, "Meta")
