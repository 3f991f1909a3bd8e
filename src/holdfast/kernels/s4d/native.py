"""S4D in C++ by two algorithms, the fused scan and Fourier transforms, as torch.library ops.

All tensors are CPU tensors of one dtype, float32 or float64; strides are free.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels import checks, library
from holdfast.kernels.arguments import dense, pointer, present, sizes, verify
from holdfast.kernels.memory import empty

TILE = 128  # kTile in csrc/s4d/lanes.h: steps between two saved states

Sequences = Float[Tensor, "batch time features"]
Features = Float[Tensor, " features"]
Modes = Float[Tensor, "features modes"]
States = Float[Tensor, "batch features modes *pair"]
Lengths = Int64[Tensor, " batch"]
Weights = tuple[Features, Modes, Modes | None, Modes, Modes | None, Features | None]  # dt, lam, c, d

_BILINEAR, _REVERSE, _INITIAL, _COMPLEX = 1, 2, 4, 8
_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_VECTOR_BYTES = {"v4": 64, "v3": 32, "portable": 16}

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


@functools.cache
def _function(name: str, dtype: torch.dtype) -> Any:
    flag, pointer = ctypes.c_int, ctypes.c_void_p
    head = [pointer, flag, pointer, pointer, pointer]  # sizes, flags, lengths, u, weights
    prototypes = {
        "scan_sizes": [pointer, flag, flag, flag, pointer],
        "scan": [*head, *[pointer] * 6, flag],
        "scan_backward": [*head, *[pointer] * 8, flag],
        "fft_sizes": [pointer, flag, pointer],
        "fft_twiddles": [ctypes.c_int64, pointer],
        "fft": [*head, *[pointer] * 6, flag],
        "fft_backward": [*head, *[pointer] * 7, flag],
    }
    return library.function(f"holdfast_s4d_{name}_{_SUFFIX[dtype]}", prototypes[name])


@functools.lru_cache(maxsize=256)
def _sizes(name: str, dtype: torch.dtype, sizes: tuple[int, ...], *more: int) -> tuple[int, int, int, int]:
    """What the C side says it needs: bytes of workspace forward and backward, and two numbers of the algorithm."""
    out = (ctypes.c_int64 * 4)()
    _function(f"{name}_sizes", dtype)((ctypes.c_int64 * 4)(*sizes), *more, out)
    return out[0], out[1], out[2], out[3]


@functools.lru_cache(maxsize=16)
def _twiddles(time: int, dtype: torch.dtype, count: int) -> Float[Tensor, " count"]:
    out = empty((count,), dtype)
    _function("fft_twiddles", dtype)(time, out.data_ptr())
    return out


def _pointers(values: tuple[Tensor | None, ...]) -> Any:
    return (ctypes.c_void_p * len(values))(*map(pointer, values))


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


class _Call:
    """Arguments that every function of the C library begins with; keeps what they point to alive."""

    def __init__(self, u: Sequences, weights: Weights, lengths: Lengths | None, flags: int) -> None:
        self.u, self.lengths = dense(u), dense(lengths)
        self.weights = tuple(dense(w) for w in weights)
        self.flags = flags | (_COMPLEX if weights[2] is not None else 0)
        self.sizes = (*u.shape, weights[1].shape[1])
        self.threads = library.threads()

    def run(self, name: str, *rest: int | Tensor | Any) -> None:
        arguments = [pointer(x) if isinstance(x, Tensor) else x for x in rest]
        _function(name, self.u.dtype)(
            (ctypes.c_int64 * 4)(*self.sizes), self.flags, pointer(self.lengths), self.u.data_ptr(),
            _pointers(self.weights), *arguments, self.threads,
        )  # fmt: skip

    def scan_sizes(self) -> tuple[int, int, int, int]:
        return _sizes("scan", self.u.dtype, self.sizes, self.flags, self.lengths is not None, self.threads)

    def fft_sizes(self) -> tuple[int, int, int, int]:
        return _sizes("fft", self.u.dtype, self.sizes, self.threads)

    def bytes(self, count: int) -> Tensor:
        return empty((count,), torch.uint8)


def _flags(bilinear: bool, reverse: bool, initial: bool) -> int:
    return (_BILINEAR if bilinear else 0) | (_REVERSE if reverse else 0) | (_INITIAL if initial else 0)


def lanes(dtype: torch.dtype) -> int:
    """Numbers in a vector of the native library that is in use."""
    return _VECTOR_BYTES[library.status().variant or "portable"] // dtype.itemsize


def _vectors(u: Sequences) -> tuple[int, int, int]:
    """Vectors over features, vectors over rows, rows in a vector: Layout in csrc/s4d/lanes.h."""
    batch, _, features = u.shape
    width = min(features, lanes(u.dtype))
    fold = lanes(u.dtype) // width
    return -(-features // width), -(-batch // fold), fold


def scan_saved(u: Sequences, modes: int, initial: bool, lengths: bool) -> int:
    """Numbers that the scan keeps for backward: the states at the beginning of each tile of 128 steps."""
    if u.numel() == 0:
        return 0
    blocks, groups, fold = _vectors(u)
    tiles = -(-u.shape[1] // TILE) + (fold if initial and lengths and fold > 1 else 0)
    return blocks * groups * tiles * modes * 2 * lanes(u.dtype)


def fft_saved(u: Sequences) -> int:
    """Numbers that the transforms keep for backward: the impulse response, in whole sixteens."""
    if u.numel() == 0:
        return 0
    return _vectors(u)[0] * -(-u.shape[1] // 16) * 16 * lanes(u.dtype)


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


def _given(grads: tuple[Tensor, ...], inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if x is None else g for g, x in zip(grads, inputs, strict=True))


def scan_forward(
    u: Sequences, dt: Features, lam_re: Modes, lam_im: Modes | None, c_re: Modes, c_im: Modes | None,
    d: Features | None, lengths: Lengths | None, h0: States | None,
    bilinear: bool, reverse: bool, state: bool, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, the final states (if `state`), the discrete modes, and the states at tiles (if `save`), by the scan."""
    _verify(u, (dt, lam_re, lam_im, c_re, c_im, d), lengths)
    verify("s4d", u, (h0, _states(u, lam_re, lam_im)))
    count = scan_saved(u, lam_re.shape[1], h0 is not None, lengths is not None)
    y, last, modes, saved = _outputs(u, lam_re, lam_im, state, count if save else 0)
    if u.numel() == 0:
        return y, last.zero_() if h0 is None or not state else last.copy_(h0), modes.zero_(), saved
    call = _Call(u, (dt, lam_re, lam_im, c_re, c_im, d), lengths, _flags(bilinear, reverse, h0 is not None))
    work, _, needed, by_tiles = call.scan_sizes()
    assert needed == count
    tiles = saved if save else empty((count,), u.dtype) if by_tiles else None
    call.run("scan", dense(h0), y, last if state else None, modes, tiles, call.bytes(work))
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
    call = _Call(u, weights, lengths, _flags(bilinear, reverse, h0 is not None))
    of_weights = _pointers(_given(grads[1:-1], weights))
    grad_y, grad_last, modes, saved = dense(grad_y), dense(grad_last), dense(modes), dense(saved)
    call.run(
        "scan_backward", grad_y, grad_last, modes, saved, grads[0], of_weights, None if h0 is None else grads[-1],
        call.bytes(call.scan_sizes()[1]),
    )  # fmt: skip
    return grads


