"""S4D in C++ by two algorithms, the fused scan and Fourier transforms, as torch.library ops.

All tensors are CPU tensors of one dtype, float32 or float64; strides are free.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import checks, library
from holdfast.kernels._common.backends import define
from holdfast.kernels._common.calls import call, dense, empty, present, sizes, verify
from holdfast.kernels.s4d._reference import S4DForm, S4DInputs

_WEIGHTS = (
    "dt",
    "lam_re",
    "lam_im",
    "c_re",
    "c_im",
    "skip",
)  # the names in C of what S4DInputs has between u and lengths


class Kept(NamedTuple):
    """What forward leaves for backward."""

    modes: Tensor  # a and b of each mode (features, modes, 4), float64 whatever u is: see csrc/s4d/modes.h
    saved: Tensor  # states at the beginning of each tile (scan), or the impulse response (fft), in C's own order


@functools.lru_cache(maxsize=16)
def _twiddles(time: int, dtype: torch.dtype) -> Tensor | None:
    """The table of transforms over `time` steps, bytes as C wrote them: 0.2 ms at 1,024 steps, so it is kept."""
    return call("s4d", "s4d_twiddles", dtype, time=time)


def _verify(inputs: S4DInputs) -> None:
    """A check of all that C relies on."""
    u, dt, lam_re, lam_im, c_re, c_im, _, lengths = inputs
    present("s4d", dt, c_re)
    batch, time, features = sizes("s4d", "u", u, "batch time features")
    _, modes = sizes("s4d", "lam_re", lam_re, "features modes")
    if modes == 0 or (lam_im is None) != (c_im is None):
        raise ShapeError(
            "s4d: expected at least one mode, and both imaginary parts or neither; call holdfast.kernels.s4d"
        )
    shapes = ((features,), *[(features, modes)] * 4, (features,))
    verify("s4d", u, *zip(inputs[1:-1], shapes, strict=True))
    if lengths is not None:
        checks.lengths("s4d", lengths, (batch,), time, u.device)


def _states(inputs: S4DInputs) -> tuple[int, ...]:
    """The shape of initial and final states."""
    return (inputs.u.shape[0], *inputs.lam_re.shape, *(() if inputs.lam_im is None else (2,)))


def _check_kept(kept: Kept, inputs: S4DInputs, count: int) -> None:
    present("s4d", *kept)
    verify("s4d", inputs.u, (kept.saved, (count,)))
    verify("s4d", kept.modes, (kept.modes, (*inputs.lam_re.shape, 4)), dtypes=(torch.float64,))


def _run(name: str, inputs: S4DInputs, form: S4DForm, **rest: Tensor | int | None) -> None:
    batch, time, features = inputs.u.shape
    call(
        "s4d", f"s4d_{name}", inputs.u.dtype, batch=batch, time=time, features=features,
        states=inputs.lam_re.shape[1], bilinear=form.bilinear, reverse=form.reverse, lengths=dense(inputs.lengths),
        u=dense(inputs.u), **{key: dense(w) for key, w in zip(_WEIGHTS, inputs[1:-1], strict=True)}, **rest,
    )  # fmt: skip


def lanes(dtype: torch.dtype) -> int:
    """Numbers in a vector of the native library that is in use."""
    return library.number("vector_bytes") // dtype.itemsize


def _vectors(u: Tensor) -> tuple[int, int, int]:
    """Vectors over features, vectors over rows, rows in a vector: Layout in csrc/s4d/lanes.h."""
    batch, _, features = u.shape
    # features fill the lanes of a vector; where they are fewer, rows of the batch are folded into the rest
    width = min(features, lanes(u.dtype))
    fold = lanes(u.dtype) // width
    return -(-features // width), -(-batch // fold), fold


def scan_saved(inputs: S4DInputs, initial: bool) -> int:
    """Numbers that the scan keeps for backward: the states at the beginning of each tile (128 steps)."""
    u, modes = inputs.u, inputs.lam_re.shape[1]
    if u.numel() == 0:
        return 0
    blocks, groups, fold = _vectors(u)
    # rows that share a vector and end apart have tiles apart: one more for each
    more = fold if initial and inputs.lengths is not None and fold > 1 else 0
    tiles = -(-u.shape[1] // library.number("s4d_tile_steps")) + more
    return blocks * groups * tiles * modes * 2 * lanes(u.dtype)


def fft_saved(inputs: S4DInputs) -> int:
    """Numbers that the transforms keep for backward: the impulse response, in whole blocks of steps."""
    u = inputs.u
    if u.numel() == 0:
        return 0
    together = library.number("s4d_kernel_steps")
    return _vectors(u)[0] * -(-u.shape[1] // together) * together * lanes(u.dtype)


def _room(u: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    # the same shapes serve the operator and its meta version, which has no memory
    return empty(shape, dtype) if u.device.type == "cpu" else u.new_empty(shape, dtype=dtype)


def _outputs(inputs: S4DInputs, state: bool, saved: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for y, the final states, the discrete modes and what backward needs."""
    u = inputs.u
    last = _states(inputs) if state else (0,)
    modes = _room(u, (*inputs.lam_re.shape, 4), torch.float64)
    return _room(u, u.shape, u.dtype), _room(u, last, u.dtype), modes, _room(u, (saved,), u.dtype)


