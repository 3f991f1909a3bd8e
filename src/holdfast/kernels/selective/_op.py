"""The public selective scan: checks its arguments, chooses a backend and owns the gradients."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from holdfast.errors import ArgumentError, ShapeError
from holdfast.kernels._common import autograd, checks, segments
from holdfast.kernels._common.arguments import in_dtype
from holdfast.kernels.scan._op import Backend, choose
from holdfast.kernels.selective import _native as native
from holdfast.kernels.selective import _watch as watch
from holdfast.kernels.selective._chunked import selective_chunked
from holdfast.kernels.selective._reference import selective_reference

_DTYPES = (*checks.REAL, *checks.HALF)
_FLOATS = 9  # u, dt, A, B, C, D, z, dt_bias, h0
_TENSORS = 11  # these, lengths and resets


class _Selective(torch.autograd.Function):
    """Saves, beside its arguments, one state in 64."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.holdfast.selective_forward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs[:_TENSORS], output[2])
        ctx.choices = inputs[_TENSORS : _TENSORS + 2]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        need = ctx.needs_input_grad
        if grad_y is None and grad_last is None:
            return (None,) * len(need)
        *inputs, saved = ctx.saved_tensors
        grads: tuple[Tensor | None, ...]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # a second backward is to follow
            softplus, reverse = ctx.choices
            grads = _differentiable_backward(inputs, softplus, reverse, grad_y, grad_last, need)
        else:
            grads = torch.ops.holdfast.selective_backward(*inputs, *ctx.choices, saved, grad_y, grad_last)
        wanted = [grad if want else None for grad, want in zip(grads, need[:_FLOATS], strict=True)]
        return (*wanted, *(None,) * (len(need) - _FLOATS))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, tuple[int, int, int]]:
        """Runs mapped calls one after another; what is saved has the size of each."""
        runs = []
        for i in range(info.batch_size):
            own = [x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims, strict=True)]
            runs.append(_Selective.apply(*own))
        return tuple(torch.stack(parts) for parts in zip(*runs, strict=True)), (0, 0, 0)