def fft_forward(
    u: Sequences, dt: Features, lam_re: Modes, lam_im: Modes | None, c_re: Modes, c_im: Modes | None,
    d: Features | None, lengths: Lengths | None, bilinear: bool, reverse: bool, state: bool, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """y, the final states (if `state`), the discrete modes, and the impulse response (if `save`), by transforms."""
    _verify(u, (dt, lam_re, lam_im, c_re, c_im, d), lengths)
    count = fft_saved(u)
    y, last, modes, saved = _outputs(u, lam_re, lam_im, state, count if save else 0)
    if u.numel() == 0:
        return y, last.zero_(), modes.zero_(), saved
    call = _Call(u, (dt, lam_re, lam_im, c_re, c_im, d), lengths, _flags(bilinear, reverse, False))
    work, _, needed, twiddles = call.fft_sizes()
    assert needed == count
    kernel = saved if save else empty((count,), u.dtype)
    turns = _twiddles(u.shape[1], u.dtype, twiddles)
    call.run("fft", y, last if state else None, modes, kernel, turns, call.bytes(work))
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
    call = _Call(u, weights, lengths, _flags(bilinear, reverse, False))
    _, work, _, twiddles = call.fft_sizes()
    turns, of_weights = _twiddles(u.shape[1], u.dtype, twiddles), _pointers(_given(grads[1:], weights))
    grad_y, modes, saved = dense(grad_y), dense(modes), dense(saved)
    call.run("fft_backward", grad_y, modes, saved, turns, grads[0], of_weights, call.bytes(work))
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


for _name, _run, _meta in (
    ("s4d_scan_forward", scan_forward, _scan_forward_meta),
    ("s4d_scan_backward", scan_backward, _scan_backward_meta),
    ("s4d_fft_forward", fft_forward, _fft_forward_meta),
    ("s4d_fft_backward", fft_backward, _fft_backward_meta),
):
    _LIBRARY.impl(_name, _run, "CPU")
    _LIBRARY.impl(_name, _meta, "Meta")
