"""The public gated residual: checks its arguments, takes the native kernel where it can, and owns the gradients."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from holdfast.kernels._common import autograd, checks, gpu, library
from holdfast.kernels._common.backends import choose
from holdfast.kernels.gate import _native as native
from holdfast.kernels.gate._gpu import gate_gpu
from holdfast.kernels.gate._reference import gate_reference

# a weight of (512, 256), 512 KB, still stays in the second cache; beyond, torch's products are as good
_MAX_WIDTH = 256
# a stream's step: four operators of torch take 9 us, the way into the native kernel takes 14 us
_MIN_TOKENS = 16


class _Gate(torch.autograd.Function):
    """Saves y and gelu(y) weight' beside the weights."""

    @staticmethod
    def forward(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ops.holdfast.gate_forward(y, x, weight, bias, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        y, _, weight, bias = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # zeros for the second output would be 2 width numbers per token
        ctx.save_for_backward(y, weight, bias, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 4
        y, weight, bias, z = ctx.saved_tensors
        if autograd.again():
            needed = [ctx.needs_input_grad[i] for i in (0, 2, 3)]
            out = gate_reference(y, torch.zeros_like(y), weight, bias)
            of_y, of_weight, of_bias = autograd.differentiable_gradients((out,), (grad,), (y, weight, bias), needed)
            return of_y, grad, of_weight, of_bias
        of_y, of_weight, of_bias = torch.ops.holdfast.gate_backward(y, weight, bias, z, grad)
        return of_y, grad, of_weight, of_bias

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> tuple[Any, tuple[int, int]]:
        """Mapped tokens are more tokens; mapped weights are run one after another."""
        size = info.batch_size
        moved = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=True)]
        if in_dims[2] is None and in_dims[3] is None:
            y, x = (t.expand(size, *t.shape) if d is None else t for t, d in zip(moved[:2], in_dims[:2], strict=True))
            return _Gate.apply(y, x, *moved[2:]), (0, 0)
        runs = [
            _Gate.apply(*(t if d is None else t[i] for t, d in zip(moved, in_dims, strict=True))) for i in range(size)
        ]
        return tuple(torch.stack(parts) for parts in zip(*runs, strict=True)), (0, 0)


def gate(
    y: Float[Tensor, "*batch width"],
    x: Float[Tensor, "*batch width"],
    weight: Float[Tensor, "double width"],
    bias: Float[Tensor, " double"],
) -> Float[Tensor, "*batch width"]:
    """A gated residual: x + p o sigmoid(q) with [p | q] = gelu(y) weight' + bias, gelu in its tanh form.

    The mixing step of S4's blocks ("Efficiently modeling long sequences with structured state spaces", App. B): after
    it, all that a block does beside its recurrence and its norm is done. In C++ for float32 and float64 on a CPU, for
    widths that are multiples of 16 up to 256, where gelu(y), the gate and the gradients stay in the cache; by Triton in one
    launch on a GPU; in torch's operators elsewhere, under autocast and in forward mode (torch.func.jvp) too.

    Memory of a training step: the arguments, the result, their gradients, and 2 width numbers per token kept for
    backward.

    Args:
        y: what is gated (*batch, width), as a rule the output of a recurrent layer.
        x: the residual (*batch, width).
        weight: weights of both halves [p | q] (2 width, width).
        bias: their bias (2 width,).

    Returns:
        the gated residual (*batch, width).

    Raises:
        ShapeError: tensors that do not fit y's shape.
        DtypeError: what is not a floating-point tensor, or, outside autocast, y, weight and bias in different dtypes.
        ArgumentError: tensors on different devices.

    Example:
        >>> import torch, holdfast
        >>> y, x, weight = torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(4, 2)
        >>> holdfast.kernels.gate(y, x, weight, torch.tensor([2.0, 4.0, 0.0, 0.0]))  # x + p / 2
        tensor([[2., 3.]])
    """
    checks.tensors("gate", {"y": y, "x": x, "weight": weight, "bias": bias}, checks.FLOATS)
    width = y.shape[-1] if y.ndim else 0
    checks.shape("gate", "x", x, y.shape, "y's")
    checks.shape("gate", "weight", weight, (2 * width, width), "twice y's width, by y's width")
    checks.shape("gate", "bias", bias, (2 * width,), "twice y's width")
    checks.same_device("gate", y=y, x=x, weight=weight, bias=bias)
    if not torch.is_autocast_enabled(y.device.type):
        checks.same_dtype("gate", y=y, weight=weight, bias=bias)
    if _suits_gpu(y, x, weight, bias):
        return gate_gpu(y, x, weight, bias)
    if not _suits(y, x, weight, bias):
        return gate_reference(y, x, weight, bias)
    if autograd.untracked(y, x, weight, bias):
        return native.gate_forward(y, x, weight, bias, False)[0]
    return autograd.apply(_Gate, y, x, weight, bias)[0]


def _suits_gpu(*tensors: Tensor) -> bool:
    y = tensors[0]
    if not gpu.preferred(y.device) or choose(y.device, function="gate")[0] != "triton" or torch.compiler.is_exporting():
        return False
    if torch.is_autocast_enabled(y.device.type) or autograd.has_tangent(*tensors) or y.ndim < 2:
        return False
    return y.dtype in (torch.float32, *checks.HALF) and all(t.dtype is y.dtype for t in tensors)


def _suits(*tensors: Tensor) -> bool:
    if torch.compiler.is_exporting():  # before anything that would bind the number of rows
        return False
    y = tensors[0]
    width = y.shape[-1]
    if y.numel() < _MIN_TOKENS * width or not 0 < width <= _MAX_WIDTH:
        return False
    if y.device.type != "cpu" or y.dtype not in checks.REAL:
        return False
    if any(t.dtype is not y.dtype for t in tensors) or torch.is_autocast_enabled("cpu"):
        return False
    return not library.missing() and width % native.grain() == 0 and not autograd.has_tangent(*tensors)
