"""S4D in C++ by two algorithms, the fused scan and Fourier transforms, as torch.library ops.

All tensors are CPU tensors of one dtype, float32 or float64; strides are free.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import checks, library
from holdfast.kernels._common.arguments import dense, present, sizes, verify
from holdfast.kernels._common.calls import call
from holdfast.kernels._common.memory import empty

Sequences = Float[Tensor, "batch time features"]
Features = Float[Tensor, " features"]
Modes = Float[Tensor, "features modes"]
States = Float[Tensor, "batch features modes *pair"]
Lengths = Int64[Tensor, " batch"]
Weights = tuple[Features, Modes, Modes | None, Modes, Modes | None, Features | None]  # dt, lam, c, d

_WEIGHTS = ("dt", "lam_re", "lam_im", "c_re", "c_im", "skip")
_INPUTS = "Tensor u, Tensor dt, Tensor lam_re, Tensor? lam_im, Tensor c_re, Tensor? c_im, Tensor? d, Tensor? lengths"
_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define(
    f"s4d_scan_forward({_INPUTS}, Tensor? h0, bool bilinear, bool reverse, bool state, bool save)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    f"s4d_scan_backward({_INPUTS}, Tensor? h0, bool bilinear, bool reverse, Tensor modes, Tensor saved,"
    " Tensor? grad_y, Tensor? grad_last) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    f"s4d_fft_forward({_INPUTS}, bool bilinear, bool reverse, bool state, bool save)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    f"s4d_fft_backward({_INPUTS}, bool bilinear, bool reverse, Tensor modes, Tensor saved, Tensor grad_y)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


@functools.lru_cache(maxsize=16)
def _twiddles(time: int, dtype: torch.dtype) -> Tensor | None:
    """The table of transforms over `time` steps, bytes as C wrote them: 0.2 ms at 1,024 steps, so it is kept."""
    return call("s4d", "s4d_twiddles", dtype, time=time)


def _verify(u: Sequences, weights: Weights, lengths: Lengths | None) -> None:
    """A check of all that C relies on."""
    present("s4d", weights[0], weights[3])
    batch, time, features = sizes("s4d", "u", u, "batch time features")
    _, modes = sizes("s4d", "lam_re", weights[1], "features modes")
    if modes == 0 or (weights[2] is None) != (weights[4] is None):
        raise ShapeError(
            "s4d: expected at least one mode, and both imaginary parts or neither; call holdfast.kernels.s4d"
        )
    shapes = ((features,), *[(features, modes)] * 4, (features,))
    verify("s4d", u, *zip(weights, shapes, strict=True))
    if lengths is not None:
        checks.lengths("s4d", lengths, (batch,), time, u.device)


def _states(u: Sequences, lam_re: Modes, lam_im: Modes | None) -> tuple[int, ...]:
    """The shape of initial and final states."""
    return (u.shape[0], *lam_re.shape, *(() if lam_im is None else (2,)))


def _check_saved(modes: Tensor, saved: Tensor, u: Sequences, lam_re: Modes, count: int) -> None:
    present("s4d", modes, saved)
    verify("s4d", u, (saved, (count,)))
    verify("s4d", modes, (modes, (*lam_re.shape, 4)), dtypes=(torch.float64,))


def _run(
    name: str, u: Sequences, weights: Weights, lengths: Lengths | None, bilinear: bool, reverse: bool,
    **rest: Tensor | int | None,
) -> None:  # fmt: skip
    batch, time, features = u.shape
    call(
        "s4d", f"s4d_{name}", u.dtype, batch=batch, time=time, features=features, states=weights[1].shape[1],
        bilinear=bilinear, reverse=reverse, lengths=dense(lengths), u=dense(u),
        **{key: dense(w) for key, w in zip(_WEIGHTS, weights, strict=True)}, **rest,
    )  # fmt: skip


def lanes(dtype: torch.dtype) -> int:
    """Numbers in a vector of the native library that is in use."""
    return library.number("vector_bytes") // dtype.itemsize


def _vectors(u: Sequences) -> tuple[int, int, int]:
    """Vectors over features, vectors over rows, rows in a vector: Layout in csrc/s4d/lanes.h."""
    batch, _, features = u.shape
    width = min(features, lanes(u.dtype))
    fold = lanes(u.dtype) // width
    return -(-features // width), -(-batch // fold), fold


def scan_saved(u: Sequences, modes: int, initial: bool, lengths: bool) -> int:
    """Numbers that the scan keeps for backward: the states at the beginning of each tile (128 steps)."""
    if u.numel() == 0:
        return 0
    blocks, groups, fold = _vectors(u)
    tiles = -(-u.shape[1] // library.number("s4d_tile_steps")) + (fold if initial and lengths and fold > 1 else 0)
    return blocks * groups * tiles * modes * 2 * lanes(u.dtype)


def fft_saved(u: Sequences) -> int:
    """Numbers that the transforms keep for backward: the impulse response, in whole blocks of steps."""
    if u.numel() == 0:
        return 0
    together = library.number("s4d_kernel_steps")
    return _vectors(u)[0] * -(-u.shape[1] // together) * together * lanes(u.dtype)


def _room(u: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return empty(shape, dtype) if u.device.type == "cpu" else u.new_empty(shape, dtype=dtype)


def _outputs(
    u: Sequences, lam_re: Modes, lam_im: Modes | None, state: bool, saved: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for y, the final states, the discrete modes and what backward needs."""
    last = _states(u, lam_re, lam_im) if state else (0,)
    modes = _room(u, (*lam_re.shape, 4), torch.float64)
    return _room(u, u.shape, u.dtype), _room(u, last, u.dtype), modes, _room(u, (saved,), u.dtype)


