"""The linear recurrent unit tile by tile in C++: products and scan on some steps of a row while they are in the cache.

The states are written once and their gradients never reach memory. A whole step runs at 70-95% of the arithmetic of a
large square product, torch's products alone at 55-85% at these sizes; for wide layers torch's are the better ones.
"""

from __future__ import annotations

from torch import Tensor

from holdfast.kernels._common import library
from holdfast.kernels._common.calls import call
from holdfast.kernels._common.memory import empty

_MAX_WEIGHT_NUMBERS = 1 << 16  # 256 KB of float32 stay in the second cache beside the tiles
_MAX_NUMBERS = 1024  # of a state: the tile's states fit the kernel's own array


def suits(inputs: int, numbers: int, outputs: int) -> bool:
    """True where the layer's sizes fit the tiles; sizes that are no multiple of the grain would need masks."""
    grain = library.number("width_grain")
    whole = not any(size % grain or size == 0 for size in (inputs, numbers, outputs))
    return whole and numbers <= _MAX_NUMBERS and numbers * max(inputs, outputs) <= _MAX_WEIGHT_NUMBERS


def _run(
    name: str, u: Tensor, lam: Tensor, planar: bool, b: Tensor, c: Tensor, d: Tensor | None, h0: Tensor | None,
    lengths: Tensor | None, reverse: bool, **rest: Tensor | None,
) -> None:  # fmt: skip
    call(
        "lru", f"lru_fused_{name}", u.dtype, planar=planar, reverse=reverse, rows=u.shape[0], steps=u.shape[1],
        inputs=u.shape[2], numbers=b.shape[0], outputs=c.shape[0], lengths=lengths,
        u=u, lam=lam, b=b, c=c, d=d, h0=h0, **rest,
    )  # fmt: skip


def forward(
    u: Tensor, lam: Tensor, planar: bool, b: Tensor, c: Tensor, d: Tensor | None, h0: Tensor | None,
    lengths: Tensor | None, reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, all states and the final ones; every argument contiguous."""
    rows, time, _ = u.shape
    y, h = (empty((rows, time, size), u.dtype) for size in (c.shape[0], b.shape[0]))
    last = empty((rows, b.shape[0]), u.dtype)
    _run("forward", u, lam, planar, b, c, d, h0, lengths, reverse, h=h, y=y, last=last)
    return y, h, last


def backward(
    u: Tensor, lam: Tensor, planar: bool, b: Tensor, c: Tensor, d: Tensor | None, h0: Tensor | None,
    lengths: Tensor | None, reverse: bool, h: Tensor, grad_y: Tensor, grad_last: Tensor | None, wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of u, lam (a summand for each row), b, c, d and h0 where `wanted`; empty tensors elsewhere."""
    rows = (u.shape[0], b.shape[0])
    shapes = (u.shape, rows, b.shape, c.shape, (c.shape[0],), rows)
    asked = (*wanted[:4], wanted[4] and d is not None, True)
    grads = tuple(empty(shape if want else (0,), u.dtype) for shape, want in zip(shapes, asked, strict=True))
    names = ("grad_u", "grad_lam", "grad_b", "grad_c", "grad_d", "grad_h0")
    places = {name: grad for name, grad, want in zip(names, grads, asked, strict=True) if want}
    _run(
        "backward", u, lam, planar, b, c, d, h0, lengths, reverse, h=h, grad_y=grad_y, grad_last=grad_last, **places
    )  # fmt: skip
    return grads  # type: ignore[return-value]
