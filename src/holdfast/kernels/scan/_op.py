"""The public linear scan: checks its arguments, chooses a backend and owns the gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Int, Int64, Shaped
from torch import Tensor

from holdfast.errors import DtypeError, ShapeError
from holdfast.kernels._common import autograd, checks, segments
from holdfast.kernels._common.backends import Backend, choose, takes_resets
from holdfast.kernels._common.calls import in_dtype
from holdfast.kernels.scan import _native  # noqa: F401  (defines torch.ops.holdfast.scan_*)
from holdfast.kernels.scan._chunked import scan_adjoint, scan_chunked
from holdfast.kernels.scan._gpu import scan_gpu
from holdfast.kernels.scan._reference import ScanAdjoint, ScanCall, scan_reference

_DTYPES = (*checks.FLOATS, *checks.COMPLEX)


def _factors(a: Tensor, shape: torch.Size) -> Tensor:
    """Brings a to (1 or rows, 1 or time, channels)."""
    # by views wherever strides allow: only factors that differ by row under several batch dimensions are copied
    if a.ndim == len(shape) == 3 and a.shape[2] == shape[2] and a.shape[0] in (1, shape[0]):
        return a
    if a.ndim == 1 and a.shape[0] == shape[-1]:  # the steps below take 8 us, a twentieth of a small training step
        return a.reshape(1, 1, shape[-1])
    ones = (1,) * (len(shape) - a.ndim)
    a = a.reshape(ones + a.shape)
    batch = shape[:-2]
    if all(size == 1 for size in a.shape[:-2]):
        return a.reshape(1, a.shape[-2], a.shape[-1]).expand(1, a.shape[-2], shape[-1])
    return a.expand(*batch, a.shape[-2], shape[-1]).reshape(math.prod(batch), a.shape[-2], shape[-1])


def _flat(x: Tensor, keep: int) -> Tensor:
    """Batch dimensions made one, the last `keep` left as they are."""
    return x if x.ndim == keep + 1 else x.reshape((math.prod(x.shape[: x.ndim - keep]), *x.shape[x.ndim - keep :]))


class _Scan(torch.autograd.Function):
    """Saves h beside its arguments a, h0 and lengths; a training step allocates h and the gradients, no more."""

    @staticmethod
    def forward(
        a: Tensor, b: Tensor, h0: Tensor | None, lengths: Tensor | None, reverse: bool, backend: str
    ) -> tuple[Tensor, Tensor]:
        flat_h0 = None if h0 is None else _flat(h0, 1)
        flat_lengths = None if lengths is None else _flat(lengths, 0)
        call = ScanCall(_factors(a, b.shape), _flat(b, 2), flat_h0, flat_lengths, reverse)
        h, last = scan_chunked(call) if backend == "chunked" else torch.ops.holdfast.scan_forward(*call)
        return (h, last) if b.ndim == 3 else (h.view(b.shape), last.view(b.shape[:-2] + b.shape[-1:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        a, _, h0, lengths, ctx.reverse, ctx.backend = inputs
        ctx.save_for_backward(a, output[0], h0, lengths)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        a, h, h0, lengths = ctx.saved_tensors
        want_a, want_b, want_h0 = ctx.needs_input_grad[:3]
        call = ScanAdjoint(
            _factors(a, h.shape),
            _flat(h, 2),
            None if h0 is None else _flat(h0, 1),
            None if lengths is None else _flat(lengths, 0),
            None if grad_h is None else _flat(grad_h, 2),
            None if grad_last is None else _flat(grad_last, 1),
            ctx.reverse,
        )
        if autograd.again():
            grads = scan_adjoint(
                lambda c: scan(c.a, c.b, c.h0, lengths=c.lengths, reverse=c.reverse, backend=ctx.backend), call
            )
        elif ctx.backend == "chunked":
            grads = scan_adjoint(scan_chunked, call)
        else:
            grads = torch.ops.holdfast.scan_backward(*call, want_a, want_b)
        grad_a = None
        # a was broadcast: its gradient is the sum over what it was broadcast to
        if want_a and grads[0].shape == a.shape:
            grad_a = grads[0]
        elif want_a:
            grad_a = grads[0].reshape(h.shape[:-2] + grads[0].shape[1:]).sum_to_size(a.shape)
        grad_b = grads[1].view(h.shape) if want_b else None
        return grad_a, grad_b, grads[2].view(h0.shape) if want_h0 else None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, tuple[int, int]]:
        """A mapped dimension is one more batch dimension."""
        a, *others = (
            None if x is None else x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(arguments[:4], in_dims[:4], strict=True)
        )
        b, h0, lengths = (None if x is None else x.expand(info.batch_size, *x.shape[1:]) for x in others)
        assert a is not None
        assert b is not None
        a = a.reshape(a.shape[:1] + (1,) * (b.ndim - a.ndim) + a.shape[1:])
        return _Scan.apply(a, b, h0, lengths, *arguments[4:]), (0, 0)


def _check(a: object, b: object, h0: object, check_finite: bool) -> None:
    a = checks.tensor("scan", "a", a, _DTYPES)
    b = checks.tensor("scan", "b", b, _DTYPES)
    if b.ndim < 2:
        raise ShapeError(f"scan: expected b of shape (*batch, time, channels), got {tuple(b.shape)}")
    checks.addressable("scan", "b", b.shape, 16)
    fits = a.ndim <= b.ndim and all(x in (1, y) for x, y in zip(reversed(a.shape), reversed(b.shape), strict=False))
    if not fits:
        raise ShapeError(
            f"scan: expected a of shape ({b.shape[-1]},) (constant in time) or of one that broadcasts to b's "
            f"{tuple(b.shape)}, got {tuple(a.shape)}"
        )
    if h0 is not None:
        h0 = checks.tensor("scan", "h0", h0, _DTYPES)
        checks.shape("scan", "h0", h0, b.shape[:-2] + b.shape[-1:], "b's without the time")
        dtype = _state_dtype(a, b)
        if torch.promote_types(h0.dtype, dtype) != dtype:
            raise DtypeError(
                f"scan: expected h0 in {dtype} or below (a is {a.dtype}, b is {b.dtype}), got {h0.dtype}; "
                "convert h0, or a or b"
            )
    checks.same_device("scan", a=a, b=b, h0=h0)
    if check_finite:
        checks.finite("scan", a=a, b=b, h0=h0)


def _state_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    dtype = torch.promote_types(a.dtype, b.dtype)
    return torch.float32 if dtype in checks.HALF else dtype


def scan(
    a: Shaped[Tensor, "*broadcast"],
    b: Shaped[Tensor, "*batch time channels"],
    h0: Shaped[Tensor, "*sequences channels"] | None = None,
    *,
    reverse: bool = False,
    lengths: Int64[Tensor, "*batch"] | None = None,
    resets: Bool[Tensor, "*batch time"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: Backend = "auto",
    check_finite: bool = False,
) -> tuple[Shaped[Tensor, "*batch time channels"], Shaped[Tensor, "*sequences channels"]]:
    """The linear recurrence over time, real or complex: the states of all steps and the final one.

    h_t = a_t h_{t-1} + b_t from h0; in reverse h_t = a_t h_{t+1} + b_t from the end, and the final state is the one at
    the first step.

    Args:
        a: factors: (channels,) where they are constant in time, or any shape that broadcasts to b's; constant where its
            time dimension is 1.
        b: inputs (*batch, time, channels), with any number of batch dimensions.
        h0: state before the first step (*batch, channels); None is zero.
        reverse: run from the last step to the first.
        lengths: int64 (*batch,): row i has lengths[i] steps. Outputs after its end are 0, the final state is the one at
            its end, and a reverse scan starts there.
        resets: bool (*batch, time): the state before a marked step is zero, where "before" is in the order of the run;
            marks after a row's end are not read. Equal to running the pieces apart.
        cu_seqlens: int64 or int32 (sequences + 1,): sequence i has the steps cu_seqlens[i] to cu_seqlens[i + 1] of a
            batch of one row; initial and final states then have one entry for each sequence. Instead of lengths.
        backend: "native" (C++ on a CPU), "triton" (on a GPU), "chunked" (torch, any device), "reference" (plain loop),
            or "auto"; `choose` tells what "auto" takes.
        check_finite: refuse NaN and infinity in a, b and h0.

    Returns:
        h (*batch, time, channels) and the final state (*batch, channels). Everything is differentiable, the final state
        included, twice if need be.

    Raises:
        ShapeError: tensors that do not fit each other, or `cu_seqlens` with a batch of several rows.
        DtypeError: what is not a tensor, or has a dtype other than those below.
        UnknownNameError: an unknown backend.
        BackendError: a backend that is not installed or not for the device of b.
        ArgumentError: lengths or bounds outside the time steps, tensors on different devices, or NaN and infinity with
            `check_finite`.

    Dtypes: float32, float64, complex64, complex128; a and b are promoted together (a real a with a complex b is
    converted). bfloat16 and float16 are computed in float32: h comes back in the input dtype, the final state in
    float32.

    Memory of a training step: a, b, h0, their gradients and h; where a is broadcast over rows or channels but varies in
    time, one more array of b's size for its gradient before the sum.

    Accuracy: the native backend keeps its states in float64 whatever the dtype, so a float32 result is as good as
    rounding it once (|a| -> 1 over 131072 steps: 1e-7; a float32 loop drifts by 1e-5).

    Example:
        >>> import torch, holdfast
        >>> h, last = holdfast.kernels.scan(torch.tensor([0.5]), torch.ones(1, 3, 1))
        >>> h.flatten().tolist(), last.tolist()
        ([1.0, 1.5, 1.75], [[1.75]])
    """
    checks.flags("scan", reverse=reverse, check_finite=check_finite)
    if cu_seqlens is not None or (resets is not None and not takes_resets(b, backend, "scan")):
        cuts = segments.Cuts(lengths, resets, cu_seqlens, reverse)
        return _scan_pieces(a, b, h0, cuts, backend=backend, check_finite=check_finite)
    _check(a, b, h0, check_finite)
    name, _ = choose(b.device, backend, function="scan")
    if lengths is not None:
        checks.lengths("scan", lengths, b.shape[:-2], b.shape[-2], b.device, backend=name)
    outputs = torch.promote_types(a.dtype, b.dtype)
    dtype = _state_dtype(a, b)
    if name == "triton":
        if resets is not None:
            checks.resets("scan", resets, b.shape[:-1], b.device)
        return _scan_on_gpu(in_dtype(a, dtype), in_dtype(b, outputs), in_dtype(h0, dtype), lengths, resets, reverse)
    a, b, h0 = in_dtype(a, dtype), in_dtype(b, dtype), in_dtype(h0, dtype)
    if name == "reference":
        h, last = scan_reference(a, b, h0, reverse=reverse, lengths=lengths)
    else:
        autograd.refuse_tangents("scan", name, a, b, h0)
        h, last = autograd.apply(_Scan, a, b, h0, lengths, bool(reverse), name)
    return in_dtype(h, outputs), last


def _scan_on_gpu(
    a: Tensor, b: Tensor, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, reverse: bool
) -> tuple[Tensor, Tensor]:
    """`scan` by Triton, which reads half precision as it is and takes resets as a mask."""
    h, last = scan_gpu(
        _factors(a, b.shape), _flat(b, 2), None if h0 is None else _flat(h0, 1),
        lengths=None if lengths is None else _flat(lengths, 0), resets=None if resets is None else _flat(resets, 1),
        reverse=reverse,
    )  # fmt: skip
    return h.view(b.shape), last.view(b.shape[:-2] + b.shape[-1:])


def _scan_pieces(a: Tensor, b: Tensor, h0: Tensor | None, cuts: segments.Cuts, **how: Any) -> tuple[Tensor, Tensor]:
    """`scan` of rows that are cut; factors that differ from step to step or from row to row are cut as b is."""
    lengths, resets, cu_seqlens, reverse = cuts
    _check(a, b, h0 if cu_seqlens is None else None, False)
    if lengths is not None:
        checks.lengths("scan", lengths, b.shape[:-2], b.shape[-2], b.device)
        lengths = _flat(lengths, 0)
    if resets is not None:
        checks.resets("scan", resets, b.shape[:-1], b.device)
        resets = _flat(resets, 1)
    rows = {"b": _flat(b, 2)}
    if a.shape[:-1].numel() != 1:  # 0 too: of no steps
        rows["a"] = a.expand(b.shape).reshape(rows["b"].shape)

    def run(b: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
        return scan(rest[0] if "a" in rows else a.flatten(), b, rest[-2], reverse=reverse, lengths=rest[-1], **how)

    # what cannot be flattened is left to in_pieces, which says what is wrong with it
    state = _flat(h0, 1) if isinstance(h0, Tensor) and h0.layout is torch.strided else h0
    h, last = segments.in_pieces("scan", run, rows, state, segments.Cuts(lengths, resets, cu_seqlens, reverse))
    return h.view(b.shape), last if cu_seqlens is not None else last.view(*b.shape[:-2], b.shape[-1])
