"""The linear scan on a GPU with its gradient: what `scan` and the layers that carry their states by it call there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import autograd
from holdfast.kernels.scan import _triton  # noqa: F401  (defines torch.ops.holdfast.scan_triton_*)
from holdfast.kernels.scan._chunked import scan_adjoint
from holdfast.kernels.scan._reference import ScanAdjoint


class _GPUScan(torch.autograd.Function):
    """Saves h beside its arguments; a training step allocates h and the gradients, no more."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        return torch.ops.holdfast.scan_triton_forward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        a, _, h0, lengths, resets, ctx.reverse, ctx.planar = inputs
        ctx.save_for_backward(a, output[0], h0, lengths, resets)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        a, h, h0, lengths, resets = ctx.saved_tensors
        need = ctx.needs_input_grad[:3]
        if autograd.again():
            grads = _differentiable_backward(ctx.saved_tensors, ctx, (grad_h, grad_last))
        else:
            grads = torch.ops.holdfast.scan_triton_backward(
                a, h, h0, lengths, resets, grad_h, grad_last, ctx.reverse, ctx.planar, need[0], need[1]
            )
        if need[0]:
            grads = (grads[0].sum_to_size(a.shape).to(a.dtype), *grads[1:])
        return (*(g if n else None for g, n in zip(grads, need, strict=True)), None, None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Runs mapped calls one after another."""
        return autograd.one_by_one(_GPUScan, info, in_dims, arguments)


def _differentiable_backward(
    tensors: tuple[Tensor | None, ...], ctx: Any, grads: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, ...]:
    """The gradients as functions that can be differentiated again, by a scan against time."""
    turn = _paired if ctx.planar else (lambda x: x)
    a, h, h0 = (None if x is None else turn(x) for x in tensors[:3])
    lengths, resets = tensors[3:]
    assert a is not None and h is not None
    if resets is not None:
        a = torch.where(resets.unsqueeze(-1), torch.zeros_like(a), a)

    of_h, of_last = (None if x is None else turn(x) for x in grads)
    adjoint = ScanAdjoint(a, h, h0, lengths, of_h, of_last, ctx.reverse)
    found = scan_adjoint(lambda c: scan_gpu(c.a, c.b, c.h0, reverse=c.reverse, lengths=c.lengths), adjoint)
    if resets is not None:
        found = (torch.where(resets.unsqueeze(-1), torch.zeros_like(found[0]), found[0]), *found[1:])
    return tuple(torch.cat((x.real, x.imag), -1) for x in found) if ctx.planar else found


def _paired(x: Tensor) -> Tensor:
    return torch.complex(*x.chunk(2, -1))


def scan_gpu(
    a: Tensor, b: Tensor, h0: Tensor | None = None, *, lengths: Tensor | None = None, resets: Tensor | None = None,
    reverse: bool = False, planar: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What `scan` gives, for b (rows, time, channels), by Triton kernels.

    Args:
        a: factors (1 or rows, 1 or time, channels).
        b: inputs (rows, time, channels), in half precision too.
        h0: state before the first step (rows, channels); None is zero.
        lengths: int64 (rows,), or None.
        resets: bool (rows, time): the state before a marked step is zero; or None.
        reverse: run from the last step to the first.
        planar: whether the last dimension of all tensors is [real parts | imaginary parts].

    Returns h in b's dtype and the final state in float32 or wider.
    """
    autograd.refuse_tangents("scan", "triton", a, b, h0)
    return autograd.apply(_GPUScan, a, b, h0, lengths, resets, reverse, planar)
