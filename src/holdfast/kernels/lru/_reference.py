"""The linear recurrent unit as a plain loop: any float dtype and device, differentiable by autograd."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor


class LRUCall(NamedTuple):
    """The arguments of every version, all tensors in one dtype; states are planar, [re | im], so that products are real."""

    u: Tensor  # (batch, time, inputs)
    lam_re: Tensor  # (states,)
    lam_im: Tensor | None
    b: Tensor  # (planar, inputs), planar = 2 states, or states without lam_im
    c: Tensor  # (outputs, planar)
    d: Tensor | None  # (outputs,)
    h0: Tensor | None  # (batch, planar)
    lengths: Tensor | None  # (batch,)
    reverse: bool


def lru_reference(
    u: Float[Tensor, "batch time inputs"],
    lam_re: Float[Tensor, " states"],
    lam_im: Float[Tensor, " states"] | None,
    b: Float[Tensor, "planar inputs"],
    c: Float[Tensor, "outputs planar"],
    d: Float[Tensor, " outputs"] | None = None,
    h0: Float[Tensor, "batch planar"] | None = None,
    *,
    lengths: Int64[Tensor, " batch"] | None = None,
    reverse: bool = False,
) -> tuple[Float[Tensor, "batch time outputs"], Float[Tensor, "batch planar"]]:
    """y_t = c [Re h_t | Im h_t] + d u_t with h_t = lam h_{t-1} + b u_t, and the final state, by a plain loop.

    States are planar, [re | im]; shapes as in `holdfast.kernels.lru`, all tensors in one dtype.

    Args:
        u: inputs (batch, time, inputs).
        lam_re: real parts of the eigenvalues (N,).
        lam_im: their imaginary parts (N,), or None for a real recurrence of N numbers.
        b: input weights (2N, inputs).
        c: output weights (outputs, 2N).
        d: direct path (outputs,), or None.
        h0: state before the first step (batch, 2N); None is zero.
        lengths: int64 (batch,): outputs after a row's length are 0, and its state stays as it was there.
        reverse: run from the last step to the first.
    """
    states = lam_re.shape[0]
    x, skip = (u @ b.T).unbind(1), u.unbind(1)
    h = u.new_zeros(u.shape[0], b.shape[0]) if h0 is None else h0
    outputs = [u.new_zeros(u.shape[0], c.shape[0])] * u.shape[1]
    for t in reversed(range(u.shape[1])) if reverse else range(u.shape[1]):
        re, im = h[:, :states], h[:, states:]
        moved = lam_re * re if lam_im is None else torch.cat((lam_re * re - lam_im * im, lam_re * im + lam_im * re), 1)
        after = moved + x[t]
        y = after @ c.T if d is None else after @ c.T + d * skip[t]
        if lengths is not None:
            inside = (t < lengths).unsqueeze(-1)
            after, y = torch.where(inside, after, h), torch.where(inside, y, torch.zeros_like(y))
        h, outputs[t] = after, y
    return torch.stack(outputs, 1) if u.shape[1] else u.new_zeros(u.shape[0], 0, c.shape[0]), h
