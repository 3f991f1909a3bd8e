"""The RNN in C++: rows of the batch over threads, small matrix products in registers, no barrier in time.

A group of up to 32 rows advances together, so that one pass over W, which stays in the cache, serves them all; U x + b is
formed a few steps ahead by the same products. Backward, the adjoint runs with W^T and the weight gradients are summed a
block of steps at once, while the gradients of that block are in the cache. A batch smaller than the threads leaves the
others idle: one row is one matrix-vector product per step, too little to share.

A training step keeps x, h, their gradients, and for Euler steps y = sigma(...), the size of h; the workspace holds W and U
once and, in the backward pass, their gradients once per thread. y is kept because (h_t - h_{t-1}) / dt has lost the digits of
y that h_t is larger than dt, and a new W h_{t-1} + U x_t costs (state + features) / 16 cycles per number where reading y
costs 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from holdfast.kernels._common.calls import call, dense, empty
from holdfast.kernels.rnn import _autograd as autograd
from holdfast.kernels.rnn._autograd import Backend
from holdfast.kernels.rnn._reference import ACTIVATIONS, RNNSaved, RNNSettings, RNNTensors

_KINDS = {name: index for index, name in enumerate(ACTIVATIONS)}
_GRADIENTS = ("grad_x", "grad_w", "grad_u", "grad_b", "grad_h0", "grad_dts")


def _run(name: str, x: Tensor, w: Tensor, settings: RNNSettings, **tensors: Tensor | None) -> None:
    batch, time, features = x.shape
    # C reads dense tensors only: W and U are packed into its workspace anyway, and x is read once
    given = {key: dense(t) for key, t in {"x": x, "w": w, **tensors}.items()}
    call(
        "rnn", f"rnn_{name}", x.dtype, batch=batch, time=time, features=features, state=w.shape[0],
        activation=_KINDS[settings.activation], diagonal=w.ndim == 1, euler=settings.dt is not None,
        reverse=settings.reverse, dt=settings.dt or 0.0, **given,
    )  # fmt: skip


def _forward(tensors: RNNTensors, settings: RNNSettings, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, w, u, b, h0, dts, lengths = tensors
    batch, time, state = x.shape[0], x.shape[1], u.shape[0]
    h, last = empty((batch, time, state), x.dtype), empty((batch, state), x.dtype)
    y = empty((batch, time, state) if keep else (0,), x.dtype)
    results = {"h": h, "y": y if keep else None, "last": last}
    _run("forward", x, w, settings, u=u, b=b, h0=h0, dts=dts, lengths=lengths, **results)
    return h, last, y


def _backward(
    saved: RNNSaved, grad_h: Tensor | None, grad_last: Tensor | None, settings: RNNSettings, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    x, w, u, h0, dts, lengths, h, y = saved
    batch, time, state = h.shape
    shapes = (x.shape, w.shape, u.shape, (state,), (batch, state), (batch, time))
    gradients = [empty(shape, x.dtype) if want else None for shape, want in zip(shapes, wanted, strict=True)]
    _run(
        "backward", x, w, settings, u=u, h0=h0, dts=dts, lengths=lengths, h=h, y=y, grad_h=grad_h,
        grad_last=grad_last, **dict(zip(_GRADIENTS, gradients, strict=True)),
    )  # fmt: skip
    return tuple(gradients)


autograd.register("native", Backend(_forward, _backward))
