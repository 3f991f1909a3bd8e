"""The public LSTM and GRU: check their arguments, choose the backend, own the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from holdfast.errors import BackendError, ShapeError
from holdfast.kernels._common import autograd, backends, checks
from holdfast.kernels._common.backends import Backend
from holdfast.kernels.gated import _triton
from holdfast.kernels.gated._gpu import GatedCall, gated_gpu
from holdfast.kernels.gated._native import (
    GatedGradients,
    GatedSaved,
    GatedSettings,
    GatedTensors,
    native_backward,
    native_forward,
)
from holdfast.kernels.gated._reference import Weights, gru_reference, lstm_reference
from holdfast.kernels.gated._step import bias_blocks

GATES = {"lstm": 4, "gru": 3}


class _Gated(torch.autograd.Function):
    """GatedTensors, GatedSettings and True, one argument for each field -> h, last, c_last, and what backward needs."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        # plain tensors need no dispatcher and its way back into Python: with cold caches a tenth of a millisecond
        if autograd.untracked(*args[:7]):
            return native_forward(GatedTensors(*args[:7]), GatedSettings(*args[7:9]), args[9])
        return torch.ops.holdfast.gated_forward(*args)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.settings = inputs[7:9]
        h, _, c_last, gates, cells = output
        ctx.mark_non_differentiable(gates, cells, *([c_last] if ctx.settings[0] else []))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:7], h, gates, cells)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads[:3]):
            return (None,) * 10
        wanted = ctx.needs_input_grad[:6]
        grads = grads[:2] if ctx.settings[0] else grads[:3]  # a compiler gives an empty tensor for the cell of a GRU
        if autograd.again():
            tensors = GatedTensors(*ctx.saved_tensors[:7])
            outputs = _plain(tensors, GatedSettings(*ctx.settings))
            found = autograd.differentiable_gradients(outputs, grads, tensors[:6], wanted)
            return *found, None, None, None, None
        given = (*grads, None)[:3]
        saved = ctx.saved_tensors
        if autograd.untracked(*saved, *given):
            parts = GatedTensors(*saved[:7]), GatedSaved(*saved[7:]), GatedGradients(*given)
            gradients = native_backward(*parts, GatedSettings(*ctx.settings), wanted)
        else:
            gradients = torch.ops.holdfast.gated_backward(*saved, *given, *ctx.settings, wanted)
        return *(g if want else None for g, want in zip(gradients, wanted, strict=True)), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
        return autograd.one_by_one(_Gated, info, in_dims, args)