def _gradients(*inputs: Tensor | None) -> tuple[Tensor, ...]:
    """Room for the gradient of each input; empty for one that was not given."""
    like = inputs[0]
    assert like is not None
    return tuple(_room(like, (0,) if x is None else x.shape, like.dtype) for x in inputs)


def _places(grads: tuple[Tensor, ...], weights: Weights) -> dict[str, Tensor]:
    """The gradients of the weights that there are, by name."""
    return {f"grad_{key}": g for key, g, w in zip(_WEIGHTS, grads, weights, strict=True) if w is not None}


def scan_forward(
    u: Sequences, dt: Features, lam_re: Modes, lam_im: Modes | None, c_re: Modes, c_im: Modes | None,
    d: Features | None, lengths: Lengths | None, h0: States | None,
    bilinear: bool, reverse: bool, state: bool, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, the final states (if `state`), the discrete modes, and the states at tiles (if `save`), by the scan."""
    _verify(u, (dt, lam_re, lam_im, c_re, c_im, d), lengths)
    verify("s4d", u, (h0, _states(u, lam_re, lam_im)))
    count = scan_saved(u, lam_re.shape[1], h0 is not None, lengths is not None) if save else 0
    y, last, modes, saved = _outputs(u, lam_re, lam_im, state, count)
    if u.numel() == 0:
        return y, last.zero_() if h0 is None or not state else last.copy_(h0), modes.zero_(), saved
    _run(
        "scan_forward", u, (dt, lam_re, lam_im, c_re, c_im, d), lengths, bilinear, reverse, h0=dense(h0), y=y,
        last=last if state else None, modes=modes, saved=saved if save else None,
    )  # fmt: skip
    return y, last, modes, saved


def scan_backward(
    u: Sequences, dt: Features, lam_re: Modes, lam_im: Modes | None, c_re: Modes, c_im: Modes | None,
    d: Features | None, lengths: Lengths | None, h0: States | None, bilinear: bool, reverse: bool,
    modes: Tensor, saved: Tensor, grad_y: Sequences | None, grad_last: States | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of u, dt, lam_re, lam_im, c_re, c_im, d and h0; empty for what was not given."""
    weights = (dt, lam_re, lam_im, c_re, c_im, d)
    _verify(u, weights, lengths)
    states = _states(u, lam_re, lam_im)
    verify("s4d", u, (h0, states), (grad_y, u.shape), (grad_last, states))
    _check_saved(modes, saved, u, lam_re, scan_saved(u, lam_re.shape[1], h0 is not None, lengths is not None))
    grads = _gradients(u, *weights, h0)
    if u.numel() == 0:
        for g in grads:
            g.zero_()
        return (*grads[:-1], grads[-1] if h0 is None or grad_last is None else grads[-1].copy_(grad_last))
    _run(
        "scan_backward", u, weights, lengths, bilinear, reverse, initial=h0 is not None, modes=dense(modes),
        saved=dense(saved), grad_y=dense(grad_y), grad_last=dense(grad_last), grad_u=grads[0],
        grad_h0=None if h0 is None else grads[-1], **_places(grads[1:-1], weights),
    )  # fmt: skip
    return grads


def fft_forward(
    u: Sequences, dt: Features, lam_re: Modes, lam_im: Modes | None, c_re: Modes, c_im: Modes | None,
    d: Features | None, lengths: Lengths | None, bilinear: bool, reverse: bool, state: bool, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, the final states (if `state`), the discrete modes, and the impulse response (if `save`), by transforms."""
    _verify(u, (dt, lam_re, lam_im, c_re, c_im, d), lengths)
    y, last, modes, saved = _outputs(u, lam_re, lam_im, state, fft_saved(u) if save else 0)
    if u.numel() == 0:
        return y, last.zero_(), modes.zero_(), saved
    _run(
        "fft_forward", u, (dt, lam_re, lam_im, c_re, c_im, d), lengths, bilinear, reverse, y=y,
        last=last if state else None, modes=modes, saved=saved if save else None,
        twiddles=_twiddles(u.shape[1], u.dtype),
    )  # fmt: skip
    return y, last, modes, saved


def fft_backward(
    u: Sequences, dt: Features, lam_re: Modes, lam_im: Modes | None, c_re: Modes, c_im: Modes | None,
    d: Features | None, lengths: Lengths | None, bilinear: bool, reverse: bool,
    modes: Tensor, saved: Tensor, grad_y: Sequences,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of u, dt, lam_re, lam_im, c_re, c_im and d; empty for what was not given."""
    weights = (dt, lam_re, lam_im, c_re, c_im, d)
    present("s4d", grad_y)
    _verify(u, weights, lengths)
    verify("s4d", u, (grad_y, u.shape))
    _check_saved(modes, saved, u, lam_re, fft_saved(u))
    grads = _gradients(u, *weights)
    if u.numel() == 0:
        return tuple(g.zero_() for g in grads)
    _run(
        "fft_backward", u, weights, lengths, bilinear, reverse, modes=dense(modes), saved=dense(saved),
        twiddles=_twiddles(u.shape[1], u.dtype), grad_y=dense(grad_y), grad_u=grads[0], **_places(grads[1:], weights),
    )  # fmt: skip
    return grads


def _scan_forward_meta(
    u: Tensor, dt: Tensor, lam_re: Tensor, lam_im: Tensor | None, c_re: Tensor, c_im: Tensor | None,
    d: Tensor | None, lengths: Tensor | None, h0: Tensor | None,
    bilinear: bool, reverse: bool, state: bool, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    count = scan_saved(u, lam_re.shape[1], h0 is not None, lengths is not None) if save else 0
    return _outputs(u, lam_re, lam_im, state, count)


def _scan_backward_meta(
    u: Tensor, dt: Tensor, lam_re: Tensor, lam_im: Tensor | None, c_re: Tensor, c_im: Tensor | None,
    d: Tensor | None, lengths: Tensor | None, h0: Tensor | None, bilinear: bool, reverse: bool,
    modes: Tensor, saved: Tensor, grad_y: Tensor | None, grad_last: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _gradients(u, dt, lam_re, lam_im, c_re, c_im, d, h0)


def _fft_forward_meta(
    u: Tensor, dt: Tensor, lam_re: Tensor, lam_im: Tensor | None, c_re: Tensor, c_im: Tensor | None,
    d: Tensor | None, lengths: Tensor | None, bilinear: bool, reverse: bool, state: bool, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _outputs(u, lam_re, lam_im, state, fft_saved(u) if save else 0)


def _fft_backward_meta(
    u: Tensor, dt: Tensor, lam_re: Tensor, lam_im: Tensor | None, c_re: Tensor, c_im: Tensor | None,
    d: Tensor | None, lengths: Tensor | None, bilinear: bool, reverse: bool,
    modes: Tensor, saved: Tensor, grad_y: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _gradients(u, dt, lam_re, lam_im, c_re, c_im, d)


for _name, _kernel, _meta in (
    ("s4d_scan_forward", scan_forward, _scan_forward_meta),
    ("s4d_scan_backward", scan_backward, _scan_backward_meta),
    ("s4d_fft_forward", fft_forward, _fft_forward_meta),
    ("s4d_fft_backward", fft_backward, _fft_backward_meta),
):
    _LIBRARY.impl(_name, _kernel, "CPU")
    _LIBRARY.impl(_name, _meta, "Meta")
