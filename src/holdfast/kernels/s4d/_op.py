"""The public S4D layer: checks its arguments, chooses a backend and an algorithm, and owns the gradients."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from holdfast.errors import ArgumentError, DtypeError, ShapeError, unknown_name
from holdfast.kernels._common import autograd, checks, segments
from holdfast.kernels._common.backends import Backend, takes_resets
from holdfast.kernels._common.calls import in_dtype
from holdfast.kernels.s4d import _native  # noqa: F401  (defines torch.ops.holdfast.s4d_*)
from holdfast.kernels.s4d._choice import Algorithm, Choice, choose
from holdfast.kernels.s4d._chunked import s4d_chunked
from holdfast.kernels.s4d._reference import DISCRETIZATIONS, Discretization, S4DForm, S4DInputs, s4d_reference

_WEIGHTS = 7  # u, dt, lam_re, lam_im, c_re, c_im, d
_TENSORS = 9  # these, lengths and h0
_CHECKED = (*S4DInputs._fields[1:_WEIGHTS], "h0")  # the names of what is checked against u


class _S4D(torch.autograd.Function):
    """Saves, beside its arguments, the discrete modes and the states at tiles (scan) or the impulse response (fft).

    A state for each tile of 128 steps is modes / 64 numbers for each one of u; all states would be 2 modes.
    """

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        *inputs, h0, algorithm, bilinear, reverse, state = arguments
        if algorithm == "fft":
            return torch.ops.holdfast.s4d_fft_forward(*inputs, bilinear, reverse, state, True)
        return torch.ops.holdfast.s4d_scan_forward(*inputs, h0, bilinear, reverse, state, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, last, modes, saved = output
        ctx.algorithm, ctx.bilinear, ctx.reverse, ctx.state = inputs[_TENSORS:]
        # an empty tensor stands for a state that was not asked for, and must not ask for a gradient
        ctx.mark_non_differentiable(*((modes, saved) if ctx.state else (last, modes, saved)))
        ctx.save_for_backward(*inputs[:_TENSORS], modes, saved)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        grad_last = grad_last if ctx.state else None  # a compiler gives zeros for a state that was not computed
        if grad_y is None and grad_last is None:
            return (None,) * len(ctx.needs_input_grad)
        *inputs, modes, saved = ctx.saved_tensors
        need, choices = ctx.needs_input_grad, (ctx.bilinear, ctx.reverse)
        if autograd.again():
            outputs = s4d_chunked(S4DInputs(*inputs[:-1]), inputs[-1], S4DForm(*choices))
            grads = autograd.differentiable_gradients(outputs, (grad_y, grad_last), inputs, need)
        elif ctx.algorithm == "fft" and grad_last is None and grad_y is not None:
            grads = torch.ops.holdfast.s4d_fft_backward(*inputs[:-1], *choices, modes, saved, grad_y)
        else:
            if ctx.algorithm == "fft":  # the gradient of the final state needs the states at tiles, which fft has not
                _, _, modes, saved = torch.ops.holdfast.s4d_scan_forward(*inputs, *choices, False, True)
            grads = torch.ops.holdfast.s4d_scan_backward(*inputs, *choices, modes, saved, grad_y, grad_last)
        of_weights = [g if n else None for g, n in zip(grads[:_WEIGHTS], need[:_WEIGHTS], strict=True)]
        return (*of_weights, None, grads[-1] if need[_WEIGHTS + 1] else None, None, None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
        """Runs mapped calls one after another; what is saved has the size of each."""
        return autograd.one_by_one(_S4D, info, in_dims, arguments)


def _check_shapes(u: Tensor, others: dict[str, Any]) -> None:
    lam_re, lam_im, c_im = others["lam_re"], others["lam_im"], others["c_im"]
    checks.ndim("s4d", "u", u, "batch time features")
    checks.ndim("s4d", "lam_re", lam_re, "features modes")
    (batch, _, features), modes = u.shape, lam_re.shape[1]
    if modes == 0:
        raise ShapeError(f"s4d: expected at least one mode, got lam_re of shape {tuple(lam_re.shape)}")
    if (lam_im is None) != (c_im is None):
        given, missing = ("c_im", "lam_im") if lam_im is None else ("lam_im", "c_im")
        raise ArgumentError(f"s4d: got {given} without {missing}; give both (complex modes) or neither (real ones)")
    pair, parts = ((), "") if lam_im is None else ((2,), ", real and imaginary part")
    of_feature, of_mode = ((features,), "u's features"), ((features, modes), "lam_re's")
    expected = {
        "dt": of_feature, "lam_re": ((features, modes), "u's features by modes"), "lam_im": of_mode, "c_re": of_mode,
        "c_im": of_mode, "d": of_feature,
        "h0": ((batch, features, modes, *pair), "batch, features, modes" + parts),
    }  # fmt: skip
    checks.shapes("s4d", others, expected)
    checks.addressable("s4d", "u", u.shape, 64)
    checks.addressable("s4d", "the states of all tiles", (*u.shape, modes), 64)


def _check_dtypes(dtype: torch.dtype, tensors: dict[str, Any]) -> None:
    """Weights and states come in u's precision, or below float32 with a u that is computed in float32."""
    allowed = (torch.float64,) if dtype == torch.float64 else (torch.float32, *checks.HALF)
    for name, value in tensors.items():
        if value is None and name in ("lam_im", "c_im", "d", "h0"):
            continue
        if checks.tensor("s4d", name, value, checks.FLOATS).dtype not in allowed:
            raise DtypeError(
                f"s4d: expected {name} in {dtype}, the precision that u is computed in, "
                f"got {checks.describe(value)}; convert {name}, or u"
            )


