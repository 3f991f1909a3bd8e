"""The public causal convolution: checks its arguments, chooses a backend and owns the gradients."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import autograd, checks, segments
from holdfast.kernels._common.backends import Backend, choose, takes_resets
from holdfast.kernels._common.calls import in_dtype
from holdfast.kernels.causal_conv import _native as native
from holdfast.kernels.causal_conv._gpu import causal_conv_gpu
from holdfast.kernels.causal_conv._reference import ConvCall, causal_conv_reference, reach_of

_FLOATS = 4  # x, weight, bias, state


class _CausalConv(torch.autograd.Function):
    """Saves its arguments and nothing else."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        return torch.ops.holdfast.causal_conv_forward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[: _FLOATS + 1])
        ctx.silu = inputs[-1]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
        need = ctx.needs_input_grad
        if grad_y is None and grad_last is None:
            return (None,) * len(need)
        inputs = ctx.saved_tensors
        if autograd.again():
            *tensors, lengths = inputs
            outputs = causal_conv_reference(*tensors, silu=ctx.silu, lengths=lengths)
            grads = autograd.differentiable_gradients(outputs, (grad_y, grad_last), tensors, need)
        else:
            grads = torch.ops.holdfast.causal_conv_backward(*inputs, ctx.silu, grad_y, grad_last)
        return (*(g if n else None for g, n in zip(grads, need[:_FLOATS], strict=True)), None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Runs mapped calls one after another."""
        return autograd.one_by_one(_CausalConv, info, in_dims, arguments)


def causal_conv(
    x: Float[Tensor, "batch time channels"],
    weight: Float[Tensor, "channels taps"],
    bias: Float[Tensor, " channels"] | None = None,
    state: Float[Tensor, "sequences channels memory"] | None = None,
    *,
    silu: bool = False,
    lengths: Int64[Tensor, " batch"] | None = None,
    resets: Bool[Tensor, "batch time"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time channels"], Float[Tensor, "sequences channels memory"]]:
    """The short causal convolution of each channel with its own taps, and the inputs that the next call continues from.

    y_t = bias + sum over k of weight_k x_{t - K + 1 + k}, k from 0 to K - 1, then silu where asked for: the convolution
    before the selective scan in Mamba (Gu and Dao, 2023, figure 3).

    Args:
        x: inputs (batch, time, channels).
        weight: taps (channels, K), the last for the present input.
        bias: (channels,), or None.
        state: the K - 1 inputs before the first step (batch, channels, K - 1), the oldest first; None is zero.
        silu: whether outputs go through silu(v) = v sigmoid(v).
        lengths: int64 (batch,): row i has lengths[i] steps. Outputs after its end are 0, and its final state is the one
            at its end.
        resets: bool (batch, time): the inputs before a marked step are taken as zero; marks after a row's end are not
            read. Equal to running the pieces apart.
        cu_seqlens: int64 or int32 (sequences + 1,): sequence i has the steps cu_seqlens[i] to cu_seqlens[i + 1] of a
            batch of one row; initial and final states then have one entry for each sequence. Instead of lengths.
        backend: as in `scan`; "chunked" and "reference" are torch's own operators.

    Returns:
        y (batch, time, channels) and the last K - 1 inputs, shaped like `state`. Everything is differentiable, the final
        state included, twice if need be.

    Raises:
        ShapeError: tensors that do not fit each other, or `cu_seqlens` with a batch of several rows.
        DtypeError: what is not a tensor, or has a dtype other than those below.
        UnknownNameError: an unknown backend.
        BackendError: a backend that is not installed or not for the device of x.
        ArgumentError: lengths or bounds outside the time steps, or tensors on different devices.

    Dtypes: float32 and float64, promoted together; bfloat16 and float16 are computed in float32, y comes back in x's
    dtype and the state in float32.

    Example:
        >>> import torch, holdfast
        >>> x, weight = torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[0.5, 1.0]])
        >>> y, last = holdfast.kernels.causal_conv(x, weight)  # y_t = 0.5 x_{t-1} + x_t
        >>> y.flatten().tolist(), last.flatten().tolist()
        ([1.0, 2.5, 4.0], [3.0])
    """
    if cu_seqlens is not None or (resets is not None and not takes_resets(x, backend, "causal_conv")):
        return segments.in_pieces(
            "causal_conv",
            lambda x, state, lengths: causal_conv(
                x, weight, bias, state, silu=silu, lengths=lengths, backend=backend
            ),
            {"x": x}, state, segments.Cuts(lengths, resets, cu_seqlens, False),
        )  # fmt: skip
    return _run(ConvCall(x, weight, bias, state, lengths, silu), backend, resets)


def _check(call: ConvCall) -> None:
    x, weight = call.x, call.weight
    given = {"x": x, "weight": weight, "bias": call.bias, "state": call.state}
    checks.tensors("causal_conv", given, checks.FLOATS, ("bias", "state"))
    checks.ndim("causal_conv", "x", x, "batch time channels")
    checks.ndim("causal_conv", "weight", weight, "channels taps")
    (batch, _, channels), taps = x.shape, weight.shape[1]
    if taps == 0:
        raise ShapeError(
            f"causal_conv: expected weight (channels, taps) with taps >= 1, got shape {tuple(weight.shape)}"
        )
    expected = {
        "weight": ((channels, taps), "x's channels by taps"), "bias": ((channels,), "x's channels"),
        "state": ((batch, channels, taps - 1), "batch, channels, taps less one"),
    }  # fmt: skip
    checks.shapes("causal_conv", given, expected)
    checks.addressable("causal_conv", "x", (*x.shape, taps), 8)
    checks.same_device("causal_conv", **given)
    checks.flags("causal_conv", silu=call.silu)


def _run(call: ConvCall, backend: Backend, resets: Tensor | None) -> tuple[Tensor, Tensor]:
    """Checks the call, brings it to one dtype and hands it to the backend."""
    _check(call)
    *given, lengths, silu = call
    name, _ = choose(call.x.device, backend, function="causal_conv")
    dtype = checks.promoted(given)
    tensors: list[Any] = [in_dtype(t, dtype) for t in given]
    converted = [*tensors, lengths, silu]
    # torch's operators export to ONNX and follow tangents; the kernel does neither
    if backend == "auto" and (torch.compiler.is_exporting() or autograd.has_tangent(*tensors)):
        name = "chunked"
    if lengths is not None:
        checks.lengths("causal_conv", lengths, call.x.shape[:1], call.x.shape[1], call.x.device, backend=name)
    if resets is not None:
        checks.resets("causal_conv", resets, call.x.shape[:2], call.x.device)
    if name == "triton":
        autograd.refuse_tangents("causal_conv", name, *tensors)
        if call.x.dtype in checks.HALF and dtype == torch.float32:
            converted[0] = call.x  # which the kernel reads as it is
        y, last = causal_conv_gpu(ConvCall(*converted), resets)
    elif name in ("reference", "chunked"):
        reach = None if resets is None else reach_of(resets)
        y, last = causal_conv_reference(*tensors, silu=silu, lengths=lengths, reach=reach)
    elif autograd.untracked(*tensors, lengths):
        y, last = native.causal_conv_forward(ConvCall(*converted))
    else:
        autograd.refuse_tangents("causal_conv", name, *tensors)
        y, last = autograd.apply(_CausalConv, *converted)
    return in_dtype(y, call.x.dtype if call.x.dtype in checks.HALF else dtype), last
