"""The linear scan in blocks of sqrt(time) steps, in torch operations on any device.

Time is cut into blocks that run side by side, so 3 sqrt(time) operations on large tensors replace `time` on small
ones. First each block is summed up as a map h -> product h + rest, then the blocks' first states follow from one
another, then the blocks run again from them. No cumulative product over all of time is ever formed: at a = 0.9
and 1024 steps the closed form by cumprod and cumsum is 18% not finite.

The gradients are another scan against time. With c_t the gradient that reaches h_{t-1} through step t:
c_t = conj(a_t) (grad_h_t + c_{t+1}), begun by the gradient of the final state. Then grad_b_t = grad_h_t + c_{t+1},
grad_a_t = grad_b_t conj(h_{t-1}), and c at the first step is the gradient of h0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.kernels.scan._reference import ScanAdjoint, ScanCall


def _steps(x: Tensor, blocks: int, length: int) -> Tensor:
    """View (rows or 1, blocks * length or 1, channels) as (rows or 1, blocks or 1, length or 1, channels)."""
    return x.unsqueeze(1) if x.shape[1] == 1 else x[:, : blocks * length].unflatten(1, (blocks, length))


def _run(a: Tensor, b: Tensor, state: Tensor, inside: Tensor | None, h: Tensor | None, order: range) -> Tensor:
    """The state after the steps of `order` along dimension -2; writes each step's state into `h` where there is one."""
    # addcmul: one operation and one pass over memory instead of two
    for t in order:
        after = torch.addcmul(b[..., t, :], a[..., t if a.shape[-2] > 1 else 0, :], state)
        if inside is not None:
            after = torch.where(inside[..., t, None], after, state)
        state = after
        if h is not None:
            h[..., t, :] = state if inside is None else torch.where(inside[..., t, None], state, 0)
    return state


def _product(a: Tensor, like: Tensor, inside: Tensor | None, order: range) -> Tensor:
    """The product of a over the steps of `order`, broadcast like `like`."""
    # steps past a row's end count as 1, so that the state goes through them unchanged
    product = torch.ones_like(like)
    for t in order:
        longer = product * a[..., t if a.shape[-2] > 1 else 0, :]
        product = longer if inside is None else torch.where(inside[..., t, None], longer, product)
    return product


def _block_states(product: Tensor, rest: Tensor, state: Tensor, order: range) -> tuple[Tensor, Tensor]:
    """The state before each block and the one after all of them."""
    before = torch.empty_like(rest)
    for k in order:
        before[:, k] = state
        # a state of 0 stays 0 even under a product that has overflowed
        state = rest[:, k] + torch.where(state == 0, state, product[:, k] * state)
    return before, state


def _blocks(a: Tensor, b: Tensor, state: Tensor, inside: Tensor | None, h: Tensor, reverse: bool) -> Tensor:
    """Runs the blocks of (rows, blocks, length, channels) side by side into `h`; returns the last state."""
    blocks, length = b.shape[1:3]
    order = range(length - 1, -1, -1) if reverse else range(length)
    # first pass: every block from zero, side by side, keeping nothing but where each ends
    rest = _run(a, b, torch.zeros_like(h[:, :, 0]), inside, None, order)
    product = _product(a, rest, inside, order)
    before, last = _block_states(product, rest, state, range(blocks - 1, -1, -1) if reverse else range(blocks))
    # second pass: again, now from the right states, and this time written down
    _run(a, b, before, inside, h, order)
    return last


@torch.no_grad()
def scan_chunked(call: ScanCall) -> tuple[Tensor, Tensor]:
    """The states (rows, time, channels) and the final ones, without gradients: `scan_adjoint` has them.

    Assumes that the product of |a| over sqrt(time) steps is representable wherever the state is not 0.
    """
    a, b, h0, lengths, reverse = call
    rows, time, channels = b.shape
    # sqrt(time) blocks of sqrt(time) steps: fewer, longer ones mean more operations, more, shorter ones a longer chain
    length = max(math.isqrt(time), 1)
    blocks = time // length
    h = torch.empty((rows, time, channels), dtype=b.dtype, device=b.device)
    state = b.new_zeros((rows, channels)) if h0 is None else h0
    if h.numel() == 0:
        return h, state.clone()
    inside = None if lengths is None else torch.arange(time, device=b.device) < lengths.unsqueeze(-1)
    cut = blocks * length

    def whole(state: Tensor) -> Tensor:
        steps = (_steps(a, blocks, length), _steps(b, blocks, length))
        mask = None if inside is None else inside[:, :cut].unflatten(1, (blocks, length))
        return _blocks(*steps, state, mask, h[:, :cut].unflatten(1, (blocks, length)), reverse)

    # the steps that no block has, fewer than sqrt(time): one by one, before the blocks where time runs backwards
    def remainder(state: Tensor) -> Tensor:
        tail = a if a.shape[1] == 1 else a[:, cut:]
        mask = None if inside is None else inside[:, cut:]
        order = range(time - cut - 1, -1, -1) if reverse else range(time - cut)
        return _run(tail, b[:, cut:], state, mask, h[:, cut:], order)

    return h, whole(remainder(state)) if reverse else remainder(whole(state))


def _shifted(x: Tensor, first: Tensor, lengths: Tensor | None, reverse: bool) -> Tensor:
    """Each step's predecessor in the order of the run, `first` before the first step; 0 after the end stays 0."""
    if not reverse:
        return torch.cat((first.unsqueeze(1), x[:, :-1]), 1)
    later = torch.cat((x[:, 1:], first.unsqueeze(1)), 1)
    if lengths is None:
        return later
    last = torch.arange(x.shape[1], device=x.device) == lengths.unsqueeze(-1) - 1
    return torch.where(last.unsqueeze(-1), first.unsqueeze(1), later)


def scan_adjoint(scan: Callable[[ScanCall], tuple[Tensor, Tensor]], call: ScanAdjoint) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a (summed over time where a is constant, not over rows), b and h0, with `scan` as the scan.

    In torch operations, so that autograd can follow them once more where `scan` can be followed.
    """
    a, h, h0, lengths, grad_h, grad_last, reverse = call
    if grad_h is None:
        grad_h = torch.zeros_like(h)
    if grad_last is None:
        grad_last = h.new_zeros(h.shape[0], h.shape[2])
    if h.numel() == 0:
        return h.new_zeros(h.shape[0], a.shape[1], h.shape[2]), torch.zeros_like(h), grad_last
    inside = None
    if lengths is not None:
        inside = (torch.arange(h.shape[1], device=h.device) < lengths.unsqueeze(-1)).unsqueeze(-1)
    # torch's convention for complex gradients, that of the conjugate; resolved, as the scans read memory
    factor = a.conj().resolve_conj()
    c, grad_h0 = scan(ScanCall(factor, factor * grad_h, grad_last, lengths, not reverse))
    grad_b = grad_h + _shifted(c, grad_last, lengths, not reverse)
    if inside is not None:
        grad_b = torch.where(inside, grad_b, torch.zeros_like(grad_b))
    before = _shifted(h, torch.zeros_like(grad_h0) if h0 is None else h0, lengths, reverse)
    grad_a = grad_b * before.conj()
    return (grad_a.sum(1, keepdim=True) if a.shape[1] == 1 else grad_a), grad_b, grad_h0
