"""The public LSTM and GRU: check their arguments, choose the backend, own the gradient."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from holdfast.errors import BackendError, DtypeError, ShapeError
from holdfast.kernels._common import autograd, checks, library
from holdfast.kernels.gated import _native  # noqa: F401  (defines torch.ops.holdfast.gated_*)
from holdfast.kernels.gated._reference import Weights, gru_reference, lstm_reference

Backend = Literal["auto", "reference", "native"]
GATES = {"lstm": 4, "gru": 3}


def choose(device: torch.device | str = "cpu", backend: str = "auto") -> tuple[str, str]:
    """The backend that `lstm` and `gru` take, and why; raises if it cannot run there.

    Args:
        device: where the tensors are.
        backend: what was asked for: "auto", "native" or "reference".
    """
    if backend not in ("auto", "native", "reference"):
        raise BackendError(f"expected a backend 'auto', 'native' or 'reference', got {backend!r}")
    kind, state = torch.device(device).type, library.status()
    lacks = f"the tensors are on {kind}" if kind != "cpu" else "" if state.available else state.reason
    if backend == "native" and lacks:
        raise BackendError(f"the native kernels of lstm and gru run on the cpu, and {lacks}; use backend='reference'")
    if backend != "auto":
        return backend, "asked for"
    return ("reference", lacks) if lacks else ("native", f"C++ kernels, variant {state.variant}: {state.reason}")


class _Gated(torch.autograd.Function):
    """x, w_ih, w_hh, b, h0, c0, lengths, gru, reverse, keep -> h, last, c_last."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        return torch.ops.holdfast.gated_forward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, w_ih, w_hh, _, h0, c0, lengths, gru, reverse, _ = inputs
        h, _, c_last, gates, cells = output
        ctx.settings = gru, reverse
        ctx.mark_non_differentiable(gates, cells, *([c_last] if gru else []))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w_ih, w_hh, h0, c0, lengths, h, gates, cells)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_h, grad_last, grad_c_last = grads[:3]
        if grad_h is None and grad_last is None and grad_c_last is None:
            return (None,) * 10
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise BackendError(
                "lstm, gru: expected a first derivative, got a second one (double backward), which only the plain loop "
                "has; use backend='reference'"
            )
        wanted = ctx.needs_input_grad[:6]
        gradients = torch.ops.holdfast.gated_backward(
            *ctx.saved_tensors, grad_h, grad_last, None if ctx.settings[0] else grad_c_last, *ctx.settings, wanted
        )
        return *(g if want else None for g, want in zip(gradients, wanted, strict=True)), None, None, None, None


