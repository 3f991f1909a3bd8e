"""The linear recurrent unit on a GPU with its gradient: products with inputs inside the scan, those of weights by torch.

In units of the input, for N complex states of as many features: forward reads u and writes h (3), reads h and u and writes
y (4); backward reads grad_y and h and writes the gradient of B u (5), reads it, grad_y and u and writes that of u (5), and
reads 3 for each matrix. Where rows and channels are few, u and grad_y are read once more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import autograd
from holdfast.kernels._common.calls import in_dtype
from holdfast.kernels.lru import _triton  # noqa: F401  (defines torch.ops.holdfast.lru_triton_*)
from holdfast.kernels.lru._chunked import lru_chunked
from holdfast.kernels.lru._reference import LRUCall


class _GPULRU(torch.autograd.Function):
    """u, lam, b, c, d, h0, lengths, resets, reverse, planar -> y, h, last; saves h beside its arguments."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        u, lam, b, c, d, h0, *flags = arguments
        h, last = torch.ops.holdfast.lru_triton_forward(u, lam, b, h0, *flags)
        y = h @ c.T if d is None else torch.ops.holdfast.lru_triton_outputs(h, c, d, u, flags[0])
        return y, h, last

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:8], output[1])
        ctx.choices = inputs[8:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor | None, _: Tensor | None, grad_last: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *tensors, h = ctx.saved_tensors
        u, lam, b, c, d, h0, lengths, resets = tensors
        if grad_y is None and grad_last is None:
            return (None,) * 10
        need = ctx.needs_input_grad[:6]
        if autograd.again():
            outputs = _differentiable(*tensors, *ctx.choices)
            found = autograd.differentiable_gradients(outputs, (grad_y, grad_last), tensors[:6], need)
            return (*found, None, None, None, None)
        grad_y = u.new_zeros((*u.shape[:2], c.shape[0])) if grad_y is None else grad_y.contiguous()
        grad_x, of_lam, of_h0 = torch.ops.holdfast.lru_triton_backward(
            grad_y, lam, c, h, h0, grad_last, lengths, resets, *ctx.choices
        )
        of_u, of_d = None, None
        if d is not None and (need[0] or need[4]):
            of_u, of_d = torch.ops.holdfast.lru_triton_inputs(grad_x, b, d, grad_y, u, lengths)
        elif need[0]:
            of_u = grad_x @ b
        of_b = grad_x.flatten(0, 1).T @ u.flatten(0, 1) if need[2] else None
        of_c = grad_y.flatten(0, 1).T @ h.flatten(0, 1) if need[3] else None
        found = (of_u, of_lam, of_b, of_c, of_d, of_h0)
        return (*(g if n else None for g, n in zip(found, need, strict=True)), None, None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Runs mapped calls one after another."""
        return autograd.one_by_one(_GPULRU, info, in_dims, arguments)


def _differentiable(
    u: Tensor, lam: Tensor, b: Tensor, c: Tensor, d: Tensor | None, h0: Tensor | None, lengths: Tensor | None,
    resets: Tensor | None, reverse: bool, planar: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same by torch's products around the scan, whose gradients can be differentiated again."""
    re, im = lam.chunk(2) if planar else (lam, None)
    return lru_chunked(LRUCall(u, re, im, b, c, d, h0, lengths, reverse), resets, "triton")


def lru_gpu(call: LRUCall, resets: Tensor | None) -> tuple[Tensor, Tensor]:
    """What `lru_reference` gives, by Triton kernels; u is float32 or in half precision, and y then is too.

    Args:
        call: the arguments; weights in float32, which products take in u's dtype.
        resets: bool (batch, time): the state before a marked step is zero; or None.
    """
    u, re, im, b, c, d, h0, lengths, reverse = call
    autograd.refuse_tangents("lru", "triton", u, re, im, b, c, d, h0)
    lam = re if im is None else torch.cat((re, im))
    weights = (in_dtype(x, u.dtype) for x in (b, c, d))
    y, _, last = autograd.apply(_GPULRU, u, lam, *weights, h0, lengths, resets, reverse, im is not None)
    return y, last
