"""The public linear recurrent unit: checks its arguments, chooses a backend and owns the gradients."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import autograd, checks, segments
from holdfast.kernels._common.backends import Backend, choose, takes_resets
from holdfast.kernels._common.calls import in_dtype
from holdfast.kernels.lru import _native  # noqa: F401  (defines torch.ops.holdfast.lru_*)
from holdfast.kernels.lru._chunked import lru_chunked
from holdfast.kernels.lru._gpu import lru_gpu
from holdfast.kernels.lru._reference import LRUCall, lru_reference


class _LRU(torch.autograd.Function):
    """Saves the states beside its arguments: recomputing them would take a product and a scan."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.holdfast.lru_forward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:8], output[1])
        ctx.reverse = inputs[8]
        # None for an unused output: zeros of y's size would be filled, and multiplied through
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor | None, _: Tensor | None, grad_last: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *tensors, h = ctx.saved_tensors
        need = ctx.needs_input_grad
        if grad_y is None and grad_last is None:
            return (None,) * 9
        if autograd.again():
            call = [*tensors, ctx.reverse]
            outputs = lru_chunked(LRUCall(*call))
            grads = autograd.differentiable_gradients(outputs, (grad_y, grad_last), tensors[:7], need)
            return (*grads, None, None)
        # both parts of the eigenvalues come in one planar gradient
        wanted = [need[0], need[1] or need[2], *need[3:7]]
        u, lam, b, c, d, h0 = torch.ops.holdfast.lru_backward(*tensors, ctx.reverse, h, grad_y, grad_last, wanted)
        states = tensors[1].shape[0]
        grads = (u, lam[:states], lam[states:], b, c, d, h0)
        return (*(grad if want else None for grad, want in zip(grads, need, strict=False)), None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, tuple[int, int, int]]:
        """Mapped inputs and states are more rows of the batch; mapped weights are run one after another."""
        moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(arguments[:8], in_dims[:8], strict=True)]
        mapped = [dim is not None for dim in in_dims[:8]]
        size = info.batch_size
        if any(mapped[1:6]):
            runs = [
                _LRU.apply(*(x[i] if m else x for x, m in zip(moved, mapped, strict=True)), arguments[8])
                for i in range(size)
            ]
            return tuple(torch.stack(parts) for parts in zip(*runs, strict=True)), (0, 0, 0)
        for place in (0, 6, 7):
            x = moved[place]
            if x is not None:
                rows = x if mapped[place] else x.unsqueeze(0).expand(size, *x.shape)
                moved[place] = rows.reshape(-1, *rows.shape[2:])
        outputs = _LRU.apply(*moved, arguments[8])
        return tuple(x.unflatten(0, (size, x.shape[0] // size)) for x in outputs), (0, 0, 0)


def _check(lru: LRUCall) -> None:
    u, lam_re, lam_im, b, c, d, h0, *_ = lru
    given = dict(zip(LRUCall._fields[:7], lru[:7], strict=True))
    checks.tensors("lru", given, checks.FLOATS, ("lam_im", "d", "h0"))
    checks.ndim("lru", "u", u, "batch time inputs")
    checks.addressable("lru", "u", u.shape, 8)
    checks.ndim("lru", "lam_re", lam_re, "states")
    planar = lam_re.shape[0]
    width = f"N = {planar} states, real without lam_im"
    if lam_im is not None:
        checks.shape("lru", "lam_im", lam_im, lam_re.shape, "lam_re's")
        planar, width = 2 * planar, f"2N numbers for N = {planar} complex states, real parts first"
    checks.shape("lru", "b", b, (planar, u.shape[2]), f"{width}, by u's features")
    if c.ndim != 2 or c.shape[1] != planar:
        raise ShapeError(f"lru: expected c of shape (outputs, {planar}) ({width}), got {tuple(c.shape)}")
    checks.addressable("lru", "the states", (*u.shape[:2], planar), 8)
    checks.addressable("lru", "the outputs", (*u.shape[:2], c.shape[0]), 8)
    if d is not None:
        checks.shape("lru", "d", d, (c.shape[0],), "one for each output")
        if c.shape[0] != u.shape[2]:
            raise ShapeError(
                f"lru: d multiplies u_t elementwise, so outputs must equal inputs, got {c.shape[0]} outputs (c) and "
                f"{u.shape[2]} inputs (u); leave d out, or change c"
            )
    if h0 is not None:
        checks.shape("lru", "h0", h0, (u.shape[0], planar), f"u's batch by {width}")
    checks.same_device("lru", **given)


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    # the state is float32 or better whatever the surroundings, and bfloat16 products die on some CPUs
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def lru(
    u: Float[Tensor, "batch time inputs"],
    lam_re: Float[Tensor, " states"],
    lam_im: Float[Tensor, " states"] | None,
    b: Float[Tensor, "planar inputs"],
    c: Float[Tensor, "outputs planar"],
    d: Float[Tensor, " outputs"] | None = None,
    h0: Float[Tensor, "sequences planar"] | None = None,
    *,
    lengths: Int64[Tensor, " batch"] | None = None,
    resets: Bool[Tensor, "batch time"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    reverse: bool = False,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time outputs"], Float[Tensor, "sequences planar"]]:
    """A linear recurrent unit over time: a complex diagonal recurrence between two matrix products.

    h_t = lam h_{t-1} + B u_t, y_t = Re(C h_t) + d u_t; in reverse h_t = lam h_{t+1} + B u_t. Orvieto et al.,
    "Resurrecting recurrent neural networks for long sequences" (2023), eq. 3-4, without its parameterization: lam are
    the eigenvalues themselves, and b holds any normalization of the input.

    Complex numbers are planar: all real parts and then all imaginary ones, 2N numbers in a row for N states. Where
    lam_im is None the recurrence is real and 2N becomes N.

    Args:
        u: inputs (batch, time, inputs).
        lam_re: real parts of the eigenvalues (N,).
        lam_im: their imaginary parts (N,), or None for real eigenvalues.
        b: input weights (2N, inputs), rows [Re B | Im B].
        c: output weights (outputs, 2N) with y = c [Re h | Im h], so that its right half is -Im C.
        d: direct path (outputs,), feature by feature; needs as many outputs as inputs. None is no direct path.
        h0: state before the first step (batch, 2N); None is zero.
        lengths: int64 (batch,): row i has lengths[i] steps. Outputs after its end are 0, the final state is the one at
            its end, and a reverse run starts there.
        resets: bool (batch, time): the state before a marked step is zero, where "before" is in the order of the run;
            marks after a row's end are not read. Equal to running the pieces apart.
        cu_seqlens: int64 or int32 (sequences + 1,): sequence i has the steps cu_seqlens[i] to cu_seqlens[i + 1] of a
            batch of one row; initial and final states then have one entry for each sequence. Instead of lengths.
        reverse: run from the last step to the first.
        backend: as in `scan`; `choose` tells what "auto" takes.

    Returns:
        y (batch, time, outputs) and the final state (batch, 2N). Everything is differentiable, the final state included,
        twice if need be.

    Raises:
        ShapeError: tensors that do not fit each other, or `cu_seqlens` with a batch of several rows.
        DtypeError: what is not a tensor, or has a dtype other than those below.
        UnknownNameError: an unknown backend.
        BackendError: a backend that is not installed or not for the device of u.
        ArgumentError: lengths or bounds outside the time steps, or tensors on different devices.

    Dtypes: float32 and float64, promoted together; bfloat16 and float16 are computed in float32, on a GPU with products in
    u's dtype around float64 states; y comes back in u's dtype and the final state in float32. Autocast is switched off inside.

    Memory of a training step: the arguments, y, their gradients and the states (batch, time, 2N); where inputs, outputs
    or 2N is no multiple of 16, one more buffer of the states' size in backward.

    Accuracy: the scan is float64 inside (see `scan`); matrix products round in the dtype, as torch's do.

    Example:
        >>> import torch, holdfast
        >>> u, one = torch.tensor([[[1.0], [0.0], [0.0]]]), torch.ones(1, 1)
        >>> y, last = holdfast.kernels.lru(u, torch.tensor([0.5]), None, one, one)  # one real state
        >>> y.flatten().tolist(), last.tolist()
        ([1.0, 0.5, 0.25], [[0.25]])
    """
    checks.flags("lru", reverse=reverse)
    if cu_seqlens is not None or (resets is not None and not takes_resets(u, backend, "lru")):
        weights = (lam_re, lam_im, b, c, d)
        return segments.in_pieces(
            "lru", lambda u, h0, lengths: lru(u, *weights, h0, lengths=lengths, reverse=reverse, backend=backend),
            {"u": u}, h0, segments.Cuts(lengths, resets, cu_seqlens, reverse),
        )  # fmt: skip
    return _run(LRUCall(u, lam_re, lam_im, b, c, d, h0, lengths, reverse), resets, backend)


def _run(lru: LRUCall, resets: Tensor | None, backend: Backend) -> tuple[Tensor, Tensor]:
    """Checks the call, brings it to one dtype and hands it to the backend."""
    _check(lru)
    *tensors, lengths, reverse = lru
    name, _ = choose(lru.u.device, backend, function="lru")
    if lengths is not None:
        checks.lengths("lru", lengths, lru.u.shape[:1], lru.u.shape[1], lru.u.device, backend=name)
    dtype = checks.promoted(tensors)
    arguments: list[Any] = [in_dtype(x, dtype) for x in tensors]
    converted = [*arguments, lengths, reverse]
    if resets is not None:
        checks.resets("lru", resets, lru.u.shape[:2], lru.u.device)
    if name != "native":
        with _without_autocast(lru.u.device):
            if name == "triton" and dtype == torch.float32:
                if lru.u.dtype in checks.HALF:
                    converted[0] = lru.u  # the products run in half precision, the scan reads it and has wider states
                y, last = lru_gpu(LRUCall(*converted), resets)
            elif name in ("chunked", "triton"):  # float64 on a GPU: torch's products around the scan
                y, last = lru_chunked(LRUCall(*converted), resets, "triton" if name == "triton" else "chunked")
            else:
                y, last = lru_reference(*arguments, lengths=lengths, reverse=reverse)
    else:
        autograd.refuse_tangents("lru", name, *arguments)
        y, _, last = autograd.apply(_LRU, *converted)
    return in_dtype(y, lru.u.dtype if lru.u.dtype in checks.HALF else dtype), last
