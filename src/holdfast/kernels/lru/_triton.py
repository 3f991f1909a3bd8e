"""The linear recurrent unit on GPUs as torch operators: how the programs of `_triton_kernels.py` are laid out and launched.

Complex numbers are planar, as in `lru`. Sequences and matrices are in one dtype, float32 or half precision; states are
carried in float64 between tiles of time, and the final state is float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.kernels._common import gpu
from holdfast.kernels._common.gpu import ceil_div

# larger tiles of the scan spill: 64 x 32 with 32 inputs at a time takes 112 bytes of local memory on sm_80
SCAN_TILE = {"STEPS": 32, "CHANNELS": 32, "INNER": 16}
DIRECT_TILE = {"TOKENS": 64, "FEATURES": 64, "INNER": 32}
SCAN_LAUNCH = {"num_warps": 4, "num_stages": 2}
DIRECT_LAUNCH = {"num_warps": 8, "num_stages": 2}
# a program with products keeps a multiprocessor busier than one of the bare scan
_SCANS_PER_PROGRAM = 4
_MIN_SEGMENT_TILES = 2  # shorter segments cost more traffic than they bring in parallel work
_CHAIN_CHANNELS = 128

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_FLAGS = "Tensor? lengths, Tensor? resets, bool reverse, bool planar"
_LIBRARY.define(f"lru_triton_forward(Tensor u, Tensor lam, Tensor b, Tensor? h0, {_FLAGS}) -> (Tensor, Tensor)")
_LIBRARY.define(
    f"lru_triton_backward(Tensor grad_y, Tensor lam, Tensor c, Tensor h, Tensor? h0, Tensor? grad_last, {_FLAGS}) -> "
    "(Tensor, Tensor, Tensor)"
)
_LIBRARY.define("lru_triton_outputs(Tensor h, Tensor c, Tensor d, Tensor u, Tensor? lengths) -> Tensor")
_LIBRARY.define(
    "lru_triton_inputs(Tensor grad_x, Tensor b, Tensor d, Tensor grad_y, Tensor u, Tensor? lengths) -> (Tensor, Tensor)"
)


def plan(rows: int, time: int, channels: int, programs: int) -> tuple[int, int]:
    """Steps of a segment, a multiple of a tile's, and how many segments there are.

    Args:
        rows: rows of the scan.
        time: steps.
        channels: channels, complex ones counted once.
        programs: how many programs of the bare scan the device wants.
    """
    tile = SCAN_TILE["STEPS"]
    wanted = ceil_div(programs, _SCANS_PER_PROGRAM * rows * ceil_div(channels, SCAN_TILE["CHANNELS"]))
    segments = max(1, min(wanted, time // (_MIN_SEGMENT_TILES * tile)))
    segment = ceil_div(ceil_div(time, segments), tile) * tile
    return segment, ceil_div(time, segment)


@dataclass(frozen=True)
class _Scan:
    """A run over time of inputs x (rows, time, inputs) times a matrix with the strides `strides` (state, input)."""

    x: Tensor
    weight: Tensor
    strides: tuple[int, int]
    lam: Tensor
    lengths: Tensor | None
    resets: Tensor | None
    reverse: bool
    planar: bool

    def run(self, start: Tensor | None, out: Tensor, last: Tensor, **backward: Any) -> None:
        """Fills `out` and `last`; `backward` has h, h0 and grad_lam."""
        from holdfast.kernels.lru._triton_kernels import product_scan_kernel

        (rows, time, inputs), parts = self.x.shape, 2 if self.planar else 1
        channels = self.lam.shape[0] // parts
        segment, segments = plan(rows, time, channels, gpu.programs(self.x.device))
        wide = torch.float64 if gpu.has_double(self.x.device) else torch.float32
        grid = (ceil_div(channels, SCAN_TILE["CHANNELS"]), rows, segments)
        sums = self.x.new_empty((rows, segments, channels * parts), dtype=wide) if backward else None
        h, h0 = backward.get("h"), backward.get("h0")
        constants = {
            "BACKWARD": bool(backward), "REVERSE": self.reverse, "PARTS": parts, "HAS_H0": h0 is not None,
            "HAS_LENGTHS": self.lengths is not None, "HAS_RESETS": self.resets is not None, "ACC": _type(wide),
            "BITS": SCAN_TILE["STEPS"].bit_length(), **_products(self.x), **SCAN_TILE, **SCAN_LAUNCH,
        }  # fmt: skip

        def launch(start: Tensor | None, product: Any, rest: Any, summary: bool, at: tuple[int, int]) -> None:
            gpu.launch(
                product_scan_kernel, grid, self.x, self.x, self.weight, self.lam, start, h, h0, self.lengths, self.resets,
                out, last, product, rest, sums, time, inputs, channels, segment, *self.strides, *at, SUMMARY=summary,
                HAS_START=start is not None, **constants,
            )  # fmt: skip

        at = (segments * channels * parts, channels * parts)
        if segments == 1:
            launch(start, None, None, False, at)
        else:
            product, rest = self.x.new_empty((2, rows, segments, channels * parts), dtype=wide)
            launch(None, product, rest, True, at)
            self._chain(product, rest, start, parts)
            launch(rest, None, None, False, at)
        if sums is not None:
            backward["grad_lam"].copy_(sums.sum((0, 1)))

    def _chain(self, product: Tensor, rest: Tensor, start: Tensor | None, parts: int) -> None:
        """Turns `rest` into the state before each segment, in the order of the run."""
        from holdfast.kernels.scan._triton_kernels import scan_chain_kernel

        rows, segments, size = rest.shape
        channels = size // parts
        grid = (rows, ceil_div(channels, _CHAIN_CHANNELS))
        gpu.launch(
            scan_chain_kernel, grid, rest, product, rest, start, segments, channels, 1, channels, *rest.stride()[:2],
            PARTS=parts, REVERSE=False, HAS_START=start is not None, ACC=_type(rest.dtype), CHANNELS=_CHAIN_CHANNELS,
        )  # fmt: skip


def _type(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return tl.float64 if dtype == torch.float64 else tl.float32


def _products(like: Tensor) -> dict[str, Any]:
    return {"PRECISION": gpu.dot_precision(like.device), "WIDE": gpu.interpreted()}


def _dense(*values: Tensor | None) -> list[Any]:
    return [None if value is None else value.contiguous() for value in values]


def lru_triton_forward(
    u: Tensor, lam: Tensor, b: Tensor, h0: Tensor | None, lengths: Tensor | None, resets: Tensor | None, reverse: bool,
    planar: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The states of every step, in u's dtype, and the final ones, in float32; b u is never written."""
    h, last = _forward_meta(u, lam, b, h0, lengths, resets, reverse, planar)
    if h.numel() == 0:
        return h, last.zero_() if h0 is None else last.copy_(h0)
    u, lam, b, h0, lengths, resets = _dense(u, lam, b, h0, lengths, resets)
    _Scan(u, b, (u.shape[2], 1), lam, lengths, resets, reverse, planar).run(h0, h, last)
    return h, last


