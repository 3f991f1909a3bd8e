"""The RNN in C++: rows of the batch over threads, small matrix products in registers, no barrier in time.

A group of up to 32 rows advances together, so that one pass over W, which stays in the cache, serves them all; U x + b is
formed a few steps ahead by the same products. Backward, the adjoint runs with W^T and the weight gradients are summed a
block of steps at once, while the gradients of that block are in the cache. A batch smaller than the threads leaves the
others idle: one row is one matrix-vector product a step, too little to share.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int64
from torch import Tensor

from holdfast.kernels._common.arguments import dense
from holdfast.kernels._common.calls import call
from holdfast.kernels._common.memory import empty
from holdfast.kernels.rnn import _autograd as autograd
from holdfast.kernels.rnn._autograd import Backend, Settings
from holdfast.kernels.rnn._reference import ACTIVATIONS, Activation


def rnn_native(
    x: Float[Tensor, "batch time features"],
    w: Float[Tensor, "state state"] | Float[Tensor, " state"],
    u: Float[Tensor, "state features"],
    b: Float[Tensor, " state"] | None = None,
    h0: Float[Tensor, "batch state"] | None = None,
    *,
    dt: float | Float[Tensor, "batch time"] | None = None,
    activation: Activation = "tanh",
    lengths: Int64[Tensor, " batch"] | None = None,
    reverse: bool = False,
) -> tuple[Float[Tensor, "batch time state"], Float[Tensor, "batch state"]]:
    """`rnn_reference` on the CPU, with its own backward: saves x and the states, and for Euler steps the activations.

    Numbers kept for a training step: x, h, their gradients, and for Euler steps y = sigma(...), the size of h;
    the workspace holds W and U once and, in the backward pass, their gradients once a thread. y is kept because
    (h_t - h_{t-1}) / dt has lost the digits of y that h_t is larger than dt, and a new W h_{t-1} + U x_t costs
    (state + features) / 16 cycles a number where reading y costs 1.

    Args:
        x: inputs (batch, time, features).
        w: recurrent weights (state, state), or (state,) for a diagonal W.
        u: input weights (state, features).
        b: bias (state,), or None.
        h0: state before the first step (batch, state); None is zero.
        dt: None for the discrete form; else the Euler step, a number or (batch, time).
        activation: a name in ACTIVATIONS.
        lengths: int64 (batch,): steps of each row.
        reverse: run from the last step to the first.
    """
    return autograd.run("native", x, w, u, b, h0, dt, activation, lengths, reverse)


_KINDS = {name: index for index, name in enumerate(ACTIVATIONS)}
_GRADIENTS = ("grad_x", "grad_w", "grad_u", "grad_b", "grad_h0", "grad_dts")


def _run(name: str, x: Tensor, w: Tensor, settings: Settings, **tensors: Tensor | None) -> None:
    batch, time, features = x.shape
    given = {key: dense(t) for key, t in {"x": x, "w": w, **tensors}.items()}
    call(
        "rnn", f"rnn_{name}", x.dtype, batch=batch, time=time, features=features, state=w.shape[0],
        activation=_KINDS[settings.activation], diagonal=w.ndim == 1, euler=settings.dt is not None,
        reverse=settings.reverse, dt=settings.dt or 0.0, **given,
    )  # fmt: skip


def _forward(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor | None, h0: Tensor | None, dts: Tensor | None, lengths: Tensor | None,
    settings: Settings, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, time, state = x.shape[0], x.shape[1], u.shape[0]
    h, last = empty((batch, time, state), x.dtype), empty((batch, state), x.dtype)
    y = empty((batch, time, state) if keep else (0,), x.dtype)
    _run(
        "forward", x, w, settings, u=u, b=b, h0=h0, dts=dts, lengths=lengths, h=h, y=y if keep else None, last=last
    )  # fmt: skip
    return h, last, y


def _backward(
    saved: tuple[Tensor | None, ...], grad_h: Tensor | None, grad_last: Tensor | None, settings: Settings,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    x, w, u, h0, dts, lengths, h, y = saved
    assert x is not None and w is not None and u is not None and h is not None
    batch, time, state = h.shape
    shapes = (x.shape, w.shape, u.shape, (state,), (batch, state), (batch, time))
    gradients = [empty(shape, x.dtype) if want else None for shape, want in zip(shapes, wanted, strict=True)]
    _run(
        "backward", x, w, settings, u=u, h0=h0, dts=dts, lengths=lengths, h=h, y=y, grad_h=grad_h,
        grad_last=grad_last, **dict(zip(_GRADIENTS, gradients, strict=True)),
    )  # fmt: skip
    return tuple(gradients)


autograd.register("native", Backend(_forward, _backward))
