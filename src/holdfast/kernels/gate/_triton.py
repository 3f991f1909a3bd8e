"""The gated residual on GPUs as a torch operator: gelu, product, gate and sum in one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.kernels._common import gpu
from holdfast.kernels._common.gpu import ceil_div

TILE = {"TOKENS": 64, "FEATURES": 64, "INNER": 16}  # of a program: two sums of 64 x 64 are 32 registers of 256 threads

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define("gate_triton_forward(Tensor y, Tensor x, Tensor weight, Tensor bias, bool keep) -> (Tensor, Tensor)")


def gate_triton_forward(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """The result, shaped like y, and [p | q], empty unless `keep`."""
    from holdfast.kernels.gate._triton_kernels import gate_forward_kernel

    out, z = _meta(y, x, weight, bias, keep)
    width = y.shape[-1]
    tokens = y.numel() // max(width, 1)
    if tokens and width:
        grid = (ceil_div(tokens, TILE["TOKENS"]), ceil_div(width, TILE["FEATURES"]))
        gpu.launch(
            gate_forward_kernel, grid, y, y.contiguous(), x.contiguous(), weight.contiguous(), bias.contiguous(), out, z,
            tokens, width, KEEP=keep, WIDE=gpu.interpreted(), PRECISION=gpu.dot_precision(y.device), num_warps=8,
            num_stages=2, **TILE,
        )  # fmt: skip
    return out, z


def _meta(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape), y.new_empty((*y.shape[:-1], 2 * y.shape[-1]) if keep else (0,))


_LIBRARY.impl("gate_triton_forward", gate_triton_forward, "CompositeExplicitAutograd")
_LIBRARY.impl("gate_triton_forward", _meta, "Meta")
