"""What the fast backends of the RNN share: torch.library ops, so that graphs can hold them, and their autograd function.

A backend is a pair of functions, forward and backward, over tensors of one real dtype; `register` makes it known. The ops
pick the backend when they run, not when a graph is traced, so a compiled graph follows what the process has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import HoldfastError, ShapeError
from holdfast.kernels._common import autograd, checks
from holdfast.kernels._common.backends import choose, define
from holdfast.kernels._common.calls import flags, in_dtype, present, sizes, verify
from holdfast.kernels.rnn._reference import RNNSaved, RNNSettings, RNNTensors, state_dtype

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # of x, w, u, b, h0, dts


@dataclass(frozen=True)
class Backend:
    """forward(tensors, settings, keep) -> (h, h_last, y); y, the activations of Euler steps, is empty unless `keep`.
    backward(saved, grad_h, grad_last, settings, wanted) -> gradients of x, w, u, b, h0, dts."""

    forward: Callable[[RNNTensors, RNNSettings, bool], tuple[Tensor, Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor | None, ...]]


_BACKENDS: dict[str, Backend] = {}


def register(name: str, backend: Backend) -> None:
    """Makes a backend known to the ops under its name."""
    _BACKENDS[name] = backend


def _chosen(x: Tensor, settings: RNNSettings) -> Backend:
    return _BACKENDS[choose(x.device, settings.backend, function="rnn")[0]]  # type: ignore[arg-type]


def _verify(x: Tensor, w: Tensor, u: Tensor, lengths: Tensor | None) -> tuple[int, int, int]:
    """Batch, time and state, after a check of what C relies on; lengths now have values to check, which they have not
    while a graph is traced."""
    present("rnn", w, u)
    batch, time, features = sizes("rnn", "x", x, "batch time features")
    if w.ndim not in (1, 2):
        raise ShapeError(f"rnn: expected w of shape (state, state) or (state,), got {tuple(w.shape)}")
    state = w.shape[0]
    verify("rnn", x, (w, (state,) * w.ndim), (u, (state, features)))
    if lengths is not None:
        checks.lengths("rnn", lengths, (batch,), time, x.device)
    return batch, time, state


def _forward(tensors: RNNTensors, settings: RNNSettings, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, w, u, b, h0, dts, lengths = tensors
    batch, time, state = _verify(x, w, u, lengths)
    verify("rnn", x, (b, (state,)), (h0, (batch, state)), (dts, (batch, time)))
    chosen = _chosen(x, settings)  # before anything is made: a backend that cannot run here is refused for no steps too
    if batch * time * state == 0:  # no step: sizes without memory behind them end here
        h, last, y = _forward_meta(tensors, settings, keep)
        return h, last.zero_() if h0 is None else last.copy_(h0), y
    return chosen.forward(tensors, settings, keep)


def _backward(
    saved: RNNSaved, grad_h: Tensor | None, grad_last: Tensor | None, settings: RNNSettings, wanted: Sequence[bool]
) -> Gradients:
    flags("rnn", "wanted", wanted, 6)
    x, w, u, h0, dts, lengths, h, y = saved
    present("rnn", h, y)
    batch, time, state = _verify(x, w, u, lengths)
    rows, states = (batch, state), (batch, time, state)
    kept = (0,) if settings.dt is None else states
    verify("rnn", x, (h0, rows), (dts, (batch, time)), (h, states), (y, kept), (grad_h, states), (grad_last, rows))
    chosen = _chosen(x, settings)
    gradients: Any
    if h.numel() == 0:
        gradients = tuple(g.zero_() for g in _backward_meta(saved, wanted))
        if wanted[4] and grad_last is not None:
            gradients[4].copy_(grad_last)
        return gradients
    gradients = chosen.backward(saved, grad_h, grad_last, settings, wanted)
    return tuple(x.new_empty(0) if g is None else g for g in gradients)  # type: ignore[return-value]


def _forward_meta(tensors: RNNTensors, settings: RNNSettings, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, (batch, time, _), state = tensors.x, tensors.x.shape, tensors.u.shape[0]
    y = x.new_empty((batch, time, state) if keep else 0)
    return x.new_empty((batch, time, state)), x.new_empty((batch, state)), y


def _backward_meta(saved: RNNSaved, *rest: Any) -> tuple[Tensor, ...]:
    x, w, u, *_, h, _ = saved
    batch, time, state = h.shape
    shapes = (x.shape, w.shape, u.shape, (state,), (batch, state), (batch, time))
    return tuple(x.new_empty(shape if want else 0) for shape, want in zip(shapes, rest[-1], strict=True))


# torch picks by device elsewhere; here a backend is picked by name, as the loop in torch runs on the CPU too
define("rnn_forward", _forward, _forward_meta, "CompositeExplicitAutograd")
define("rnn_backward", _backward, _backward_meta, "CompositeExplicitAutograd")


def _save(ctx: Any, inputs: tuple[Any, ...], h: Tensor, y: Tensor) -> None:
    # x and h serve every gradient: W's from h, U's from x, and sigma' from h itself (from y after Euler steps)
    x, w, u, _, h0, dts, lengths, ctx.settings, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, w, u, h0, dts, lengths, h, y)


def _differentiate(ctx: Any, grad_h: Tensor | None, grad_last: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad_h is None and grad_last is None:
        return (None,) * 9
    wanted = ctx.needs_input_grad[:6]
    args = (*ctx.saved_tensors, grad_h, grad_last, *ctx.settings, wanted)
    # the function, not the op, wherever the caller may differentiate or map the result: grad mode is on only there
    gradients = _RnnGradient.apply(*args) if autograd.again() else torch.ops.holdfast.rnn_backward(*args)
    return *(g if want else None for g, want in zip(gradients, wanted, strict=True)), None, None, None


class _Rnn(torch.autograd.Function):
    """x, w, u, b, h0, dts, lengths, (activation, dt, reverse, backend), keep -> h, h_last."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        h, last, y = torch.ops.holdfast.rnn_forward(*args[:7], *args[7], args[8])
        _save(ctx, args, h, y)
        return h, last

    backward = staticmethod(_differentiate)


