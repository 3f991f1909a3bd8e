"""The states of a gated recurrent unit over time, in torch operations, with a gradient of its own.

With s the step, h_t = h + s z o (c - h) of h = h_{t-1}, where [z | r] = sigmoid(v_zr + U_zr h), c = tanh(v_c + U_c (r o h))
and v is the input's part. Backward has all states, so that gates and candidates come back by two products over all of
time; only the adjoint goes step by step, and it keeps nothing. Autograd of the loop keeps some twenty arrays per step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.kernels._common import autograd
from holdfast.kernels._common.backends import choose
from holdfast.kernels.gated._gpu import GatedCall, gated_gpu, states_before
from holdfast.kernels.gated._triton import fits


class GRUCall(NamedTuple):
    """One run: input parts (batch, time, 3 n), U (3 n, n), first state, steps (batch, time) or a number, lengths."""

    drive: Tensor
    U: Tensor
    state: Tensor
    step: Tensor | float
    lengths: Tensor | None
    reverse: bool


def gru_states(call: GRUCall) -> tuple[Tensor, Tensor]:
    """States at all steps (batch, time, n), zero after each row's end, and the final ones."""
    tensors = [x for x in call if isinstance(x, Tensor)]
    step, number = (call.step, 0.0) if isinstance(call.step, Tensor) else (None, float(call.step))
    on_gpu = choose(call.drive.device, function="gru")[0] == "triton" and fits(call.U)
    if on_gpu and not torch.compiler.is_exporting() and not autograd.has_tangent(*tensors):
        run = GatedCall(
            call.drive, call.U, None, call.state, None, step, call.lengths, "continuous", number, call.reverse
        )
        return gated_gpu(run, _loop_of)[:2]
    plain = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if plain or autograd.has_tangent(*tensors) or not torch.is_grad_enabled():
        return _loop(call)
    return autograd.apply(_GRU, call.drive, call.U, call.state, step, call.lengths, number, call.reverse)


def _loop_of(run: GatedCall) -> tuple[Tensor, Tensor]:
    assert run.h0 is not None
    return _loop(
        GRUCall(run.drive, run.w, run.h0, run.step if run.steps is None else run.steps, run.lengths, run.reverse)
    )


def advance(drive: Tensor, U: Tensor, h: Tensor, step: Tensor | float) -> Tensor:
    """The state after one step, from the input's part (batch, 3 n)."""
    z, _, candidate = _gates(drive, U, h)
    return h + step * z * (candidate - h)


def _gates(drive: Tensor, U: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    n = U.shape[1]
    z, r = torch.sigmoid(drive[..., : 2 * n] + functional.linear(h, U[: 2 * n])).chunk(2, dim=-1)
    return z, r, torch.tanh(drive[..., 2 * n :] + functional.linear(r * h, U[2 * n :]))


def _loop(call: GRUCall) -> tuple[Tensor, Tensor]:
    """The recurrence as autograd, forward mode and tracers can follow it."""
    # unbound once: the gradient of a step's slice has the size of all steps
    inputs = call.drive.unbind(1)
    sizes = call.step.unsqueeze(-1).unbind(1) if isinstance(call.step, Tensor) else [call.step] * len(inputs)
    state, outputs = call.state, [call.state] * len(inputs)
    for t in reversed(range(len(inputs))) if call.reverse else range(len(inputs)):
        moved = advance(inputs[t], call.U, state, sizes[t])
        if call.lengths is None:
            state = outputs[t] = moved
        else:
            running = (t < call.lengths).unsqueeze(-1)
            state = torch.where(running, moved, state)
            outputs[t] = torch.where(running, moved, moved.new_zeros(()))
    empty = call.drive.new_zeros(len(call.drive), 0, call.U.shape[1])
    return torch.stack(outputs, dim=1) if inputs else empty, state


class _GRU(torch.autograd.Function):
    """Saves the states beside its arguments."""

    @staticmethod
    def forward(
        drive: Tensor, U: Tensor, state: Tensor, step: Tensor | None, lengths: Tensor | None, number: float,
        reverse: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        h, last = _loop(GRUCall(drive, U, state, number if step is None else step, lengths, reverse))
        return h, last.clone() if last is state else last

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:5], output[0])
        ctx.number, ctx.reverse = inputs[5:]

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        drive, U, state, step, lengths, h = ctx.saved_tensors
        need = ctx.needs_input_grad[:4]
        call = GRUCall(drive, U, state, ctx.number if step is None else step, lengths, ctx.reverse)
        if torch.is_grad_enabled():  # a second backward is to follow
            wanted = [x for x, n in zip((drive, U, state, step), need, strict=True) if n]
            grads = iter(torch.autograd.grad(_loop(call), wanted, (grad_h, grad_last), create_graph=True))
            return (*(next(grads) if n else None for n in need), None, None, None)
        return (*_gradients(call, h, grad_h, grad_last, need), None, None, None)


def _gradients(
    call: GRUCall, h: Tensor, grad_h: Tensor, grad_last: Tensor, need: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients of drive, U, the first state and the steps."""
    if h.shape[1] == 0:
        zeros = (torch.zeros_like(call.drive), torch.zeros_like(call.U), grad_last, None)
        return zeros
    before, drive = states_before(h, call.state, call.lengths, call.reverse), call.drive
    if call.lengths is not None:  # padding may hold anything, NaN too
        inside = torch.arange(h.shape[1], device=h.device) < call.lengths.unsqueeze(-1)
        drive = torch.where(inside.unsqueeze(-1), drive, 0)
    z, r, c = _gates(drive, call.U, before)
    n, U = call.U.shape[1], call.U
    deltas, slopes = torch.empty_like(call.drive), torch.empty_like(h)
    step = call.step.unsqueeze(-1) if isinstance(call.step, Tensor) else call.step
    # what does not depend on the way back is computed for all steps at once, outside of the loop
    away = c - before
    pieces = [x.unbind(1) for x in (grad_h, before, z, r, step * away * z * (1 - z), step * z * (1 - c * c), step * z)]
    carry = grad_last
    times = range(h.shape[1])
    for t in times if call.reverse else reversed(times):
        g, old, _, gate, to_z, to_c, kept = (piece[t] for piece in pieces)
        slope = carry + g
        of_c = slope * to_c
        along = of_c @ U[2 * n :]
        of_gates = torch.cat((slope * to_z, along * old * gate * (1 - gate)), -1)
        moved = slope - slope * kept + along * gate + of_gates @ U[: 2 * n]
        if call.lengths is not None:
            running = (t < call.lengths).unsqueeze(-1)
            of_c, of_gates, slope = (torch.where(running, x, 0) for x in (of_c, of_gates, slope))
            # past a row's end the gradient continues unchanged to its last step
            moved = torch.where(running, moved, carry)
        deltas[:, t, : 2 * n], deltas[:, t, 2 * n :], slopes[:, t] = of_gates, of_c, slope
        carry = moved
    of_U = None
    # one product over all steps: a sum inside the loop would read and write U's gradient at each
    if need[1]:
        flat = deltas.flatten(0, 1)
        inputs = (before.flatten(0, 1), (r * before).flatten(0, 1))
        of_U = torch.cat((flat[:, : 2 * n].T @ inputs[0], flat[:, 2 * n :].T @ inputs[1]))
    return deltas, of_U, carry, (slopes * z * away).sum(-1) if need[3] else None
