"""The selective scan of Mamba-2: heads with one rate each, so that blocks of steps are matrix products."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional

from holdfast.errors import ShapeError
from holdfast.kernels._common import checks
from holdfast.kernels._common.backends import choose
from holdfast.kernels.scan._gpu import scan_gpu
from holdfast.kernels.selective import _watch as watch
from holdfast.kernels.selective._reference import step_sizes

BLOCK = 64  # products inside a block grow with it, states between blocks shrink; 32 and 128 were slower


def selective_heads(
    u: Float[Tensor, "batch time heads width"],
    dt: Float[Tensor, "batch time heads"],
    A: Float[Tensor, " heads"],
    B: Float[Tensor, "batch time groups state"],
    C: Float[Tensor, "batch time groups state"],
    D: Float[Tensor, " heads"] | None = None,
    *,
    dt_bias: Float[Tensor, " heads"] | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    h0: Float[Tensor, "batch heads width state"] | None = None,
    lengths: Int64[Tensor, " batch"] | None = None,
    resets: Bool[Tensor, "batch time"] | None = None,
) -> tuple[Float[Tensor, "batch time heads width"], Float[Tensor, "batch heads width state"]]:
    """The selective scan with one rate per head: the outputs and the final state.

    h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t^T and y_t = h_t C_t + D u_t for the matrix h of each head. Dao and Gu,
    "Transformers are SSMs" (2024), section 6: inside a block of 64 steps y is a product with a masked matrix, and only
    the states between blocks are a recurrence. In torch operations, on any device, differentiable any number of times.

    Args:
        u: inputs (batch, time, heads, width).
        dt: step sizes (batch, time, heads).
        A: rates (heads,), as a rule negative.
        B: input weights (batch, time, groups, state); heads come in groups.
        C: output weights, shaped like B.
        D: direct path (heads,), or None.
        dt_bias: added to dt (heads,), before softplus; None is zero.
        dt_softplus: whether step sizes are softplus(dt + dt_bias).
        dt_limit: bounds that step sizes are clipped to.
        h0: state before the first step (batch, heads, width, state); None is zero.
        lengths: int64 (batch,): row i has lengths[i] steps. Outputs after its end are 0, the final state is the one at
            its end.
        resets: bool (batch, time): the state before a marked step is zero; marks after a row's end are not read. A mask
            on every device: nothing is cut apart.

    Returns y (batch, time, heads, width) and the final state (batch, heads, width, state), computed in float32 or
    better; y comes back in u's dtype.
    """
    _check({"u": u, "dt": dt, "A": A, "B": B, "C": C, "D": D, "dt_bias": dt_bias, "h0": h0})
    dtype = torch.float64 if u.dtype == torch.float64 else torch.float32
    delta = step_sizes(dt.to(dtype), None if dt_bias is None else dt_bias.to(dtype), dt_softplus).clamp(*dt_limit)
    watch.tell(delta, A, None, False)
    inside = None
    if lengths is not None:
        checks.lengths("selective_heads", lengths, u.shape[:1], u.shape[1], u.device)
        inside = (torch.arange(u.shape[1], device=u.device) < lengths.unsqueeze(-1)).unsqueeze(-1)
        delta = torch.where(inside, delta, delta.new_zeros(()))  # such a step leaves the state as it is
    if resets is not None:
        checks.resets("selective_heads", resets, u.shape[:2], u.device)
        resets = resets if inside is None else resets & inside.squeeze(-1)
    x = u.to(dtype)
    y, last = _blocks(x, delta, A.to(dtype), B.to(dtype), C.to(dtype), None if h0 is None else h0.to(dtype), resets)
    if D is not None:
        y = y + D.to(dtype).unsqueeze(-1) * x
    if inside is not None:
        y = torch.where(inside.unsqueeze(-1), y, y.new_zeros(()))
    return y.to(u.dtype), last


def _blocks(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, h0: Tensor | None, resets: Tensor | None
) -> tuple[Tensor, Tensor]:
    """C h of all steps, and the final state; steps are padded with ones of size zero, which change nothing."""
    batch, time, heads, width = u.shape
    groups, state = B.shape[2:]
    short = -time % BLOCK
    u, delta, B, C = (
        functional.pad(x, (*(0, 0) * (x.ndim - 2), 0, short)).unflatten(1, (-1, BLOCK)).transpose(2, 3)
        for x in (u, delta.unsqueeze(-1), B, C)
    )  # (batch, blocks, heads or groups, steps, numbers)
    inputs = (delta * u).unflatten(2, (groups, -1))
    passed = torch.cumsum(delta.squeeze(-1) * A.unsqueeze(-1), -1).unflatten(2, (groups, -1))  # log of the decay so far
    B, C = B.unsqueeze(3), C.unsqueeze(3)
    # differences of logarithms: a quotient of decays would be 0 / 0 past 104 time constants (float32)
    ahead = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=u.device).triu(1)
    before_first = None
    if resets is not None:  # how many resets there were in the block: steps with as many are in one piece
        piece = functional.pad(resets, (0, short)).unflatten(1, (-1, BLOCK)).cumsum(-1)[:, :, None, None]
        ahead = ahead | (piece.unsqueeze(-1) != piece.unsqueeze(-2))
        before_first, after_last = piece == 0, piece == piece[..., -1:]
    between = (passed.unsqueeze(-1) - passed.unsqueeze(-2)).masked_fill(ahead, -torch.inf)
    y = (C @ B.mT * torch.exp(between)) @ inputs
    # what each block adds to the state at its end, and what it leaves of the state before it
    total = passed[..., -1:]
    left, kept, reached = torch.exp(total - passed), torch.exp(total), torch.exp(passed)
    if before_first is not None:
        left, reached = left * after_last, reached * before_first
        kept = kept * before_first[..., -1:]
    gained = ((left.unsqueeze(-1) * inputs).mT @ B).flatten(2, 3)
    decay = kept.flatten(2, 3).unsqueeze(-1)
    h = u.new_zeros(batch, heads, width, state) if h0 is None else h0
    if time == 0:
        return u.transpose(2, 3).reshape(batch, time, heads, width), h
    before, h = _carried(decay, gained, h)
    states = before.unflatten(2, (groups, -1))
    y = y + reached.unsqueeze(-1) * (C @ states.mT)
    return y.flatten(2, 3).transpose(2, 3).flatten(1, 2)[:, :time], h


def _carried(decay: Tensor, gained: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each block (batch, blocks, heads, width, state), and the one after the last."""
    if choose(h.device, function="selective_heads")[0] == "triton":
        flat = (*gained.shape[:2], h[0].numel())
        after, last = scan_gpu(decay.expand_as(gained).reshape(flat), gained.reshape(flat), h.flatten(1))
        before = torch.cat((h.unsqueeze(1), after[:, :-1].view(gained[:, 1:].shape)), 1)
        return before, last.view_as(h)
    states = []
    for factor, added in zip(decay.unbind(1), gained.unbind(1), strict=True):  # a slice's gradient would be full-size
        states.append(h)
        h = factor * h + added
    return torch.stack(states, 1), h


def _check(given: dict[str, Any]) -> None:
    name = "selective_heads"
    checks.tensors(name, given, checks.FLOATS, ("D", "dt_bias", "h0"))
    u, B = given["u"], given["B"]
    checks.ndim(name, "u", u, "batch time heads width")
    checks.ndim(name, "B", B, "batch time groups state")
    batch, time, heads, width = u.shape
    groups, state = B.shape[2:]
    if groups == 0 or heads % groups:
        raise ShapeError(f"{name}: expected groups that divide {heads} heads, got {groups} groups (B)")
    checks.shape(name, "B", B, (batch, time, groups, state), "u's batch and time, groups, states")
    expected = {
        "dt": (u.shape[:3], "u's without the width"), "A": ((heads,), "u's heads"), "C": (B.shape, "B's"),
        "D": ((heads,), "u's heads"), "dt_bias": ((heads,), "u's heads"),
        "h0": ((batch, heads, width, state), "batch, heads, width, states"),
    }  # fmt: skip
    checks.shapes(name, given, expected)
    checks.same_device(name, **given)
