"""The gated residual on a GPU with its gradient, which is torch's: three products and two elementwise launches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.kernels._common import autograd
from holdfast.kernels.gate import _triton  # noqa: F401  (defines torch.ops.holdfast.gate_triton_forward)
from holdfast.kernels.gate._reference import gate_reference


class _GPUGate(torch.autograd.Function):
    """y, x, weight, bias, keep -> result, [p | q]; saves y and [p | q] beside the weights."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        return torch.ops.holdfast.gate_triton_forward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        y, _, weight, bias, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(y, weight, bias, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        y, weight, bias, z = ctx.saved_tensors
        if autograd.again():
            needed = [ctx.needs_input_grad[i] for i in (0, 2, 3)]
            out = gate_reference(y, torch.zeros_like(y), weight, bias)
            of_y, of_weight, of_bias = autograd.differentiable_gradients((out,), (grad,), (y, weight, bias), needed)
            return of_y, grad, of_weight, of_bias, None
        of_z = torch.ops.aten.glu_backward(grad, z, -1)
        flat = of_z.flatten(0, -2)
        active = functional.gelu(y, approximate="tanh").flatten(0, -2)
        of_y = torch.ops.aten.gelu_backward(of_z @ weight, y, approximate="tanh")
        return of_y, grad, flat.T @ active, flat.sum(0), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Runs mapped calls one after another."""
        return autograd.one_by_one(_GPUGate, info, in_dims, arguments)


def gate_gpu(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What `gate_reference` gives, by a Triton kernel; all in one dtype, float32 or half precision."""
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (y, x, weight, bias))
    return autograd.apply(_GPUGate, y, x, weight, bias, keep)[0]
