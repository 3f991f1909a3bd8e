"""S4D in torch ops for any device: convolution inside blocks of time by matrix products, states carried between."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from holdfast.kernels._common import autograd
from holdfast.kernels._common.backends import Backend
from holdfast.kernels.causal_conv import causal_conv
from holdfast.kernels.causal_conv._reference import reach_of
from holdfast.kernels.s4d._reference import S4DForm, S4DInputs, discretize, has_double
from holdfast.kernels.s4d._tables import Tables, planar, tables_chunked, tables_gpu
from holdfast.kernels.scan import scan
from holdfast.kernels.scan._gpu import scan_gpu

# products inside a block cost BLOCK_STEPS / 2 per number, those with states 4 modes, whatever BLOCK_STEPS is: equal at 8
# modes; shorter blocks mean a longer loop over time
BLOCK_STEPS = 64
# with resets a block's outputs are sums over its own steps, not a product: few steps, at the price of more states
RESET_BLOCK_STEPS = 8


class Bounds(NamedTuple):
    """States between blocks: the last one (batch, features, modes), and those before the blocks with given numbers (batch,)."""

    last: Tensor
    at: Callable[[Tensor], Tensor]


def _run_blocks(
    u: Float[Tensor, "batch time features"], h: Shaped[Tensor, "batch features modes"], tables: Tables, backend: Backend
) -> tuple[Float[Tensor, "batch time features"], Bounds]:
    """Outputs without the skip, and the states before each block and after the last."""
    batch, time, features = u.shape
    steps, numbers = tables.gather.shape[1:]
    # features first: each has its own matrices, so the products are batched over them
    rows = u.permute(2, 0, 1).reshape(features, batch * (time // steps), steps)
    gained = torch.bmm(rows, tables.gather).view(features, batch, time // steps, numbers)
    carry = _carried_on_gpu if backend == "triton" else _carried
    before, bounds = carry(tables.leap, gained, h)
    y = torch.baddbmm(torch.bmm(rows, tables.inside), before.flatten(1, 2), tables.emit)
    return y.view(features, batch, time).permute(1, 2, 0), bounds


def _run_marked_blocks(
    u: Float[Tensor, "batch time features"], h: Shaped[Tensor, "batch features modes"], tables: Tables,
    marks: Bool[Tensor, "batch time"],
) -> tuple[Float[Tensor, "batch time features"], Bounds]:  # fmt: skip
    """`_run_blocks` on a GPU with a state of zero before each marked step."""
    batch, time, features = u.shape
    steps, numbers = tables.gather.shape[1:]
    piece = marks.reshape(batch, time // steps, steps).cumsum(-1)  # resets in the block so far
    to_end, from_start = (x.reshape(batch, time, 1) for x in (piece == piece[..., -1:], piece == 0))
    nothing = u.new_zeros(())
    rows = torch.where(to_end, u, nothing).permute(2, 0, 1).reshape(features, batch * (time // steps), steps)
    gained = torch.bmm(rows, tables.gather).view(features, batch, time // steps, numbers)
    before, bounds = _carried_on_gpu(tables.leap, gained, h, piece[..., -1] > 0)
    y = torch.bmm(before.flatten(1, 2), tables.emit).view(features, batch, time).permute(1, 2, 0)
    # inside a block a short convolution, cut at resets and at the blocks' first steps
    starts = torch.arange(time, device=u.device) % steps == 0
    own, _ = causal_conv(u, tables.inside[:, 0].flip(1), resets=marks | starts, backend="triton")
    return own + torch.where(from_start, y, nothing), bounds


def _carried(
    leap: Shaped[Tensor, "features modes"], gained: Float[Tensor, "features batch blocks numbers"],
    h: Shaped[Tensor, "batch features modes"],
) -> tuple[Float[Tensor, "features batch blocks numbers"], Bounds]:  # fmt: skip
    """The planar states before each block, and all of them; carried in double so that a slow mode does not drift."""
    added = gained.permute(2, 1, 0, 3).to(h.real.dtype)
    if h.is_complex():
        added = torch.complex(*added.chunk(2, -1))
    if autograd.has_tangent(leap, added, h):  # forward mode follows plain operations only
        states = [h]
        for x in added.unbind():  # the gradient of one slice would have the size of all
            states.append(leap * states[-1] + x)
        bounds = torch.stack(states)
    else:
        after, _ = scan(leap.flatten(), added.flatten(2).transpose(0, 1), h.flatten(1), backend="chunked")
        bounds = torch.cat((h.unsqueeze(0), after.transpose(0, 1).view(added.shape)))
    rows = torch.arange(len(h), device=h.device)
    before = planar(bounds[:-1], 1).to(gained.dtype).permute(2, 1, 0, 3)
    return before, Bounds(bounds[-1], lambda block: bounds[block, rows])


def _carried_on_gpu(
    leap: Shaped[Tensor, "features modes"], gained: Float[Tensor, "features batch blocks numbers"],
    h: Shaped[Tensor, "batch features modes"], marks: Bool[Tensor, "batch blocks"] | None = None,
) -> tuple[Float[Tensor, "features batch blocks numbers"], Bounds]:  # fmt: skip
    """`_carried` as the products leave and take it: planar, in their dtype; the kernel's own states are in double.

    With `marks` a block begins from zero where it is marked.
    """
    features, batch = gained.shape[:2]
    start = planar(h.transpose(0, 1), 1).flatten(0, 1)
    factors = planar(leap, 1).repeat_interleave(batch, 0).unsqueeze(1)
    marks = None if marks is None else marks.repeat(features, 1)
    after, last = scan_gpu(factors, gained.flatten(0, 1), start, resets=marks, planar=h.is_complex())
    before = torch.cat((start.unsqueeze(1).to(after.dtype), after[:, :-1]), 1)

    def turned(x: Tensor) -> Tensor:
        return _unplanar(x.to(h.real.dtype).unflatten(0, (features, batch)).transpose(0, 1), h)

    def at(block: Tensor) -> Tensor:
        place = (block - 1).clamp(min=0).repeat(features)[:, None, None].expand(-1, 1, after.shape[2])
        return torch.where((block == 0)[:, None, None], h, turned(after.gather(1, place).squeeze(1)))

    return before.unflatten(0, (features, batch)), Bounds(turned(last), at)


def _unplanar(x: Tensor, like: Tensor) -> Tensor:
    return torch.complex(*x.chunk(2, -1)) if like.is_complex() else x


def _at_ends(
    u: Float[Tensor, "batch time features"], bounds: Bounds, tables: Tables, a: Shaped[Tensor, "features modes"],
    lengths: Int64[Tensor, " batch"], grid: tuple[int, int], marks: Bool[Tensor, "batch time"] | None,
) -> Shaped[Tensor, "batch features modes"]:  # fmt: skip
    """The state of each row at its own end, from the one at the block boundary before it.

    `grid` are the steps of a block and the number of whole blocks.
    """
    steps = tables.gather.shape[1]
    block = (lengths // grid[0]).clamp(max=grid[1])
    rest = (lengths - block * grid[0]).unsqueeze(-1)
    start = bounds.at(block)
    if marks is not None:  # only what follows the last reset before the end
        seen = reach_of(marks).gather(1, (lengths - 1).clamp(min=0).unsqueeze(-1))
        start = torch.where((seen < rest).unsqueeze(-1), torch.zeros_like(start), start)
        rest = torch.minimum(rest, seen + 1)
    # the steps since the boundary as the last ones of a whole block: its matrix gives what they add
    back = torch.arange(steps, device=u.device) - steps
    times = (lengths.unsqueeze(-1) + back).clamp(min=0).unsqueeze(-1).expand(-1, -1, u.shape[2])
    inputs = torch.where((back >= -rest).unsqueeze(-1), u.gather(1, times), u.new_zeros(()))
    gained = torch.bmm(inputs.permute(2, 0, 1), tables.gather).transpose(0, 1)
    return _power(a, rest.unsqueeze(-1)) * start + _unplanar(gained.to(a.real.dtype), a)


def _power(a: Shaped[Tensor, "features modes"], count: Int64[Tensor, "batch 1 1"]) -> Tensor:
    """a^count (batch, features, modes) for counts below a block's steps, by squaring: no logarithm of an a that is 0."""
    power = torch.where(count % 2 == 1, a, torch.ones_like(a))
    for bit in range(1, (BLOCK_STEPS - 1).bit_length()):
        a = a * a
        power = torch.where((count >> bit) % 2 == 1, power * a, power)
    return power