def lstm(
    x: Float[Tensor, "batch time features"],
    weights: tuple[Tensor, ...],
    h0: Float[Tensor, "batch state"] | None = None,
    c0: Float[Tensor, "batch state"] | None = None,
    *,
    lengths: Int64[Tensor, " batch"] | None = None,
    reverse: bool = False,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time state"], Float[Tensor, "batch state"], Float[Tensor, "batch state"]]:
    """One layer of an LSTM in one direction, with the weights of torch.nn.LSTM: outputs, last state, last cell.

    In C++ for float32 and float64 on a CPU, as a plain loop elsewhere; the same numbers to rounding.

    Args:
        x: inputs (batch, time, features).
        weights: (w_ih, w_hh) or (w_ih, w_hh, b_ih, b_hh), as torch.nn.LSTM has them: gates input, forget, content, output.
        h0: state before the first step (batch, state); None is zero.
        c0: cell before the first step (batch, state); None is zero.
        lengths: int64 (batch,): steps of each row; outputs after its end are 0.
        reverse: run from the last step of each row to the first.
        backend: "auto", "native" or "reference".
    """
    given = _checked("lstm", x, weights, h0, c0, lengths)
    if choose(x.device, backend)[0] == "reference" or autograd.has_tangent(x, *weights, h0, c0):
        return lstm_reference(x, given, h0, c0, lengths=lengths, reverse=reverse)
    bias = x.new_zeros(4, given.w_hh.shape[1]) if given.b_ih is None else (given.b_ih + given.b_hh).view(4, -1)
    h, last, c_last = _apply(x, given, bias, h0, c0, lengths, False, reverse)
    return h, last, c_last


def gru(
    x: Float[Tensor, "batch time features"],
    weights: tuple[Tensor, ...],
    h0: Float[Tensor, "batch state"] | None = None,
    *,
    lengths: Int64[Tensor, " batch"] | None = None,
    reverse: bool = False,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time state"], Float[Tensor, "batch state"]]:
    """One layer of a GRU in one direction, with the weights of torch.nn.GRU: outputs and last state.

    In C++ for float32 and float64 on a CPU, as a plain loop elsewhere; the same numbers to rounding.

    Args:
        x: inputs (batch, time, features).
        weights: (w_ih, w_hh) or (w_ih, w_hh, b_ih, b_hh), as torch.nn.GRU has them: gates reset, update, content.
        h0: state before the first step (batch, state); None is zero.
        lengths: int64 (batch,): steps of each row; outputs after its end are 0.
        reverse: run from the last step of each row to the first.
        backend: "auto", "native" or "reference".
    """
    given = _checked("gru", x, weights, h0, None, lengths)
    if choose(x.device, backend)[0] == "reference" or autograd.has_tangent(x, *weights, h0):
        return gru_reference(x, given, h0, lengths=lengths, reverse=reverse)
    if given.b_ih is None or given.b_hh is None:
        bias = x.new_zeros(4, given.w_hh.shape[1])
    else:
        (r, z, n), (r_h, z_h, n_h) = (b.view(3, -1).unbind(0) for b in (given.b_ih, given.b_hh))
        bias = torch.stack([n, r + r_h, z + z_h, n_h])  # the order of csrc/gated/plan.h
    h, last, _ = _apply(x, given, bias, h0, None, lengths, True, reverse)
    return h, last


def _apply(
    x: Tensor, weights: Weights, bias: Tensor, h0: Tensor | None, c0: Tensor | None, lengths: Tensor | None, gru: bool,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    tensors = (x, weights.w_ih, weights.w_hh, bias, h0, c0)
    tracked = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if tracked or torch._C._are_functorch_transforms_active():
        return autograd.apply(_Gated, *tensors, lengths, gru, reverse, True)[:3]
    return torch.ops.holdfast.gated_forward(*tensors, lengths, gru, reverse, False)[:3]


def _checked(
    function: str, x: Tensor, weights: tuple[Tensor, ...], h0: Tensor | None, c0: Tensor | None, lengths: Tensor | None
) -> Weights:
    if len(weights) not in (2, 4):
        raise ShapeError(f"{function}: expected weights (w_ih, w_hh) or with b_ih and b_hh, got {len(weights)} tensors")
    given = Weights(*weights)
    checks.ndim(function, "x", x, "batch time features")
    (batch, time, features), gates = x.shape, GATES[function]
    if given.w_hh.ndim != 2 or given.w_hh.shape[0] != gates * given.w_hh.shape[1]:
        raise ShapeError(f"{function}: expected w_hh of shape ({gates} state, state), got {tuple(given.w_hh.shape)}")
    state = given.w_hh.shape[1]
    rows = f"{gates} gates of {state} units"
    checks.shape(function, "w_ih", given.w_ih, (gates * state, features), f"{rows}, by x's features")
    for name, value in (("b_ih", given.b_ih), ("b_hh", given.b_hh)):
        if value is not None:
            checks.shape(function, name, value, (gates * state,), rows)
    for name, value in (("h0", h0), ("c0", c0)):
        if value is not None:
            checks.shape(function, name, value, (batch, state), "a row of the batch by w_hh's states")
    for value in (*weights, h0, c0):
        if value is not None and value.dtype != x.dtype:
            raise DtypeError(f"{function}: expected all tensors in the dtype of x, {x.dtype}, got {value.dtype}")
    if lengths is not None:
        checks.lengths(function, lengths, (batch,), time, x.device)
    return given
