"""The linear scan in blocks of sqrt(time) steps, in torch operations on any device.

Time is cut into blocks that run side by side, so 3 sqrt(time) operations on large tensors replace `time` on small
ones. First each block is summed up as a map h -> product h + rest, then the blocks' first states follow from one
another, then the blocks run again from them. No cumulative product over all of time is ever formed: at a = 0.9
and 1024 steps the closed form by cumprod and cumsum is 18% not finite.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor


def _steps(x: Tensor, blocks: int, length: int) -> Tensor:
    """View (rows or 1, blocks * length or 1, channels) as (rows or 1, blocks or 1, length or 1, channels)."""
    return x.unsqueeze(1) if x.shape[1] == 1 else x[:, : blocks * length].unflatten(1, (blocks, length))


def _run(a: Tensor, b: Tensor, state: Tensor, inside: Tensor | None, h: Tensor | None, order: range) -> Tensor:
    """The state after the steps of `order` along dimension -2; writes each step's state into `h` where there is one."""
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
    rest = _run(a, b, torch.zeros_like(h[:, :, 0]), inside, None, order)
    product = _product(a, rest, inside, order)
    before, last = _block_states(product, rest, state, range(blocks - 1, -1, -1) if reverse else range(blocks))
    _run(a, b, before, inside, h, order)
    return last


@torch.no_grad()
def scan_chunked(
    a: Shaped[Tensor, "#rows #time channels"],
    b: Shaped[Tensor, "rows time channels"],
    h0: Shaped[Tensor, "rows channels"] | None = None,
    *,
    reverse: bool = False,
    lengths: Int64[Tensor, " rows"] | None = None,
) -> tuple[Shaped[Tensor, "rows time channels"], Shaped[Tensor, "rows channels"]]:
    """What `scan_reference` gives, without gradients (op.py has them), for a and b in one dtype.

    Assumes that the product of |a| over sqrt(time) steps is representable wherever the state is not 0.
    """
    rows, time, channels = b.shape
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

    def remainder(state: Tensor) -> Tensor:
        tail = a if a.shape[1] == 1 else a[:, cut:]
        mask = None if inside is None else inside[:, cut:]
        order = range(time - cut - 1, -1, -1) if reverse else range(time - cut)
        return _run(tail, b[:, cut:], state, mask, h[:, cut:], order)

    return h, whole(remainder(state)) if reverse else remainder(whole(state))
