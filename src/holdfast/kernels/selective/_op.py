"""The public selective scan: checks its arguments, chooses a backend and owns the gradients."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from holdfast.errors import ArgumentError, ShapeError
from holdfast.kernels._common import autograd, checks, segments
from holdfast.kernels._common.backends import Backend, choose
from holdfast.kernels._common.calls import in_dtype
from holdfast.kernels.selective import _native as native
from holdfast.kernels.selective import _triton  # noqa: F401  (defines torch.ops.holdfast.selective_triton_*)
from holdfast.kernels.selective import _watch as watch
from holdfast.kernels.selective._chunked import selective_chunked
from holdfast.kernels.selective._reference import SelectiveCall, selective_reference

_FLOATS = 9  # u, dt, A, B, C, D, z, dt_bias, h0
_TENSORS = 11  # these, lengths and resets
_SEQUENCES = ("u", "dt", "B", "C", "z")  # which a GPU reads in half precision


class _Selective(torch.autograd.Function):
    """Saves, beside its arguments, one state in 64, in 32 on a GPU: all of them would be `state` times as large as u."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *call, backend = arguments
        if backend == "triton":
            return torch.ops.holdfast.selective_triton_forward(*call)
        return torch.ops.holdfast.selective_forward(*call)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs[:_TENSORS], output[2])
        ctx.choices, ctx.backend = inputs[_TENSORS : _TENSORS + 2], inputs[-1]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        need = ctx.needs_input_grad
        if grad_y is None and grad_last is None:
            return (None,) * len(need)
        *inputs, saved = ctx.saved_tensors
        if autograd.again():
            outputs = selective_chunked(SelectiveCall(*inputs, *ctx.choices))
            grads = autograd.differentiable_gradients(outputs, (grad_y, grad_last), inputs[:_FLOATS], need)
        elif ctx.backend == "triton":
            grads = torch.ops.holdfast.selective_triton_backward(*inputs, *ctx.choices, saved, grad_y, grad_last)
        else:
            grads = torch.ops.holdfast.selective_backward(*inputs, *ctx.choices, saved, grad_y, grad_last)
        wanted = [grad if want else None for grad, want in zip(grads, need[:_FLOATS], strict=True)]
        return (*wanted, *(None,) * (len(need) - _FLOATS))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Runs mapped calls one after another; what is saved has the size of each."""
        return autograd.one_by_one(_Selective, info, in_dims, arguments)


def _check(call: SelectiveCall) -> None:
    given: dict[str, Any] = dict(zip(SelectiveCall._fields[:_FLOATS], call[:_FLOATS], strict=True))
    checks.tensors("selective", given, checks.FLOATS, ("D", "z", "dt_bias", "h0"))
    checks.ndim("selective", "u", call.u, "batch time channels")
    checks.ndim("selective", "A", call.A, "channels state")
    (batch, time, channels), state = call.u.shape, call.A.shape[1]
    if state == 0:
        raise ShapeError(f"selective: expected at least one state, got A of shape {tuple(call.A.shape)}")
    if call.B.ndim not in (3, 4):
        raise ShapeError(
            f"selective: expected B of shape {(batch, time, state)}, or (batch, time, groups, state), "
            f"got {tuple(call.B.shape)}"
        )
    groups = tuple(call.B.shape[2:-1])
    if groups and (groups[0] == 0 or channels % groups[0]):
        raise ShapeError(f"selective: expected groups that divide {channels} channels, got {groups[0]} groups (B)")
    expected = {
        "A": ((channels, state), "u's channels by states"),
        "B": ((batch, time, *groups, state), "u's batch and time, groups, A's states"),
        "dt": (call.u.shape, "u's"), "C": (call.B.shape, "B's"), "D": ((channels,), "u's channels"),
        "z": (call.u.shape, "u's"), "dt_bias": ((channels,), "u's channels"),
        "h0": ((batch, channels, state), "batch, channels, states"),
    }  # fmt: skip
    checks.shapes("selective", given, expected)
    checks.addressable("selective", "u", call.u.shape, 64)
    checks.addressable("selective", "the states that are kept", (*call.u.shape, state), 8)
    checks.same_device("selective", **given)
    checks.flags("selective", dt_softplus=call.softplus, reverse=call.reverse)
    if call.resets is not None:
        checks.resets("selective", call.resets, call.u.shape[:2], call.u.device)
    if not call.softplus:
        _check_steps(call.dt, call.dt_bias)


def _check_steps(dt: Tensor, dt_bias: Tensor | None) -> None:
    """Refuses negative step sizes: they run time backwards, where a decaying state grows."""
    if not checks.at_hand(dt) or dt.numel() == 0:
        return
    # one number read back; with softplus, the usual case, this is not reached
    smallest = float((dt if dt_bias is None else dt + dt_bias).detach().min())
    if smallest < 0:
        raise ArgumentError(
            f"selective: expected step sizes dt + dt_bias >= 0, got a smallest of {smallest}; pass dt_softplus=True, or make "
            "them positive before the call"
        )


def selective(
    u: Float[Tensor, "batch time channels"],
    dt: Float[Tensor, "batch time channels"],
    A: Float[Tensor, "channels state"],
    B: Float[Tensor, "batch time *groups state"],
    C: Float[Tensor, "batch time *groups state"],
    D: Float[Tensor, " channels"] | None = None,
    *,
    z: Float[Tensor, "batch time channels"] | None = None,
    dt_bias: Float[Tensor, " channels"] | None = None,
    dt_softplus: bool = False,
    h0: Float[Tensor, "sequences channels state"] | None = None,
    lengths: Int64[Tensor, " batch"] | None = None,
    resets: Bool[Tensor, "batch time"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    reverse: bool = False,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "sequences channels state"]]:
    """The selective scan of Mamba: the outputs and the final state.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t and y_t = C_t h_t + D u_t, times silu(z_t) where there is a gate; each
    channel has its own states, B_t and C_t are shared by the channels of a group. Gu and Dao, "Mamba: linear-time
    sequence modeling with selective state spaces" (2023), algorithm 2 with section 3.4's gate.

    Args:
        u: inputs (batch, time, channels).
        dt: step sizes (batch, time, channels), not negative unless `dt_softplus`.
        A: rates (channels, state), as a rule negative.
        B: input weights (batch, time, state), or (batch, time, groups, state) where channels come in groups.
        C: output weights, shaped like B.
        D: direct path (channels,), or None.
        z: gate (batch, time, channels): y is multiplied by silu(z) = z sigmoid(z). None is no gate.
        dt_bias: added to dt (channels,), before softplus; None is zero.
        dt_softplus: whether step sizes are softplus(dt + dt_bias), as torch has it (x itself above 20).
        h0: state before the first step (batch, channels, state); None is zero.
        lengths: int64 (batch,): row i has lengths[i] steps. Outputs after its end are 0, the final state is the one at
            its end, and a reverse run starts there.
        resets: bool (batch, time): the state before a marked step is zero, where "before" is in the order of the run;
            so several sequences can stand one after another in a row.
        cu_seqlens: int64 or int32 (sequences + 1,): sequence i has the steps cu_seqlens[i] to cu_seqlens[i + 1] of a
            batch of one row; initial and final states then have one entry for each sequence. Instead of lengths.
        reverse: run from the last step to the first.
        backend: as in `scan`.

    Returns:
        y (batch, time, channels) and the final state (batch, channels, state). Everything is differentiable, the final
        state included, twice if need be.

    Raises:
        ShapeError: tensors that do not fit each other, or `cu_seqlens` with a batch of several rows.
        DtypeError: what is not a tensor, or has a dtype other than those below.
        UnknownNameError: an unknown backend.
        BackendError: a backend that is not installed or not for the device of u.
        ArgumentError: negative step sizes without `dt_softplus`, lengths or bounds outside the time steps, or tensors on
            different devices.

    Dtypes: float32 and float64, promoted together; bfloat16 and float16 are computed in float32, y comes back in u's
    dtype and the final state in float32.

    Memory of a training step: the arguments, y, their gradients, and a state every 64 steps; nothing of
    size batch x time x channels x state is ever stored.

    Accuracy: native exp is a polynomial with a relative error of 2.3e-8 of its distance to 1 (float32; 1e-18 in
    float64) before rounding, so slow decays do not drift: what is left are the roundings of the state itself.

    Example:
        >>> import torch, holdfast
        >>> one, A = torch.ones(1, 3, 1), torch.tensor([[-1.0]])
        >>> y, last = holdfast.kernels.selective(one, one, A, one, one)  # h_t = h_{t-1} / e + 1
        >>> [round(v, 3) for v in y.flatten().tolist()]
        [1.0, 1.368, 1.503]
    """
    if cu_seqlens is not None:
        checks.flags("selective", reverse=reverse)
        gate = {} if z is None else {"z": z}
        return segments.in_pieces(
            "selective",
            lambda u, dt, B, C, *own: selective(
                u, dt, A, B, C, D, z=own[0] if gate else None, dt_bias=dt_bias, dt_softplus=dt_softplus, h0=own[-2],
                lengths=own[-1], reverse=reverse, backend=backend,
            ),
            {"u": u, "dt": dt, "B": B, "C": C, **gate}, h0, segments.Cuts(lengths, resets, cu_seqlens, reverse),
        )  # fmt: skip
    return _run(SelectiveCall(u, dt, A, B, C, D, z, dt_bias, h0, lengths, resets, dt_softplus, reverse), backend)


def _run(call: SelectiveCall, backend: Backend) -> tuple[Tensor, Tensor]:
    """Checks the call, brings it to one dtype and hands it to the backend."""
    _check(call)
    u, lengths = call.u, call.lengths
    name, _ = choose(u.device, backend, function="selective")
    if lengths is not None:
        checks.lengths("selective", lengths, u.shape[:1], u.shape[1], u.device, backend=name)
    watch.tell(call.dt, call.A, call.dt_bias, call.softplus)
    floats: tuple[Any, ...] = call[:_FLOATS]
    dtype = checks.promoted(floats)
    tensors: list[Any] = [in_dtype(x, dtype) for x in floats]
    if name == "chunked":
        converted = [*tensors, *call[_FLOATS:]]
        y, last = selective_chunked(SelectiveCall(*converted))
    elif name == "reference":
        *weights, z, dt_bias, h0 = tensors
        y, last = selective_reference(
            *weights, z=z, dt_bias=dt_bias, dt_softplus=call.softplus, h0=h0, lengths=lengths, resets=call.resets,
            reverse=call.reverse,
        )  # fmt: skip
    else:
        autograd.refuse_tangents("selective", name, *tensors)
        if name == "triton":
            tensors = [
                _as_read(x, field, dtype) for x, field in zip(call, SelectiveCall._fields[:_FLOATS], strict=False)
            ]
        converted = [*_with_groups(tensors), *call[_FLOATS:]]
        y, last = _run_operator(SelectiveCall(*converted), name)
    return in_dtype(y, u.dtype if u.dtype in checks.HALF else dtype), last


def _with_groups(tensors: list[Any]) -> list[Any]:
    """B and C as the operators take them: channels that share them are one group."""
    if tensors[3].ndim == 3:
        tensors[3], tensors[4] = tensors[3].unsqueeze(2), tensors[4].unsqueeze(2)
    return tensors


def _as_read(x: Any, name: str, dtype: torch.dtype) -> Any:
    """Sequences in half precision stay as they are where the states are float32."""
    half = x is not None and name in _SEQUENCES and x.dtype in checks.HALF and dtype == torch.float32
    return x if half else in_dtype(x, dtype)


def _run_operator(call: SelectiveCall, backend: str) -> tuple[Tensor, Tensor]:
    tensors: tuple[Any, ...] = call[:_TENSORS]
    if backend == "native" and autograd.untracked(*tensors):
        return native.selective_forward(call, False)[:2]
    return autograd.apply(_Selective, *call, True, backend)[:2]
