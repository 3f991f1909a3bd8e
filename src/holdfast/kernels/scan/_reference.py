"""The linear scan as a plain loop: slow, any dtype and device, differentiable by autograd, the truth of the tests."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor


class ScanCall(NamedTuple):
    """The arguments of every fast version: batch dimensions made one, all tensors in one dtype."""

    a: Tensor  # (1 or rows, 1 or time, channels)
    b: Tensor  # (rows, time, channels)
    h0: Tensor | None  # (rows, channels)
    lengths: Tensor | None  # (rows,)
    reverse: bool


class ScanAdjoint(NamedTuple):
    """The arguments of their backward pass: h stands for b, which no gradient depends on."""

    a: Tensor
    h: Tensor  # (rows, time, channels)
    h0: Tensor | None
    lengths: Tensor | None
    grad_h: Tensor | None
    grad_last: Tensor | None  # (rows, channels)
    reverse: bool


def scan_reference(
    a: Shaped[Tensor, "*broadcast"],
    b: Shaped[Tensor, "*batch time channels"],
    h0: Shaped[Tensor, "*batch channels"] | None = None,
    *,
    reverse: bool = False,
    lengths: Int64[Tensor, "*batch"] | None = None,
) -> tuple[Shaped[Tensor, "*batch time channels"], Shaped[Tensor, "*batch channels"]]:
    """The states h_t = a_t h_{t-1} + b_t and the final one, by a plain loop; in reverse h_t = a_t h_{t+1} + b_t.

    States are in the dtype of a and b together; autograd differentiates the loop. `holdfast.kernels.scan` without its
    checks.

    Args:
        a: factors, of any shape that broadcasts to b's.
        b: inputs (*batch, time, channels).
        h0: state before the first step (*batch, channels); None is zero.
        reverse: run from the last step to the first.
        lengths: int64 (*batch,): a row ends (in reverse: begins) at its length. After it the outputs are 0, and the
            final state is the one at the end of the run.
    """
    dtype = torch.promote_types(a.dtype, b.dtype)
    time = b.shape[-2]
    # unbound once: selecting step by step would make backward quadratic in time
    factors, inputs = a.expand(b.shape).unbind(-2), b.unbind(-2)
    state = b.new_zeros(b.shape[:-2] + b.shape[-1:], dtype=dtype) if h0 is None else h0.to(dtype)
    states = [state] * time
    for t in reversed(range(time)) if reverse else range(time):
        # a product and a sum, never a fused one: the truth that the other versions are within a few roundings of
        after = factors[t] * state + inputs[t]
        if lengths is None:
            state = states[t] = after
        else:
            inside = (t < lengths).unsqueeze(-1)
            state = torch.where(inside, after, state)
            states[t] = torch.where(inside, state, torch.zeros_like(state))
    return torch.stack(states, -2) if time else b.to(dtype), state
