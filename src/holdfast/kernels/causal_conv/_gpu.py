"""The causal convolution on a GPU with its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import autograd
from holdfast.kernels._common.calls import in_dtype
from holdfast.kernels.causal_conv import _triton  # noqa: F401  (defines torch.ops.holdfast.causal_conv_triton_*)
from holdfast.kernels.causal_conv._reference import ConvCall, causal_conv_reference, last_inputs, reach_of


class _GPUConv(torch.autograd.Function):
    """Saves its arguments and nothing else."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        return torch.ops.holdfast.causal_conv_triton_forward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:6])
        ctx.silu = inputs[6]

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, lengths, reach = ctx.saved_tensors
        need = ctx.needs_input_grad[:4]
        if autograd.again():
            y, _ = causal_conv_reference(*tensors, silu=ctx.silu, lengths=lengths, reach=reach)
            grads = autograd.differentiable_gradients((y,), (grad_y,), tensors, need)
        else:
            grads = torch.ops.holdfast.causal_conv_triton_backward(*tensors, lengths, reach, ctx.silu, grad_y)
        return (*(g if n else None for g, n in zip(grads, need, strict=True)), None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Runs mapped calls one after another."""
        runs = []
        for i in range(info.batch_size):
            own = [x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)]
            runs.append(_GPUConv.apply(*own))
        return torch.stack(runs), 0


def causal_conv_gpu(call: ConvCall, resets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What `causal_conv_reference` gives, by Triton kernels.

    Args:
        call: the arguments.
        resets: bool (batch, time): the inputs before a marked step are taken as zero; or None.
    """
    reach = None if resets is None else reach_of(resets)
    y = autograd.apply(_GPUConv, *call[:5], reach, call.silu)
    last = last_inputs(call.x, call.state, call.lengths, call.weight.shape[1] - 1, reach)
    return y, in_dtype(last, call.weight.dtype)
