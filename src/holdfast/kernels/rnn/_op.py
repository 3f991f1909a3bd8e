"""The nonlinear RNN: checks its arguments and picks a backend."""

from __future__ import annotations

import sys

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from holdfast.errors import ArgumentError, DtypeError, ShapeError, unknown_name
from holdfast.kernels._common import checks, segments
from holdfast.kernels._common.backends import Backend
from holdfast.kernels.rnn import _autograd as autograd
from holdfast.kernels.rnn import _chunked, _native, _triton  # noqa: F401  (register themselves)
from holdfast.kernels.rnn._reference import (
    ACTIVATIONS,
    Activation,
    RNNSettings,
    RNNTensors,
    rnn_reference,
    state_dtype,
)


def rnn(
    x: Float[Tensor, "batch time features"],
    w: Float[Tensor, "state state"] | Float[Tensor, " state"],
    u: Float[Tensor, "state features"],
    b: Float[Tensor, " state"] | None = None,
    h0: Float[Tensor, "sequences state"] | None = None,
    *,
    dt: float | Float[Tensor, "batch time"] | None = None,
    activation: Activation = "tanh",
    lengths: Int64[Tensor, " batch"] | None = None,
    resets: Bool[Tensor, "batch time"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    reverse: bool = False,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time state"], Float[Tensor, "sequences state"]]:
    """States of a nonlinear RNN at all steps, and the state after the last one.

        discrete (dt None):  h_t = sigma(W h_{t-1} + U x_t + b)
        Euler (dt given):    h_t = h_{t-1} + dt_t sigma(W h_{t-1} + U x_t + b)

    The Euler step is that of dh/dt = sigma(W h + U x + b) ("Inverse Approximation Theory for Nonlinear Recurrent Neural
    Networks", eq. 1).

    Args:
        x: inputs (batch, time, features).
        w: recurrent weights W (state, state), or (state,) for the diagonal of a diagonal W.
        u: input weights U (state, features).
        b: bias (state,), or None.
        h0: state before the first step (batch, state); None is zero.
        dt: None for the discrete form; step size of the Euler form, one number, or (batch, time) for irregular
            sampling.
        activation: sigma: "tanh", "hardtanh", "relu", "sigmoid" or "linear".
        lengths: int64 (batch,): row i stops after lengths[i] steps. Later outputs are 0, the final state is the one at
            its end, and what stands in the padding is not read. In reverse the row starts at its own end.
        resets: bool (batch, time): the state before a marked step is zero, where "before" is in the order of the run;
            marks after a row's end are not read. Equal to running the pieces apart.
        cu_seqlens: int64 or int32 (sequences + 1,): sequence i has the steps cu_seqlens[i] to cu_seqlens[i + 1] of a
            batch of one row; initial and final states then have one entry for each sequence. Instead of lengths.
        reverse: run from the last step to the first; the final state is then that at step 0.
        backend: "native" (C++ on a CPU), "triton" (on a GPU, float32, a matrix W of at most 128 states, which fits on the
            chip), "chunked" (torch, any device), "reference" (plain loop), or "auto"; `choose` tells what "auto" takes.

    Returns:
        h (batch, time, state) and the final state (batch, state).

    Raises:
        ShapeError: tensors that do not fit each other, or `cu_seqlens` with a batch of several rows.
        DtypeError: what is not a tensor, or has a dtype that does not go together with x's.
        UnknownNameError: an unknown backend or activation.
        BackendError: a backend that is not installed or not for the device of x.
        ArgumentError: lengths or bounds outside the time steps, a dt that is not finite, or tensors on different devices.

    Inputs in bfloat16 or float16 are computed in float32 and h comes back in their dtype, the final state in float32;
    weights may be in either dtype. Gradients reach x, w, u, b, h0 and a dt tensor through both outputs, once: a second
    derivative needs backend="reference".

    A training step keeps x, h and, for Euler steps, sigma(...), which has the size of h; the backward pass adds the
    gradients and, in the native backend, one copy of W and U and one of their gradients for each thread.

    Accuracy: tanh and sigmoid are within 2 ulp in float32 and 1e-15 in float64; sums run in the dtype of the state, and
    weight gradients are sums of sums of about 100 steps. Denormal numbers are taken as 0 by the native backend.

    Example:
        >>> import torch, holdfast
        >>> x, w, u = torch.tensor([[[1.0], [0.0], [0.0]]]), torch.tensor([[0.5]]), torch.ones(1, 1)
        >>> h, last = holdfast.kernels.rnn(x, w, u, activation="relu")
        >>> h.flatten().tolist(), last.tolist()
        ([1.0, 0.5, 0.25], [[0.25]])
    """
    if resets is not None or cu_seqlens is not None:
        checks.flags("rnn", reverse=reverse)
        steps = {"dt": dt} if isinstance(dt, Tensor) else {}
        return segments.in_pieces(
            "rnn",
            lambda x, *own: rnn(
                x, w, u, b, own[-2], dt=own[0] if steps else dt, activation=activation, lengths=own[-1],
                reverse=reverse, backend=backend,
            ),
            {"x": x, **steps}, h0, segments.Cuts(lengths, resets, cu_seqlens, reverse),
        )  # fmt: skip
    dts = dt if isinstance(dt, Tensor) else None
    tensors = RNNTensors(x, w, u, b, h0, dts, lengths)
    checks.backend("rnn", backend)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise unknown_name("activation of rnn", activation, ACTIVATIONS)
    checks.flags("rnn", reverse=reverse)
    _check(tensors, dt)
    if backend == "reference":
        with torch.autocast(x.device.type, enabled=False):
            return rnn_reference(x, w, u, b, h0, dt=dt, activation=activation, lengths=lengths, reverse=reverse)
    size = 1.0 if dts is not None else None if dt is None else float(dt)
    return autograd.run(tensors, RNNSettings(activation, size, reverse, backend))


def _check(tensors: RNNTensors, dt: object) -> None:
    x, w, u, b, h0, dts, lengths = tensors
    checks.tensor("rnn", "x", x, checks.FLOATS)
    checks.ndim("rnn", "x", x, "batch time features")
    dtypes = tuple(dict.fromkeys((x.dtype, state_dtype(x))))
    given = {"w": w, "u": u, "b": b, "h0": h0}
    checks.tensors("rnn", given, dtypes, ("b", "h0"))
    _check_shapes(x, w, u, b, h0)
    _check_dt(x, dt, dtypes)
    if lengths is not None:
        checks.lengths("rnn", lengths, x.shape[:1], x.shape[1], x.device)
    checks.same_device("rnn", x=x, **given, dt=dts)


def _check_shapes(x: Tensor, w: Tensor, u: Tensor, b: Tensor | None, h0: Tensor | None) -> None:
    if w.ndim not in (1, 2) or (w.ndim == 2 and w.shape[0] != w.shape[1]):
        raise ShapeError(f"rnn: expected w of shape (state, state), or (state,) for a diagonal W, got {tuple(w.shape)}")
    batch, time, features = x.shape
    state = w.shape[0]
    checks.shape("rnn", "u", u, (state, features), f"(state, features) for w {tuple(w.shape)}, x {tuple(x.shape)}")
    if b is not None:
        checks.shape("rnn", "b", b, (state,), f"(state,) for w {tuple(w.shape)}")
    if h0 is not None:
        checks.shape("rnn", "h0", h0, (batch, state), f"(batch, state) for x {tuple(x.shape)}, w {tuple(w.shape)}")
    checks.addressable("rnn", "h", (batch, max(time, 1), state), 8)
    # the workspace has a copy of the weights and their gradients for each of the threads, 1024 at most
    checks.addressable("rnn", "[w, u]", (state, 2 * state + 2 * features + 256), 8 * 1024)


def _check_dt(x: Tensor, dt: object, dtypes: tuple[torch.dtype, ...]) -> None:
    if isinstance(dt, Tensor):
        checks.tensor("rnn", "dt", dt, dtypes)
        checks.shape("rnn", "dt", dt, x.shape[:2], "(batch, time), or give one number")
    elif dt is not None and (isinstance(dt, bool) or not isinstance(dt, int | float)):
        raise DtypeError(f"rnn: expected dt to be None, a number or a (batch, time) tensor, got {checks.describe(dt)}")
    elif dt is not None and not abs(dt) <= sys.float_info.max:
        raise ArgumentError(f"rnn: expected a finite dt, got {dt!r}")