def _plain(tensors: GatedTensors, settings: GatedSettings) -> tuple[Tensor, ...]:
    """The plain loop over the arguments of the operator."""
    x, w_ih, w_hh, b, h0, c0, lengths = tensors
    if not settings.gru:
        weights = Weights(w_ih, w_hh, b.flatten(), torch.zeros_like(b).flatten())
        return lstm_reference(x, weights, h0, c0, lengths=lengths, reverse=settings.reverse)
    n, r, z, n_h = b.unbind(0)  # the order of csrc/gated/plan.h
    hidden = torch.cat([torch.zeros_like(r), torch.zeros_like(z), n_h])
    return gru_reference(
        x, Weights(w_ih, w_hh, torch.cat([r, z, n]), hidden), h0, lengths=lengths, reverse=settings.reverse
    )


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

    Hochreiter and Schmidhuber, "Long short-term memory" (1997), with a forget gate, as torch has it.

    In C++ for float32 and float64 on a CPU, by Triton for float32 and at most 64 states on a GPU, as a plain loop elsewhere;
    the same numbers to rounding. A GPU has torch's own too, by cuDNN or MIOpen.

    Args:
        x: inputs (batch, time, features).
        weights: (w_ih, w_hh) or (w_ih, w_hh, b_ih, b_hh), as torch.nn.LSTM has them: gates input, forget, content, output.
        h0: state before the first step (batch, state); None is zero.
        c0: cell before the first step (batch, state); None is zero.
        lengths: int64 (batch,): steps of each row; outputs after its end are 0.
        reverse: run from the last step of each row to the first.
        backend: "native" (C++ on a CPU), "triton" (on a GPU), "reference" or "chunked" (the plain loop), or "auto".

    Returns:
        outputs (batch, time, state), the last state (batch, state) and the last cell (batch, state), of each row at its
        end.

    Raises:
        ShapeError: weights, states or lengths that do not fit x.
        DtypeError: what is not a tensor, or tensors in another dtype than x.
        UnknownNameError: an unknown backend.
        BackendError: a backend that is not installed, or not for the device, dtype or number of states.
        ArgumentError: lengths outside the time steps, or tensors on different devices.

    Example:
        >>> import torch, holdfast
        >>> layer, x = torch.nn.LSTM(3, 4, batch_first=True), torch.randn(2, 10, 3)
        >>> h, last, cell = holdfast.kernels.lstm(x, tuple(layer.parameters()))
        >>> torch.allclose(h, layer(x)[0], atol=1e-5), cell.shape
        (True, torch.Size([2, 4]))
    """
    given = _checked("lstm", x, weights, h0, c0, lengths)
    if _half(x, backend):
        wide = _widened(x, h0, c0, *weights)
        ends = lstm(wide[0], tuple(wide[3:]), *wide[1:3], lengths=lengths, reverse=reverse)
        return ends[0].to(x.dtype), ends[1].to(x.dtype), ends[2].to(x.dtype)
    if _on_gpu("lstm", x, given.w_hh, backend, *weights, h0, c0):
        bias = given.b_ih if given.b_hh is None or given.b_ih is None else given.b_ih + given.b_hh
        drive = functional.linear(x, given.w_ih, bias)
        return gated_gpu(GatedCall(drive, given.w_hh, None, h0, c0, None, lengths, "lstm", 0.0, reverse), _on_drive)
    if not _native(x, backend, *weights, h0, c0):
        return lstm_reference(x, given, h0, c0, lengths=lengths, reverse=reverse)
    return run_gated("lstm", x, given, (h0, c0), lengths, reverse)


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

    Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine translation" (2014),
    as torch has it: the reset gate multiplies the recurrent product.

    In C++ for float32 and float64 on a CPU, by Triton for float32 and at most 64 states on a GPU, as a plain loop elsewhere;
    the same numbers to rounding. A GPU has torch's own too, by cuDNN or MIOpen.

    Args:
        x: inputs (batch, time, features).
        weights: (w_ih, w_hh) or (w_ih, w_hh, b_ih, b_hh), as torch.nn.GRU has them: gates reset, update, content.
        h0: state before the first step (batch, state); None is zero.
        lengths: int64 (batch,): steps of each row; outputs after its end are 0.
        reverse: run from the last step of each row to the first.
        backend: "native" (C++ on a CPU), "triton" (on a GPU), "reference" or "chunked" (the plain loop), or "auto".

    Returns:
        outputs (batch, time, state) and the last state (batch, state), of each row at its end.

    Raises:
        ShapeError: weights, states or lengths that do not fit x.
        DtypeError: what is not a tensor, or tensors in another dtype than x.
        UnknownNameError: an unknown backend.
        BackendError: a backend that is not installed, or not for the device, dtype or number of states.
        ArgumentError: lengths outside the time steps, or tensors on different devices.

    Example:
        >>> import torch, holdfast
        >>> layer, x = torch.nn.GRU(3, 4, batch_first=True), torch.randn(2, 10, 3)
        >>> h, last = holdfast.kernels.gru(x, tuple(layer.parameters()))
        >>> torch.allclose(h, layer(x)[0], atol=1e-5), last.shape
        (True, torch.Size([2, 4]))
    """
    given = _checked("gru", x, weights, h0, None, lengths)
    if _half(x, backend):
        wide = _widened(x, h0, *weights)
        ends = gru(wide[0], tuple(wide[2:]), wide[1], lengths=lengths, reverse=reverse)
        return ends[0].to(x.dtype), ends[1].to(x.dtype)
    if _on_gpu("gru", x, given.w_hh, backend, *weights, h0):
        units, outer, inner = given.w_hh.shape[1], given.b_ih, x.new_zeros(given.w_hh.shape[1])
        if given.b_ih is not None and given.b_hh is not None:
            outer, inner = given.b_ih + functional.pad(given.b_hh[: 2 * units], (0, units)), given.b_hh[2 * units :]
        drive = functional.linear(x, given.w_ih, outer)
        return gated_gpu(GatedCall(drive, given.w_hh, inner, h0, None, None, lengths, "gru", 0.0, reverse), _on_drive)[
            :2
        ]
    if not _native(x, backend, *weights, h0):
        return gru_reference(x, given, h0, lengths=lengths, reverse=reverse)
    return run_gated("gru", x, given, (h0, None), lengths, reverse)[:2]


