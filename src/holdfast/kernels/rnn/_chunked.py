"""The RNN in torch operations, for any device: one product for all inputs, a loop over time, one product per weight.

A nonlinear recurrence has no parallel form, so the loop over time stays, also for a diagonal W with the linear
activation (that case is `holdfast.kernels.scan`). What does not depend on the previous state is taken out of it.

A training step keeps x and h, and as many numbers again as h for Euler steps; the backward pass also the gradients and one
more (batch, time, state).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.kernels.rnn import _autograd as autograd
from holdfast.kernels.rnn._autograd import Backend
from holdfast.kernels.rnn._reference import RNNSaved, RNNSettings, RNNTensors

_IN_PLACE = {
    "tanh": torch.tanh_,
    "hardtanh": F.hardtanh_,
    "relu": torch.relu_,
    "sigmoid": torch.sigmoid_,
    "linear": lambda z: z,
}


def _times_derivative(activation: str, y: Tensor, slope: Tensor) -> Tensor:
    """slope sigma'(z), with the derivative written in y = sigma(z)."""
    if activation == "tanh":
        return slope * (1 - y * y)
    if activation == "sigmoid":
        return slope * (y * (1 - y))
    # where and not a product with a 0/1 mask: an infinite slope times 0 is NaN
    if activation == "relu":
        return torch.where(y <= 0, 0, slope)
    if activation == "hardtanh":
        return torch.where((y <= -1) | (y >= 1), 0, slope)
    return slope


def _live(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """True (batch, time, 1) before a row's end; None where all rows run to the end."""
    if lengths is None:
        return None
    return (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, :, None]


def _product(left: Tensor, right: Tensor, diagonal: bool = False) -> Tensor:
    """left^T right, or its diagonal, as a sum of sums over 512 rows: float32 loses less there than in one long sum."""
    total = left.new_zeros(left.shape[1:] if diagonal else (left.shape[1], right.shape[1]))
    for part, other in zip(left.split(512), right.split(512), strict=True):
        total += (part * other).sum(0) if diagonal else part.T @ other
    return total


def _forward(tensors: RNNTensors, settings: RNNSettings, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, w, u, b, h0, dts, lengths = tensors
    batch, time, _ = x.shape
    live = _live(x, lengths)
    states = F.linear(x, u, b)  # holds U x + b, and step by step the states in their place
    activations = torch.empty_like(states) if keep else x.new_empty(0)
    h = x.new_zeros((batch, u.shape[0])) if h0 is None else h0
    for t in reversed(range(time)) if settings.reverse else range(time):
        z = torch.addcmul(states[:, t], h, w) if w.ndim == 1 else torch.addmm(states[:, t], h, w.T)
        y = _IN_PLACE[settings.activation](z)
        following = y
        if settings.dt is not None:
            following = torch.addcmul(h, dts[:, t, None], y) if dts is not None else h.add(y, alpha=settings.dt)
        h = following if live is None else torch.where(live[:, t], following, h)
        states[:, t] = h if live is None else torch.where(live[:, t], h, 0)
        if keep:
            activations[:, t] = y
    return states, h.clone() if h is h0 else h, activations


def _deltas(
    saved: RNNSaved, grad_h: Tensor | None, grad_last: Tensor | None, settings: RNNSettings, want_dts: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the sums inside sigma at all steps, of h0, and of dts."""
    x, w, _, _, dts, lengths, h, y = saved
    live, values = _live(x, lengths), h if settings.dt is None else y
    deltas = torch.empty_like(h)
    grad_dts = h.new_empty(h.shape[:2]) if want_dts else None
    # the adjoint runs against the order of forward; after a row's end it is carried on unchanged
    carry = h.new_zeros((h.shape[0], h.shape[2])) if grad_last is None else grad_last
    for t in range(h.shape[1]) if settings.reverse else reversed(range(h.shape[1])):
        slope = carry if grad_h is None else carry + grad_h[:, t]
        if live is not None:
            slope = torch.where(live[:, t], slope, carry)
        delta = _times_derivative(settings.activation, values[:, t], slope)
        if settings.dt is not None:
            delta = delta * (settings.dt if dts is None else dts[:, t, None])
        if live is not None:
            delta = torch.where(live[:, t], delta, 0)
        deltas[:, t] = delta
        if grad_dts is not None:
            along = (slope * values[:, t]).sum(-1)
            grad_dts[:, t] = along if live is None else torch.where(live[:, t, 0], along, 0)
        following = delta * w if w.ndim == 1 else delta @ w
        if settings.dt is not None:
            following += slope  # after the product, whose small terms would each be rounded to the size of the slope
        carry = following if live is None else torch.where(live[:, t], following, carry)
    return deltas, carry.clone() if carry is grad_last else carry, grad_dts


def _grad_w(saved: RNNSaved, deltas: Tensor, reverse: bool) -> Tensor:
    """sum_t delta_t h_{t-1}^T by one product over the states where they lie; `deltas` is used up.

    Flattened over (batch, time), the row before a state is the state before it, except at first steps: their deltas
    are taken out, multiplied with h0, and left 0.
    """
    w, h0, lengths, h = saved.w, saved.h0, saved.lengths, saved.h
    batch, time, _ = h.shape
    # the other way would copy h, shifted by a step: as much memory as all states
    rows = torch.arange(batch, device=h.device)
    if not reverse:
        first = torch.zeros_like(rows)
    else:
        first = torch.full_like(rows, time - 1) if lengths is None else (lengths - 1).clamp(min=0)
    starts = deltas[rows, first]
    deltas[rows, first] = 0
    d, s = deltas.flatten(0, 1), h.flatten(0, 1)
    d, s = (d[:-1], s[1:]) if reverse else (d[1:], s[:-1])
    grad = _product(d, s, w.ndim == 1)
    return grad if h0 is None else grad + _product(starts, h0, w.ndim == 1)


def _backward(
    saved: RNNSaved, grad_h: Tensor | None, grad_last: Tensor | None, settings: RNNSettings, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    return gradients(saved, _deltas(saved, grad_h, grad_last, settings, wanted[5]), settings, wanted)


def gradients(
    saved: RNNSaved, adjoint: tuple[Tensor, Tensor, Tensor | None], settings: RNNSettings, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of x, w, u, b, h0 and dts from those of the sums inside sigma, of h0 and of dts; None if not wanted."""
    x, u = saved.x, saved.u
    want_x, want_w, want_u, want_b, want_h0, _ = wanted
    deltas, grad_h0, grad_dts = adjoint
    flat, live = deltas.flatten(0, 1), _live(x, saved.lengths)
    # padding may hold NaN, and 0 (the deltas there) times NaN is NaN
    inputs = x if live is None else torch.where(live, x, 0)
    grad_x = deltas @ u if want_x else None
    grad_u = _product(flat, inputs.flatten(0, 1)) if want_u else None
    grad_b = flat.sum(0) if want_b else None
    grad_w = _grad_w(saved, deltas, settings.reverse) if want_w else None
    return grad_x, grad_w, grad_u, grad_b, grad_h0 if want_h0 else None, grad_dts


def in_full_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with autocast off: it would turn the products into bfloat16, under the states' own float32."""

    @functools.wraps(function)
    def wrapped(tensors: RNNTensors | RNNSaved, *rest: Any) -> Any:
        with torch.autocast(tensors.x.device.type, enabled=False):
            return function(tensors, *rest)

    return wrapped


forward, backward = in_full_precision(_forward), in_full_precision(_backward)
autograd.register("chunked", Backend(forward, backward))