def s4d(
    u: Float[Tensor, "batch time features"],
    dt: Float[Tensor, " features"],
    lam_re: Float[Tensor, "features modes"],
    lam_im: Float[Tensor, "features modes"] | None,
    c_re: Float[Tensor, "features modes"],
    c_im: Float[Tensor, "features modes"] | None,
    d: Float[Tensor, " features"] | None = None,
    h0: Float[Tensor, "sequences features modes *pair"] | None = None,
    *,
    discretization: Discretization = "zoh",
    lengths: Int64[Tensor, " batch"] | None = None,
    resets: Bool[Tensor, "batch time"] | None = None,
    cu_seqlens: Int[Tensor, " bounds"] | None = None,
    reverse: bool = False,
    return_state: bool = True,
    algorithm: Algorithm = "auto",
    backend: Backend = "auto",
) -> tuple[Float[Tensor, "batch time features"], Float[Tensor, "sequences features modes *pair"] | None]:
    """A diagonal state-space layer (S4D) over time: the outputs and the final state.

    Each feature has its own modes and step:
    dh/dt = lam h + u, discretized with the feature's dt into h_t = a h_{t-1} + b u_t, and y_t = 2 Re(c h_t) + d u_t
    with complex modes, which stand for conjugate pairs, or y_t = c h_t + d u_t with real ones. "zoh": a = exp(dt lam),
    b = (a - 1) / lam; "bilinear": a = (1 + dt lam / 2) / (1 - dt lam / 2), b = dt / (1 - dt lam / 2). Gu et al., "On
    the parameterization and initialization of diagonal state space models" (2022), section 3.1.

    Args:
        u: inputs (batch, time, features).
        dt: step of each feature (features,).
        lam_re: real parts of the continuous-time eigenvalues (features, modes).
        lam_im: their imaginary parts (features, modes), or None for real modes.
        c_re: real parts of the output weights (features, modes).
        c_im: their imaginary parts (features, modes), or None for real modes.
        d: direct path (features,), or None.
        h0: state before the first step (batch, features, modes), with a last dimension of 2, real and imaginary part,
            for complex modes; None is zero.
        discretization: "zoh" (input held over a step) or "bilinear", as above.
        lengths: int64 (batch,): row i has lengths[i] steps. Outputs after its end are 0, the final state is the one at
            its end.
        resets: bool (batch, time): the state before a marked step is zero, where "before" is in the order of the run;
            marks after a row's end are not read. Equal to running the pieces apart.
        cu_seqlens: int64 or int32 (sequences + 1,): sequence i has the steps cu_seqlens[i] to cu_seqlens[i + 1] of a
            batch of one row; initial and final states then have one entry for each sequence. Instead of lengths.
        reverse: run from a row's end to its first step.
        return_state: whether the final state is wanted; otherwise the second output is None.
        algorithm: of the native backend: "scan" goes step by step and takes an initial state, "fft" convolves with the
            impulse response; "auto" takes the faster one, and `choose` tells which and why.
        backend: as in `scan`.

    Returns:
        y (batch, time, features) and the final state, shaped like h0, or None without `return_state`. Everything is
        differentiable, the final state included, twice if need be.

    Raises:
        ShapeError: tensors that do not fit each other, or `cu_seqlens` with a batch of several rows.
        DtypeError: what is not a tensor, or has a precision other than u's.
        UnknownNameError: an unknown discretization, algorithm or backend.
        BackendError: a backend that is not installed or not for the device of u.
        ArgumentError: only one of lam_im and c_im, an algorithm that does not suit backend or h0, lengths or bounds outside the
            time steps, or tensors on different devices.

    Dtypes: float32 and float64, all tensors in one; bfloat16 and float16 are computed in float32, y comes back in u's
    dtype and the state in float32.

    Rows and features never mix, whatever one of them holds. Within one row and feature "fft" rounds relative to the
    largest of its inputs, at earlier steps too, and an infinite input makes all its steps NaN: where that matters, ask
    for algorithm="scan".

    Example:
        >>> import torch, holdfast
        >>> u, one = torch.tensor([[[1.0], [0.0], [0.0]]]), torch.ones(1, 1)
        >>> y, last = holdfast.kernels.s4d(u, torch.tensor([0.5]), -one, None, one, None)  # one real mode, rate -1
        >>> [round(v, 3) for v in y.flatten().tolist()]  # (1 - e^{-0.5}) e^{-0.5 t}
        [0.393, 0.239, 0.145]
    """
    weights = (dt, lam_re, lam_im, c_re, c_im, d)
    if cu_seqlens is not None or (resets is not None and not takes_resets(u, backend, "s4d")):
        checks.flags("s4d", reverse=reverse)
        return segments.in_pieces(
            "s4d",
            lambda u, h0, lengths: s4d(
                u, *weights, h0, discretization=discretization, lengths=lengths, reverse=reverse,
                return_state=return_state, algorithm=algorithm, backend=backend,
            ),
            {"u": u}, h0, segments.Cuts(lengths, resets, cu_seqlens, reverse),
        )  # fmt: skip
    inputs = S4DInputs(u, *weights, lengths)
    dtype = _check(inputs, h0)
    checks.flags("s4d", reverse=reverse, return_state=return_state)
    if not isinstance(discretization, str) or discretization not in DISCRETIZATIONS:
        raise unknown_name("discretization", discretization, DISCRETIZATIONS)
    batch, time, features = u.shape
    chosen = choose(
        batch, time, features, lam_re.shape[1], complex_modes=lam_im is not None, initial_state=h0 is not None,
        return_state=return_state, device=u.device, algorithm=algorithm, backend=backend,
    )  # fmt: skip
    if lengths is not None:
        checks.lengths("s4d", lengths, u.shape[:1], time, u.device, backend=chosen.backend)
    # as a rule nothing is to be converted, and a second tuple of inputs would take 4 us
    if any([x is not None and x.dtype is not dtype for x in inputs[:_WEIGHTS]]):
        converted: list[Any] = [*(in_dtype(x, dtype) for x in inputs[:_WEIGHTS]), lengths]
        inputs = S4DInputs(*converted)
    form = S4DForm(discretization == "bilinear", reverse)
    if resets is not None:
        checks.resets("s4d", resets, u.shape[:2], u.device)
    y, last = _run(inputs, in_dtype(h0, dtype), form, chosen, return_state, resets)
    return in_dtype(y, u.dtype), last if return_state else None


