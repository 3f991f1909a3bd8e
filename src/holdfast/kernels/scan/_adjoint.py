"""The gradients of a scan by another scan against time, in torch operations that autograd can follow once more.

With c_t the gradient that reaches h_{t-1} through step t: c_t = conj(a_t) (grad_h_t + c_{t+1}), begun by the gradient
of the final state. Then grad_b_t = grad_h_t + c_{t+1}, grad_a_t = grad_b_t conj(h_{t-1}), and c at the first step is
the gradient of h0. The shapes are those of native.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

Rows = Shaped[Tensor, "rows channels"]
Steps = Shaped[Tensor, "rows time channels"]
Factors = Shaped[Tensor, "#rows #time channels"]


def _shifted(x: Steps, first: Rows, lengths: Tensor | None, reverse: bool) -> Steps:
    """Each step's predecessor in the order of the run, `first` before the first step; 0 after the end stays 0."""
    if not reverse:
        return torch.cat((first.unsqueeze(1), x[:, :-1]), 1)
    later = torch.cat((x[:, 1:], first.unsqueeze(1)), 1)
    if lengths is None:
        return later
    last = torch.arange(x.shape[1], device=x.device) == lengths.unsqueeze(-1) - 1
    return torch.where(last.unsqueeze(-1), first.unsqueeze(1), later)


def scan_adjoint(
    scan: Callable[..., tuple[Steps, Rows]],
    a: Factors,
    h: Steps,
    h0: Rows | None,
    lengths: Int64[Tensor, " rows"] | None,
    grad_h: Steps | None,
    grad_last: Rows | None,
    reverse: bool,
) -> tuple[Factors, Steps, Rows]:
    """Gradients of a (summed over time where a is constant, not over rows), b and h0, with `scan` as the scan."""
    if grad_h is None:
        grad_h = torch.zeros_like(h)
    if grad_last is None:
        grad_last = h.new_zeros(h.shape[0], h.shape[2])
    if h.numel() == 0:
        return h.new_zeros(h.shape[0], a.shape[1], h.shape[2]), torch.zeros_like(h), grad_last
    inside = None
    if lengths is not None:
        inside = (torch.arange(h.shape[1], device=h.device) < lengths.unsqueeze(-1)).unsqueeze(-1)
    factor = a.conj().resolve_conj()
    c, grad_h0 = scan(factor, factor * grad_h, grad_last, reverse=not reverse, lengths=lengths)
    grad_b = grad_h + _shifted(c, grad_last, lengths, not reverse)
    if inside is not None:
        grad_b = torch.where(inside, grad_b, torch.zeros_like(grad_b))
    before = _shifted(h, torch.zeros_like(grad_h0) if h0 is None else h0, lengths, reverse)
    grad_a = grad_b * before.conj()
    return (grad_a.sum(1, keepdim=True) if a.shape[1] == 1 else grad_a), grad_b, grad_h0