def _gradients(inputs: S4DInputs, *others: Tensor | None) -> tuple[Tensor, ...]:
    """Room for the gradient of each input but lengths; empty for one that was not given."""
    u = inputs.u
    return tuple(_room(u, (0,) if x is None else x.shape, u.dtype) for x in (*inputs[:-1], *others))


def _places(grads: tuple[Tensor, ...], inputs: S4DInputs) -> dict[str, Tensor]:
    """The gradients of what was given, by their names in C."""
    names = ("u", *_WEIGHTS)
    return {f"grad_{key}": g for key, g, w in zip(names, grads, inputs[:-1], strict=True) if w is not None}


def _scan_forward(
    inputs: S4DInputs, h0: Tensor | None, form: S4DForm, state: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, the final states (if `state`), the discrete modes, and the states at tiles (if `save`), by the scan."""
    _verify(inputs)
    verify("s4d", inputs.u, (h0, _states(inputs)))
    y, last, modes, saved = _scan_forward_meta(inputs, h0, form, state, save)
    if y.numel() == 0:
        return y, last.zero_() if h0 is None or not state else last.copy_(h0), modes.zero_(), saved
    _run(
        "scan_forward", inputs, form, h0=dense(h0), y=y, last=last if state else None, modes=modes,
        saved=saved if save else None,
    )  # fmt: skip
    return y, last, modes, saved


def _scan_backward(
    inputs: S4DInputs, h0: Tensor | None, form: S4DForm, kept: Kept, grad_y: Tensor | None, grad_last: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, lam_re, lam_im, c_re, c_im, d and h0; empty for what was not given."""
    _verify(inputs)
    verify("s4d", inputs.u, (h0, _states(inputs)), (grad_y, inputs.u.shape), (grad_last, _states(inputs)))
    _check_kept(kept, inputs, scan_saved(inputs, h0 is not None))
    grads: Any = _gradients(inputs, h0)
    *of_inputs, of_h0 = grads
    if inputs.u.numel() == 0:
        for g in grads:
            g.zero_()
        return (*of_inputs, of_h0 if h0 is None or grad_last is None else of_h0.copy_(grad_last))
    _run(
        "scan_backward", inputs, form, initial=h0 is not None, modes=dense(kept.modes), saved=dense(kept.saved),
        grad_y=dense(grad_y), grad_last=dense(grad_last), grad_h0=None if h0 is None else of_h0,
        **_places(of_inputs, inputs),
    )  # fmt: skip
    return grads


def _fft_forward(inputs: S4DInputs, form: S4DForm, state: bool, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, the final states (if `state`), the discrete modes, and the impulse response (if `save`), by transforms."""
    _verify(inputs)
    y, last, modes, saved = _fft_forward_meta(inputs, form, state, save)
    if y.numel() == 0:
        return y, last.zero_(), modes.zero_(), saved
    _run(
        "fft_forward", inputs, form, y=y, last=last if state else None, modes=modes, saved=saved if save else None,
        twiddles=_twiddles(y.shape[1], y.dtype),
    )  # fmt: skip
    return y, last, modes, saved


def _fft_backward(
    inputs: S4DInputs, form: S4DForm, kept: Kept, grad_y: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, lam_re, lam_im, c_re, c_im and d; empty for what was not given."""
    present("s4d", grad_y)
    _verify(inputs)
    verify("s4d", inputs.u, (grad_y, inputs.u.shape))
    _check_kept(kept, inputs, fft_saved(inputs))
    grads: Any = _gradients(inputs)
    if grad_y.numel() == 0:
        for g in grads:
            g.zero_()
        return grads
    _run(
        "fft_backward", inputs, form, modes=dense(kept.modes), saved=dense(kept.saved),
        twiddles=_twiddles(grad_y.shape[1], grad_y.dtype), grad_y=dense(grad_y), **_places(grads, inputs),
    )  # fmt: skip
    return grads


def _scan_forward_meta(
    inputs: S4DInputs, h0: Tensor | None, form: S4DForm, state: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(inputs, state, scan_saved(inputs, h0 is not None) if save else 0)


def _fft_forward_meta(
    inputs: S4DInputs, form: S4DForm, state: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(inputs, state, fft_saved(inputs) if save else 0)


define("s4d_scan_forward", _scan_forward, _scan_forward_meta)
define("s4d_scan_backward", _scan_backward, lambda inputs, h0, *_: _gradients(inputs, h0))
define("s4d_fft_forward", _fft_forward, _fft_forward_meta)
define("s4d_fft_backward", _fft_backward, lambda inputs, *_: _gradients(inputs))