class _RnnTransformed(torch.autograd.Function):
    """The same for torch.func's transforms, which need the context apart; that form costs 40 us more per step."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.holdfast.rnn_forward(*args[:7], *args[7], args[8])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[2])
        _save(ctx, inputs, output[0], output[2])

    backward = staticmethod(_differentiate)

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
        return autograd.one_by_one(_RnnTransformed, info, in_dims, args)


class _RnnGradient(torch.autograd.Function):
    """The backward pass as a function of its own, so that a second derivative is refused in our words."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        return torch.ops.holdfast.rnn_backward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None: ...

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        raise HoldfastError(
            "rnn: this backend has first derivatives only, got a second one (double backward); call rnn(..., "
            "backend='reference')"
        )

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
        return autograd.one_by_one(_RnnGradient, info, in_dims, args)


def run(call: RNNTensors, settings: RNNSettings) -> tuple[Tensor, Tensor]:
    """`rnn` by the ops: brings all tensors to the dtype of the state, and the states back to that of x."""
    *given, lengths = call
    autograd.refuse_tangents("rnn", settings.backend, *given)
    dtype = state_dtype(call.x)
    tensors = [in_dtype(t, dtype) for t in given]
    # without gradients straight into the operator, where nothing is saved
    transformed = torch._C._are_functorch_transforms_active()
    differentiable = transformed or (
        torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    )
    if differentiable:
        function = _RnnTransformed if transformed else _Rnn
        h, last, *_ = function.apply(*tensors, lengths, tuple(settings), settings.dt is not None)
    else:
        h, last, _ = torch.ops.holdfast.rnn_forward(*tensors, lengths, *settings, False)
    return in_dtype(h, call.x.dtype), last