def lru_triton_backward(
    grad_y: Tensor, lam: Tensor, c: Tensor, h: Tensor, h0: Tensor | None, grad_last: Tensor | None,
    lengths: Tensor | None, resets: Tensor | None, reverse: bool, planar: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of b u, of lam (of all rows together) and of h0; c' grad_y is never written."""
    grad_x, grad_lam, grad_h0 = made = _backward_meta(
        grad_y, lam, c, h, h0, grad_last, lengths, resets, reverse, planar
    )
    if h.numel() == 0:
        return grad_x, grad_lam.zero_(), grad_h0.zero_() if grad_last is None else grad_h0.copy_(grad_last)
    grad_y, lam, c, h0, grad_last, lengths, resets = _dense(grad_y, lam, c, h0, grad_last, lengths, resets)
    scan = _Scan(grad_y, c, (1, c.shape[1]), lam, lengths, resets, not reverse, planar)
    scan.run(grad_last, grad_x, grad_h0, h=h, h0=h0, grad_lam=grad_lam)
    return made


def _product_direct(
    x: Tensor, weight: Tensor, d: Tensor, given: Tensor, other: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """x weight + d given (weight (inner, width), any strides), and the sums of given times other for each tile."""
    from holdfast.kernels.lru._triton_kernels import product_direct_kernel

    rows, time, inner = x.shape
    width = weight.shape[1]
    out = x.new_empty((rows, time, width))
    grid = (ceil_div(rows * time, DIRECT_TILE["TOKENS"]), ceil_div(width, DIRECT_TILE["FEATURES"]))
    sums = None if other is None else x.new_empty((grid[0], width), dtype=torch.float32)
    if out.numel():
        x, d, given, other, lengths = _dense(x, d, given, other, lengths)
        gpu.launch(
            product_direct_kernel, grid, x, x, weight, d, given, other, lengths, out, sums, rows, time, inner, width,
            weight.stride(1), weight.stride(0), HAS_LENGTHS=lengths is not None, SUMS=sums is not None, **_products(x),
            **DIRECT_TILE, **DIRECT_LAUNCH,
        )  # fmt: skip
    return out, sums


def lru_triton_outputs(h: Tensor, c: Tensor, d: Tensor, u: Tensor, lengths: Tensor | None) -> Tensor:
    """y = c h + d u, 0 after a row's end, where h is."""
    return _product_direct(h, c.T, d, u, None, lengths)[0]


def lru_triton_inputs(
    grad_x: Tensor, b: Tensor, d: Tensor, grad_y: Tensor, u: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients of u, b' grad_x + d grad_y, and of d, the sum of grad_y times u."""
    grad_u, sums = _product_direct(grad_x, b, d, grad_y, u, lengths)
    assert sums is not None
    return grad_u, sums.sum(0).to(d.dtype)


def _forward_meta(u: Tensor, lam: Tensor, b: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    size = b.shape[0]
    return u.new_empty((*u.shape[:2], size)), u.new_empty((u.shape[0], size), dtype=torch.float32)


def _backward_meta(grad_y: Tensor, lam: Tensor, c: Tensor, h: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    last = h.new_empty((h.shape[0], h.shape[2]), dtype=torch.float32)
    return h.new_empty(h.shape), lam.new_empty(lam.shape), last


def _outputs_meta(h: Tensor, c: Tensor, d: Tensor, u: Tensor, lengths: Tensor | None) -> Tensor:
    return u.new_empty(u.shape)


def _inputs_meta(
    grad_x: Tensor, b: Tensor, d: Tensor, grad_y: Tensor, u: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), d.new_empty(d.shape)


for _name, _kernel, _meta in (
    ("lru_triton_forward", lru_triton_forward, _forward_meta),
    ("lru_triton_backward", lru_triton_backward, _backward_meta),
    ("lru_triton_outputs", lru_triton_outputs, _outputs_meta),
    ("lru_triton_inputs", lru_triton_inputs, _inputs_meta),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _meta, "Meta")