def _turned(
    x: Float[Tensor, "batch time features"], lengths: Int64[Tensor, " batch"] | None
) -> Float[Tensor, "batch time features"]:
    """Each row (batch, time, ...) backwards within its length; its own inverse."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    index = torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)
    return x.gather(1, index.unsqueeze(-1).expand_as(x))


def s4d_chunked(
    inputs: S4DInputs, h0: Tensor | None, form: S4DForm, backend: Backend = "chunked", resets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The layer of `holdfast.kernels.s4d` by matrix products over blocks of 64 steps, `backend` of the scan between them.

    Modes, powers and carried states are in double (not on devices without it), so that long memory does not drift;
    autograd keeps modes / 16 + 4 numbers for each one of u. Resets, bool (batch, time), are for "triton" alone, by blocks of
    8 steps: modes / 2 numbers more.
    """
    u, dt, lam_re, lam_im, c_re, c_im, d, lengths = inputs
    batch, time, _ = u.shape
    wide = torch.float64 if has_double(u.device) else u.dtype
    if lengths is not None:
        lengths = lengths.clamp(0, time)  # on a GPU they were not checked
    if form.reverse:
        u = _turned(u, lengths)
        resets = None if resets is None else _turned(resets.unsqueeze(-1), lengths).squeeze(-1)
    lam, c = lam_re.to(wide), c_re.to(wide)
    if lam_im is not None and c_im is not None:
        lam, c = torch.complex(lam, lam_im.to(wide)), 2 * torch.complex(c, c_im.to(wide))
    a, b = discretize(dt.unsqueeze(-1), lam, "bilinear" if form.bilinear else "zoh")
    if h0 is None:
        start = torch.zeros(batch, *lam.shape, dtype=lam.dtype, device=u.device)
    else:
        start = torch.view_as_complex(h0.to(wide).contiguous()) if lam.is_complex() else h0.to(wide)
    make = tables_gpu if backend == "triton" else tables_chunked
    block = BLOCK_STEPS if resets is None else RESET_BLOCK_STEPS
    whole = time - time % block
    outputs, bounds = [], Bounds(start, lambda block: start)
    ends: list[tuple[Bounds, Tables]] = []
    # whole blocks, then what is left as one shorter block with matrices of its own
    for begin, end, steps in ((0, whole, block), (whole, time, time % block)):
        if end > begin:
            part = u if end - begin == time else u[:, begin:end]
            tables = make(a, b, c, steps, u.dtype)
            before = bounds
            if resets is None:
                y, bounds = _run_blocks(part, bounds.last, tables, backend)
            else:
                y, bounds = _run_marked_blocks(part, bounds.last, tables, resets[:, begin:end])
            ends.append((bounds if end == whole else before, tables))
            outputs.append(y)
    y = u.clone() if not outputs else outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
    y = y if d is None else torch.addcmul(y, d, u)
    h = bounds.last
    if lengths is not None:
        h = _at_ends(u, *ends[0], a, lengths, (block, whole // block), resets) if ends else h
        y = torch.where((torch.arange(time, device=u.device) < lengths[:, None]).unsqueeze(-1), y, 0)
    y = _turned(y, lengths) if form.reverse else y
    last = torch.view_as_real(h) if h.is_complex() else h
    return y, last.to(u.dtype)
