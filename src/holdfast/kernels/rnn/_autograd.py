"""What the fast backends of the RNN share: torch.library ops, so that graphs can hold them, and their autograd function.

A backend is a pair of functions, forward and backward, over tensors of one real dtype; `register` makes it known. The ops
pick the backend when they run, not when a graph is traced, so a compiled graph follows what the process has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.errors import BackendError, HoldfastError, ShapeError
from holdfast.kernels._common import autograd, checks, library
from holdfast.kernels._common.arguments import flags, in_dtype, present, sizes, verify
from holdfast.kernels.rnn._reference import state_dtype


class Settings(NamedTuple):
    """The arguments of the recurrence that are not tensors; `dt` is None without Euler steps, 1 where dts has them."""

    activation: str
    dt: float | None
    reverse: bool


@dataclass(frozen=True)
class Backend:
    """forward(x, w, u, b, h0, dts, lengths, settings, keep) -> (h, h_last, y); y, the activations of Euler steps, is
    empty unless `keep`. backward(saved, grad_h, grad_last, settings, wanted) -> gradients of x, w, u, b, h0, dts."""

    forward: Callable[..., tuple[Tensor, Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor | None, ...]]


_BACKENDS: dict[str, Backend] = {}


def register(name: str, backend: Backend) -> None:
    """Makes a backend known to the ops under its name."""
    _BACKENDS[name] = backend


def choose(device: torch.device | str = "cpu", backend: str = "auto") -> tuple[str, str]:
    """The backend that `rnn` takes, and why: a pair of its name and a sentence; raises if it cannot run there.

    Args:
        device: where the tensors are.
        backend: what was asked for: "auto", "native", "chunked" or "reference".
    """
    checks.backend("rnn", backend)
    kind = torch.device(device).type
    state = library.status()
    if backend == "native":
        if kind != "cpu":
            raise BackendError(f"rnn: the native backend runs on the cpu, got tensors on {kind}; use backend='chunked'")
        if not state.available:
            raise BackendError(f"rnn: the native kernels are {state.reason}")
    if backend != "auto":
        return backend, "asked for"
    if kind != "cpu":
        return "chunked", f"the native kernels run on the cpu, and the tensors are on {kind}"
    if not state.available:
        return "chunked", f"the native kernels are {state.reason}"
    return "native", f"C++ kernels, variant {state.variant}: {state.reason}"


_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_SETTINGS = "str activation, float? dt, bool reverse, str backend"
_LIBRARY.define(
    "rnn_forward(Tensor x, Tensor w, Tensor u, Tensor? b, Tensor? h0, Tensor? dts, Tensor? lengths, "
    f"{_SETTINGS}, bool keep) -> (Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "rnn_backward(Tensor x, Tensor w, Tensor u, Tensor? h0, Tensor? dts, Tensor? lengths, Tensor h, Tensor y, "
    f"Tensor? grad_h, Tensor? grad_last, {_SETTINGS}, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


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


def _forward_meta(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor | None, h0: Tensor | None, dts: Tensor | None, lengths: Tensor | None,
    activation: str, dt: float | None, reverse: bool, backend: str, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    (batch, time, _), state = x.shape, u.shape[0]
    y = x.new_empty((batch, time, state) if keep else 0)
    return x.new_empty((batch, time, state)), x.new_empty((batch, state)), y


def _forward(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor | None, h0: Tensor | None, dts: Tensor | None, lengths: Tensor | None,
    activation: str, dt: float | None, reverse: bool, backend: str, keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, time, state = _verify(x, w, u, lengths)
    verify("rnn", x, (b, (state,)), (h0, (batch, state)), (dts, (batch, time)))
    chosen = _BACKENDS[choose(x.device, backend)[0]]
    if batch * time * state == 0:  # no step: sizes without memory behind them end here
        h, last, y = _forward_meta(x, w, u, b, h0, dts, lengths, activation, dt, reverse, backend, keep)
        return h, last.zero_() if h0 is None else last.copy_(h0), y
    return chosen.forward(x, w, u, b, h0, dts, lengths, Settings(activation, dt, reverse), keep)


def _backward_meta(
    x: Tensor, w: Tensor, u: Tensor, h0: Tensor | None, dts: Tensor | None, lengths: Tensor | None, h: Tensor,
    y: Tensor, grad_h: Tensor | None, grad_last: Tensor | None,
    activation: str, dt: float | None, reverse: bool, backend: str, wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    batch, time, state = h.shape
    shapes = (x.shape, w.shape, u.shape, (state,), (batch, state), (batch, time))
    return tuple(x.new_empty(shape if want else 0) for shape, want in zip(shapes, wanted, strict=True))


def _backward(
    x: Tensor, w: Tensor, u: Tensor, h0: Tensor | None, dts: Tensor | None, lengths: Tensor | None, h: Tensor,
    y: Tensor, grad_h: Tensor | None, grad_last: Tensor | None,
    activation: str, dt: float | None, reverse: bool, backend: str, wanted: Sequence[bool],
) -> tuple[Tensor, ...]:  # fmt: skip
    flags("rnn", "wanted", wanted, 6)
    present("rnn", h, y)
    batch, time, state = _verify(x, w, u, lengths)
    rows, states = (batch, state), (batch, time, state)
    kept = (0,) if dt is None else states
    verify("rnn", x, (h0, rows), (dts, (batch, time)), (h, states), (y, kept), (grad_h, states), (grad_last, rows))
    chosen = _BACKENDS[choose(x.device, backend)[0]]
    if h.numel() == 0:
        shapes = _backward_meta(
            x, w, u, h0, dts, lengths, h, y, grad_h, grad_last, activation, dt, reverse, backend, wanted
        )
        for gradient in shapes:
            gradient.zero_()
        if wanted[4] and grad_last is not None:
            shapes[4].copy_(grad_last)
        return shapes
    saved = (x, w, u, h0, dts, lengths, h, y)
    gradients = chosen.backward(saved, grad_h, grad_last, Settings(activation, dt, reverse), wanted)
    return tuple(x.new_empty(0) if g is None else g for g in gradients)


_LIBRARY.impl("rnn_forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("rnn_backward", _backward, "CompositeExplicitAutograd")
_LIBRARY.impl("rnn_forward", _forward_meta, "Meta")
_LIBRARY.impl("rnn_backward", _backward_meta, "Meta")


def _slices(info: Any, in_dims: Sequence[Any], args: Sequence[Any], call: Callable[..., Any]) -> Any:
    """A call for each slice of a mapped dimension, stacked; what is no tensor has no mapped dimension."""
    dims = [d if isinstance(d, int) else None for d in in_dims]
    results = [
        call(*(a if d is None else a.select(d, i) for a, d in zip(args, dims, strict=True)))
        for i in range(info.batch_size)
    ]
    stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


def _save(ctx: Any, inputs: tuple[Any, ...], h: Tensor, y: Tensor) -> None:
    x, w, u, _, h0, dts, lengths, ctx.settings, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, w, u, h0, dts, lengths, h, y)


def _differentiate(ctx: Any, grad_h: Tensor | None, grad_last: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad_h is None and grad_last is None:
        return (None,) * 9
    wanted = ctx.needs_input_grad[:6]
    args = (*ctx.saved_tensors, grad_h, grad_last, *ctx.settings, wanted)
    # the function, not the op, wherever somebody may differentiate or map the result: grad mode is on only there
    direct = torch.compiler.is_compiling() or not torch.is_grad_enabled()
    gradients = torch.ops.holdfast.rnn_backward(*args) if direct else _RnnGradient.apply(*args)
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
    """The same for torch.func's transforms, which want the context apart; that form costs 40 us more a step."""

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
        return _slices(info, in_dims, args, _RnnTransformed.apply)


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
            "rnn: expected a first derivative, got a second one (double backward), which only the plain loop has; "
            "call rnn(..., backend='reference')"
        )

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
        return _slices(info, in_dims, args, _RnnGradient.apply)


def run(
    backend: str,
    x: Tensor,
    w: Tensor,
    u: Tensor,
    b: Tensor | None,
    h0: Tensor | None,
    dt: float | Tensor | None,
    activation: str,
    lengths: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor]:
    """`rnn` by the ops: brings all tensors to the dtype of the state, and the states back to that of x."""
    autograd.refuse_tangents("rnn", backend, x, w, u, b, h0, dt if isinstance(dt, Tensor) else None)
    dtype = state_dtype(x)
    dts = dt if isinstance(dt, Tensor) else None
    tensors = [in_dtype(t, dtype) for t in (x, w, u, b, h0, dts)]
    size = None if dt is None else 1.0 if dts is not None else float(dt)
    settings = (activation, size, reverse, backend)
    transformed = torch._C._are_functorch_transforms_active()
    differentiable = transformed or (
        torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    )
    if differentiable:
        function = _RnnTransformed if transformed else _Rnn
        h, last, *_ = function.apply(*tensors, lengths, settings, dt is not None)
    else:
        h, last, _ = torch.ops.holdfast.rnn_forward(*tensors, lengths, *settings, False)
    return in_dtype(h, x.dtype), last