def _check(inputs: S4DInputs, h0: Tensor | None) -> torch.dtype:
    """The dtype to compute in, after a check of the tensors."""
    u = checks.tensor("s4d", "u", inputs.u, checks.FLOATS)
    dtype = torch.float64 if u.dtype == torch.float64 else torch.float32
    others = dict(zip(_CHECKED, (*inputs[1:_WEIGHTS], h0), strict=True))
    _check_dtypes(dtype, others)
    _check_shapes(u, others)
    checks.same_device("s4d", u=u, **others)
    return dtype


def _run(
    inputs: S4DInputs, h0: Tensor | None, form: S4DForm, chosen: Choice, state: bool, resets: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Hands a checked call to its backend; resets only come to "triton"."""
    if chosen.backend in ("chunked", "triton"):
        return s4d_chunked(inputs, h0, form, "triton" if chosen.backend == "triton" else "chunked", resets)
    if chosen.backend == "reference":
        kind: Discretization = "bilinear" if form.bilinear else "zoh"
        tensors: list[Any] = [*inputs[:-1], h0]
        return s4d_reference(*tensors, discretization=kind, lengths=inputs.lengths, reverse=form.reverse)
    autograd.refuse_tangents("s4d", chosen.backend, *inputs[:-1], h0)
    y, last, *_ = autograd.apply(_S4D, *inputs, h0, chosen.algorithm, *form, state)
    return y, last