def _differentiable_backward(
    inputs: list[Tensor | None], softplus: bool, reverse: bool, grad_y: Tensor | None, grad_last: Tensor | None,
    need: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients as functions that can be differentiated again, by way of the chunked backend."""
    wanted = [x for x, n in zip(inputs, need, strict=False) if n and x is not None]
    *weights, z, dt_bias, h0, lengths, resets = inputs
    outputs = selective_chunked(
        *weights, z=z, dt_bias=dt_bias, dt_softplus=softplus, h0=h0, lengths=lengths, resets=resets, reverse=reverse  # type: ignore[arg-type]
    )  # fmt: skip
    pairs = [(y, g) for y, g in zip(outputs, (grad_y, grad_last), strict=True) if g is not None]
    ys, gs = zip(*pairs, strict=True)
    grads = iter(torch.autograd.grad(ys, wanted, gs, create_graph=True, allow_unused=True))
    return tuple(next(grads) if n else None for n in need[:_FLOATS])


def _check_shapes(u: Tensor, A: Tensor, B: Tensor, **others: Tensor | None) -> None:
    checks.ndim("selective", "u", u, "batch time channels")
    checks.ndim("selective", "A", A, "channels state")
    batch, time, channels = u.shape
    state = A.shape[1]
    checks.shape("selective", "A", A, (channels, state), "u's channels by states")
    if state == 0:
        raise ShapeError(f"selective: expected at least one state, got A of shape {tuple(A.shape)}")
    if B.ndim not in (3, 4):
        raise ShapeError(
            f"selective: expected B of shape {(batch, time, state)}, or (batch, time, groups, state), "
            f"got {tuple(B.shape)}"
        )
    groups = tuple(B.shape[2:-1])
    if groups and (groups[0] == 0 or channels % groups[0]):
        raise ShapeError(f"selective: expected groups that divide {channels} channels, got {groups[0]} groups (B)")
    checks.shape("selective", "B", B, (batch, time, *groups, state), "u's batch and time, groups, A's states")
    expected = {
        "dt": (u.shape, "u's"), "C": (B.shape, "B's"), "D": ((channels,), "u's channels"), "z": (u.shape, "u's"),
        "dt_bias": ((channels,), "u's channels"), "h0": ((batch, channels, state), "batch, channels, states"),
    }  # fmt: skip
    for name, (shape, why) in expected.items():
        value = others[name]
        if value is not None:
            checks.shape("selective", name, value, shape, why)
    checks.addressable("selective", "u", u.shape, 64)
    checks.addressable("selective", "the states that are kept", (*u.shape, state), 8)


def _check_resets(resets: object, u: Tensor) -> None:
    value = checks.tensor("selective", "resets", resets, (torch.bool,))
    checks.shape("selective", "resets", value, u.shape[:2], "one for each step of each row")
    checks.same_device("selective", u=u, resets=value)


def _check_steps(dt: Tensor, dt_bias: Tensor | None) -> None:
    """Refuses negative step sizes: they run time backwards, where a decaying state grows."""
    if not checks.readable(dt) or dt.numel() == 0:
        return
    smallest = float((dt if dt_bias is None else dt + dt_bias).detach().min())
    if smallest < 0:
        raise ArgumentError(
            f"selective: expected step sizes dt + dt_bias >= 0, got a smallest of {smallest}; give dt_softplus=True, "
            "or make them positive before"
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

    Returns y (batch, time, channels) and the final state (batch, channels, state). Everything is differentiable, the
    final state included, twice if need be.

    Dtypes: float32 and float64, promoted together; bfloat16 and float16 are computed in float32, y comes back in u's
    dtype and the final state in float32.

    Memory of a training step: the arguments, y, their gradients, and a state every 64 steps; nothing of
    size batch x time x channels x state is ever stored.

    Accuracy: native exp is a polynomial with a relative error of 2.3e-8 of its distance to 1 (float32; 1e-18 in
    float64) before rounding, so slow decays do not drift: what is left are the roundings of the state itself.
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
            {"u": u, "dt": dt, "B": B, "C": C, **gate}, h0, lengths=lengths, resets=resets, cu_seqlens=cu_seqlens,
            reverse=reverse,
        )  # fmt: skip
    given = {"u": u, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias, "h0": h0}
    for name, value in given.items():
        if value is not None or name in ("u", "dt", "A", "B", "C"):
            checks.tensor("selective", name, value, _DTYPES)
    _check_shapes(**given)  # type: ignore[arg-type]
    checks.same_device("selective", **given)
    checks.flags("selective", dt_softplus=dt_softplus, reverse=reverse)
    name, _ = choose(u.device, backend, function="selective")
    if lengths is not None:
        checks.lengths("selective", lengths, u.shape[:1], u.shape[1], u.device, backend=name)
    if resets is not None:
        _check_resets(resets, u)
    if not dt_softplus:
        _check_steps(dt, dt_bias)
    watch.tell(dt, A, dt_bias, dt_softplus)
    dtype = torch.float32
    for x in given.values():
        dtype = dtype if x is None else torch.promote_types(dtype, x.dtype)
    tensors = [in_dtype(x, dtype) for x in given.values()]
    if name == "native":
        autograd.refuse_tangents("selective", name, *tensors)
        y, last = _run_native(tensors, lengths, resets, dt_softplus, reverse)
    else:
        run = selective_chunked if name == "chunked" else selective_reference
        *weights, z, dt_bias, h0 = tensors
        y, last = run(
            *weights, z=z, dt_bias=dt_bias, dt_softplus=dt_softplus, h0=h0, lengths=lengths, resets=resets, reverse=reverse  # type: ignore[arg-type]
        )  # fmt: skip
    return in_dtype(y, u.dtype if u.dtype in checks.HALF else dtype), last


def _run_native(
    tensors: list[Tensor | None], lengths: Tensor | None, resets: Tensor | None, softplus: bool, reverse: bool
) -> tuple[Tensor, Tensor]:
    u, dt, A, B, C, *rest = tensors
    assert u is not None
    assert B is not None
    assert C is not None
    if B.ndim == 3:
        B, C = B.unsqueeze(2), C.unsqueeze(2)
    inputs = (u, dt, A, B, C, *rest, lengths, resets, softplus, reverse)
    if autograd.untracked(*tensors, lengths, resets):
        return native.selective_forward(*inputs, False)[:2]  # type: ignore[arg-type, call-arg]
    return autograd.apply(_Selective, *inputs, True)[:2]
