"""Gated recurrences on a GPU with their gradient: products over all of time by torch, the recurrence by Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.kernels._common import autograd
from holdfast.kernels.gated import _triton  # noqa: F401  (defines torch.ops.holdfast.gated_triton_*)


class GatedCall(NamedTuple):
    """One run: the input's part of the gates (batch, time, gates n), the recurrent matrix (gates n, n), and the rest."""

    drive: Tensor
    w: Tensor
    bias: Tensor | None  # (n,): of a GRU's W_n h
    h0: Tensor | None  # (batch, n)
    c0: Tensor | None  # (batch, n): of an LSTM
    steps: Tensor | None  # (batch, time): of the GRU in continuous time, where they are not one number
    lengths: Tensor | None
    cell: str  # "lstm", "gru" or "continuous"
    step: float
    reverse: bool


TENSORS = 7
Reference = Callable[[GatedCall], tuple[Tensor, ...]]  # h, last and the last cell of a call


class _GPUGated(torch.autograd.Function):
    """A reference for second derivatives and the fields of GatedCall -> h, cells, last, c_last; saves h and cells."""

    @staticmethod
    def forward(reference: Reference, *call: Any) -> tuple[Tensor, ...]:
        return torch.ops.holdfast.gated_triton_forward(*call)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        h, cells, _, c_last = output
        ctx.reference, ctx.settings = inputs[0], inputs[1 + TENSORS :]
        ctx.mark_non_differentiable(cells, *(() if ctx.settings[0] == "lstm" else (c_last,)))
        ctx.save_for_backward(*inputs[1 : 1 + TENSORS], h, cells)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, h, cells = ctx.saved_tensors
        need = ctx.needs_input_grad[1 : TENSORS + 1]
        given = (grads[0], grads[2], grads[3] if ctx.settings[0] == "lstm" else None)
        if all(grad is None for grad in given):
            return (None,) * (1 + TENSORS + 3)
        call = GatedCall(*tensors, *ctx.settings)
        if autograd.again():
            outputs = ctx.reference(call)
            found = autograd.differentiable_gradients(outputs, given[: len(outputs)], tensors, need)
        else:
            found = _gradients(call, h, cells, given)
        return None, *(g if n else None for g, n in zip(found, need, strict=True)), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Runs mapped calls one after another."""
        return autograd.one_by_one(_GPUGated, info, in_dims, arguments)


def _gradients(
    call: GatedCall, h: Tensor, cells: Tensor, grads: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients of all tensors of a call; None for lengths."""
    drive, w, bias, h0, c0, steps, lengths, *settings = call
    n = w.shape[1]
    before = states_before(h, h0, lengths, call.reverse)
    if lengths is not None:  # padding may hold anything, NaN too
        inside = torch.arange(h.shape[1], device=h.device) < lengths.unsqueeze(-1)
        drive = torch.where(inside.unsqueeze(-1), drive, 0)
    sums, last_inputs = _sums(call.cell, drive, w, bias, before)
    lstm = (cells, states_before(cells, c0, lengths, call.reverse)) if call.cell == "lstm" else (None, None)
    delta, of_h0, of_c0, of_steps = torch.ops.holdfast.gated_triton_backward(
        w, sums, before, *lstm, steps, lengths, *grads, *settings
    )
    flat, inputs = delta.flatten(0, 1), before.flatten(0, 1)
    if call.cell == "lstm":
        return delta, flat.T @ inputs, None, of_h0, of_c0, None, None
    # a GRU's last gate reads W_n h, whose gradient stands apart; in continuous time it reads r h
    hidden = flat[:, 3 * n :] if call.cell == "gru" else flat[:, 2 * n :]
    of_w = torch.cat((flat[:, : 2 * n].T @ inputs, hidden.T @ last_inputs.flatten(0, 1)))
    return delta[..., : 3 * n], of_w, hidden.sum(0), of_h0, None, of_steps, None


def _sums(cell: str, drive: Tensor, w: Tensor, bias: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """The sums inside the gates at all steps, and what the matrix of the last gate was multiplied with."""
    n = w.shape[1]
    if cell == "lstm":
        return drive + before @ w.T, before
    if cell == "gru":
        assert bias is not None
        hidden = before @ w.T
        inner = hidden[..., 2 * n :] + bias
        return torch.cat((drive[..., : 2 * n] + hidden[..., : 2 * n], drive[..., 2 * n :], inner), -1), before
    gates = drive[..., : 2 * n] + before @ w[: 2 * n].T
    chosen = torch.sigmoid(gates[..., n:]) * before
    return torch.cat((gates, drive[..., 2 * n :] + chosen @ w[2 * n :].T), -1), chosen


def states_before(h: Tensor, start: Tensor | None, lengths: Tensor | None, reverse: bool) -> Tensor:
    """The state before each step, in the order of the run; after a row's end any finite number does.

    Args:
        h: states (batch, time, n), 0 after a row's end.
        start: the state before the first step (batch, n); None is zero.
        lengths: steps of each row, or None.
        reverse: whether the run goes from the last step to the first.
    """
    first = h.new_zeros(len(h), 1, h.shape[2]) if start is None else start.unsqueeze(1)
    if not reverse:
        return torch.cat((first, h[:, :-1]), 1)
    later = torch.cat((h[:, 1:], first), 1)
    if lengths is None:
        return later
    last = torch.arange(h.shape[1], device=h.device) == lengths.unsqueeze(-1) - 1
    return torch.where(last.unsqueeze(-1), first, later)


def gated_gpu(call: GatedCall, reference: Reference) -> tuple[Tensor, Tensor, Tensor]:
    """States at all steps, the last state and the last cell (empty but of an LSTM), by Triton kernels.

    Args:
        call: the arguments.
        reference: the same in torch's operators, for second derivatives.
    """
    with torch.autocast(call.drive.device.type, enabled=False):
        h, _, last, c_last = autograd.apply(_GPUGated, reference, *call)
    return h, last, c_last