def run_gated(
    function: str, x: Tensor, weights: Weights, start: tuple[Tensor | None, ...], lengths: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`lstm` or `gru` in C++ with arguments that are known to be right: outputs, last state and, of an LSTM, last cell.

    Args:
        function: "lstm" or "gru".
        x: inputs, float32 or float64 on a CPU, as all others.
        weights: of one layer.
        start: state and cell before the first step, None for zeros.
        lengths: steps of each row, or None.
        reverse: run from the last step of each row to the first.
    """
    bias = bias_blocks(function, weights)
    bias = x.new_zeros(4, weights.w_hh.shape[1]) if bias is None else bias
    h0, c0 = (*start, None, None)[:2]
    tensors = GatedTensors(x, weights.w_ih, weights.w_hh, bias, h0, c0, lengths)
    return _apply(tensors, GatedSettings(function == "gru", reverse))


def _half(x: Tensor, backend: Backend) -> bool:
    """Whether states are kept in float32 for inputs of half precision, whose rounding a loop would add up."""
    return backend == "auto" and x.dtype in (torch.float16, torch.bfloat16)


def _widened(x: Tensor, *others: Tensor | None) -> list[Tensor]:
    return [x.float(), *(None if t is None else t.float() for t in others)]  # type: ignore[list-item]


def _on_gpu(function: str, x: Tensor, w: Tensor, backend: Backend, *others: Tensor | None) -> bool:
    """Whether the Triton kernel runs it; one that was asked for by name and cannot is refused."""
    if backends.choose(x.device, backend, function=function)[0] != "triton":
        return False
    fits = _triton.fits(w) and not autograd.has_tangent(x, *others)
    if not fits and backend == "triton":
        raise BackendError(
            f"{function}: the Triton kernel takes float32 in reverse mode and at most {_triton.MAX_STATES} states, got "
            f"{w.dtype} and {w.shape[1]}; use backend='auto'"
        )
    return fits


def _on_drive(call: GatedCall) -> tuple[Tensor, ...]:
    """The plain loop over the input's part of the gates."""
    drive, w, bias, h0, c0, _, lengths, cell, _, reverse = call
    own = torch.eye(len(w), dtype=w.dtype, device=w.device)
    if cell == "lstm":
        return lstm_reference(drive, Weights(own, w), h0, c0, lengths=lengths, reverse=reverse)
    assert bias is not None
    inner = functional.pad(bias, (2 * len(bias), 0))
    return gru_reference(drive, Weights(own, w, torch.zeros_like(inner), inner), h0, lengths=lengths, reverse=reverse)


def _native(x: Tensor, backend: Backend, *others: Tensor | None) -> bool:
    """Whether C++ runs it."""
    if backends.choose(x.device, backend, function="lstm")[0] != "native":
        return False
    if x.dtype not in checks.REAL or autograd.has_tangent(x, *others):
        if backend == "native":
            raise BackendError(
                f"lstm, gru: the native kernels take float32 and float64 in reverse mode, got {x.dtype}; use backend='auto'"
            )
        return False
    return True


def _apply(tensors: GatedTensors, settings: GatedSettings) -> tuple[Tensor, Tensor, Tensor]:
    tracked = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if tracked or torch._C._are_functorch_transforms_active():
        h, last, c_last, *_ = autograd.apply(_Gated, *tensors, *settings, True)
    else:
        h, last, c_last, *_ = torch.ops.holdfast.gated_forward(*tensors, *settings, False)
    return h, last, c_last


def _checked(
    function: str, x: Tensor, weights: tuple[Tensor, ...], h0: Tensor | None, c0: Tensor | None, lengths: Tensor | None
) -> Weights:
    if not isinstance(weights, (tuple, list)) or len(weights) not in (2, 4):
        got = f"{len(weights)} tensors" if isinstance(weights, (tuple, list)) else checks.describe(weights)
        raise ShapeError(f"{function}: expected weights (w_ih, w_hh) or (w_ih, w_hh, b_ih, b_hh), got {got}")
    given = Weights(*weights)
    checks.tensor(function, "x", x, checks.FLOATS)
    checks.ndim(function, "x", x, "batch time features")
    named = dict(zip(Weights._fields, weights, strict=False)) | {"h0": h0, "c0": c0}
    checks.tensors(function, named, (x.dtype,), ("h0", "c0"))
    checks.same_device(function, x=x, **named)
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
    if lengths is not None:
        checks.lengths(function, lengths, (batch,), time, x.device)
    return given
