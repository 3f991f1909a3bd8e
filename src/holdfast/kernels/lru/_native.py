"""The linear recurrent unit in C++: tile by tile where its sizes suit, else as a scan between torch's products.

Tile by tile, products and scan run on some steps of a row while they are in the cache: the states are written once and
their gradients never reach memory. A whole step runs at 70-95% of the arithmetic of a large square product, torch's
products alone at 55-85% at these sizes; for wide layers torch's are the better ones.

There it is one matrix product into a buffer, the planar scan in place, one out; backward is the same the other way
round, and reads only the states and the inputs. The products write into given memory, which also keeps them out of
autocast's reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import checks, library
from holdfast.kernels._common.backends import define
from holdfast.kernels._common.calls import call, dense, empty, flags, present, sizes, verify
from holdfast.kernels.lru._reference import LRUCall

_MAX_WEIGHT_NUMBERS = 1 << 16  # 256 KB of float32 stay in the second cache beside the tiles
_MAX_NUMBERS = 1024  # of a state: the tile's states fit the kernel's own array

Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]  # of u, lam (planar), b, c, d, h0


class Sizes(NamedTuple):
    """Of a call."""

    rows: int
    steps: int
    inputs: int
    numbers: int  # of a state: its real parts and then its imaginary ones
    outputs: int

    def fit_tiles(self) -> bool:
        """True where the tiles can have these sizes; ones that are not a multiple of the grain would need masks."""
        _, _, inputs, numbers, outputs = self
        grain = library.number("width_grain")
        if inputs % grain or numbers % grain or outputs % grain or not inputs * numbers * outputs:
            return False
        return numbers <= _MAX_NUMBERS and numbers * max(inputs, outputs) <= _MAX_WEIGHT_NUMBERS


def _verify(lru: LRUCall) -> Sizes:
    """The sizes of a call, after a check of all that C relies on."""
    u, lam_re, lam_im, b, c, d, h0, lengths, _ = lru
    present("lru", b)
    batch, time, inputs = sizes("lru", "u", u, "batch time inputs")
    (states,) = sizes("lru", "lam_re", lam_re, "states")
    outputs, planar = sizes("lru", "c", c, "outputs planar")
    if planar != (states if lam_im is None else 2 * states) or (d is not None and outputs != inputs):
        raise ShapeError(
            f"lru: expected c to match {states} states and {inputs} inputs, got shape {tuple(c.shape)}; call "
            "holdfast.kernels.lru"
        )
    verify(
        "lru", u, (lam_re, (states,)), (lam_im, (states,)), (b, (planar, inputs)), (c, (outputs, planar)),
        (d, (outputs,)), (h0, (batch, planar)),
    )  # fmt: skip
    if lengths is not None:
        checks.lengths("lru", lengths, (batch,), time, u.device)
    return Sizes(batch, time, inputs, planar, outputs)


def _inside(lengths: Tensor, time: int) -> Tensor:
    """True at (row, t) before the row's end, as (batch, time, 1)."""
    return (torch.arange(time, device=lengths.device) < lengths.unsqueeze(-1)).unsqueeze(-1)


def _product(x: Tensor, y: Tensor) -> Tensor:
    # into memory of ours: 2 MB pages where it is large, and no autocast, which skips calls that have an `out`
    return torch.mm(x, y, out=empty((x.shape[0], y.shape[1]), x.dtype))


def _common(lru: LRUCall, shape: Sizes) -> dict[str, Any]:
    """The fields that all four C functions read."""
    # eigenvalues lie as states do, all real parts and then all imaginary ones: one load in C for either
    lam = dense(lru.lam_re) if lru.lam_im is None else torch.cat((lru.lam_re, lru.lam_im))
    return {
        "planar": lru.lam_im is not None, "reverse": lru.reverse, "rows": shape.rows, "steps": shape.steps,
        "numbers": shape.numbers, "lam": lam, "h0": dense(lru.h0), "lengths": dense(lru.lengths),
    }  # fmt: skip


def _weights(lru: LRUCall, shape: Sizes) -> dict[str, Any]:
    """The fields that only the tiles read: they do the products themselves."""
    return {
        "inputs": shape.inputs, "outputs": shape.outputs, "u": dense(lru.u), "b": dense(lru.b), "c": dense(lru.c),
        "d": dense(lru.d),
    }  # fmt: skip


def _forward(lru: LRUCall) -> tuple[Tensor, Tensor, Tensor]:
    """y (batch, time, outputs), all states (batch, time, planar) and the final ones (batch, planar)."""
    shape = _verify(lru)
    rows, time, inputs, numbers, outputs = shape
    u, d, dtype, common = lru.u, lru.d, lru.u.dtype, _common(lru, shape)
    last = empty((rows, numbers), dtype)
    if shape.fit_tiles():
        y, h = (empty((rows, time, size), dtype) for size in (outputs, numbers))
        call("lru", "lru_fused_forward", dtype, **common, **_weights(lru, shape), h=h, y=y, last=last)
        return y, h, last
    flat = u.reshape(rows * time, inputs)
    h = _product(flat, lru.b.T)  # B u, which the scan turns into the states in place
    call("lru", "lru_forward", dtype, **common, h=h, last=last)
    y = _product(h, lru.c.T)
    if d is not None:
        y.addcmul_(flat, d)
    y = y.view(rows, time, outputs)
    if d is not None and lru.lengths is not None:  # the states are 0 after a row's end, d u is not
        y.masked_fill_(_inside(lru.lengths, time).logical_not_(), 0)
    return y, h.view(rows, time, numbers), last


def _backward(
    lru: LRUCall, h: Tensor, grad_y: Tensor | None, grad_last: Tensor | None, wanted: Sequence[bool]
) -> Gradients:
    """Gradients of u, lam (planar), b, c, d and h0 where `wanted` says so; empty tensors elsewhere."""
    flags("lru", "wanted", wanted, 6)
    present("lru", h)
    shape = _verify(lru)
    rows, time, _, numbers, outputs = shape
    verify("lru", lru.u, (h, (rows, time, numbers)), (grad_y, (rows, time, outputs)), (grad_last, (rows, numbers)))
    if lru.lengths is not None and lru.d is not None and grad_y is not None:
        grad_y = grad_y * _inside(lru.lengths, time)
    given = {**_common(lru, shape), "h": dense(h), "grad_last": dense(grad_last)}
    # the gradient of h0 comes out of the scan anyway
    wanted = (*wanted[:4], wanted[4] and lru.d is not None, True)
    if grad_y is None or not shape.fit_tiles():
        return _backward_by_products(lru, given, grad_y, wanted)
    grads = tuple(empty(size if want else (0,), h.dtype) for size, want in zip(_shapes(lru), wanted, strict=True))
    names = ("grad_u", "grad_lam", "grad_b", "grad_c", "grad_d", "grad_h0")
    places = {name: grad for name, grad, want in zip(names, grads, wanted, strict=True) if want}
    call("lru", "lru_fused_backward", h.dtype, **given, **_weights(lru, shape), grad_y=dense(grad_y), **places)
    return grads[0], grads[1].sum(0) if wanted[1] else grads[1], *grads[2:]  # type: ignore[return-value]


def _shapes(lru: LRUCall) -> tuple[tuple[int, ...], ...]:
    """Of the gradients; lam's has a summand for each row, so that threads need not wait for one another."""
    row = (lru.u.shape[0], lru.b.shape[0])
    return lru.u.shape, row, lru.b.shape, lru.c.shape, (lru.c.shape[0],), row


def _backward_by_products(
    lru: LRUCall, given: dict[str, Any], grad_y: Tensor | None, wanted: Sequence[bool]
) -> Gradients:
    """The adjoint scan between torch's products; `given` are the fields that C reads."""
    u, b, c, d, h = lru.u, lru.b, lru.c, lru.d, given["h"]
    want_u, want_lam, want_b, want_c, want_d, _ = wanted
    tokens, nothing = u.shape[0] * u.shape[1], u.new_empty(0)
    flat_u, flat_h = u.reshape(tokens, u.shape[2]), h.view(tokens, b.shape[0])
    flat_y = None if grad_y is None else grad_y.reshape(tokens, c.shape[0])
    # the gradient of y by c, which the adjoint scan turns into that of the states in place
    g = u.new_zeros((tokens, b.shape[0])) if flat_y is None else _product(flat_y, c)
    row = (u.shape[0], b.shape[0])
    grad_lam, grad_h0 = empty(row if want_lam else (0,), u.dtype), empty(row, u.dtype)
    call(
        "lru", "lru_backward", u.dtype, **given, g=g, grad_lam=grad_lam if want_lam else None, grad_h0=grad_h0
    )  # fmt: skip
    grad_u = _product(g, b).view(u.shape) if want_u else nothing
    grad_b = _product(g.T, flat_u) if want_b else nothing
    grad_c, grad_d = c.new_zeros(c.shape if want_c else 0), nothing
    if flat_y is not None and want_c:
        torch.mm(flat_y.T, flat_h, out=grad_c)
    if d is not None and want_d:
        grad_d = torch.zeros_like(d) if flat_y is None else (flat_y * flat_u).sum(0)
    if d is not None and grad_y is not None and want_u:
        grad_u.addcmul_(grad_y, d)
    return grad_u, grad_lam.sum(0) if want_lam else nothing, grad_b, grad_c, grad_d, grad_h0


def _forward_meta(lru: LRUCall) -> tuple[Tensor, Tensor, Tensor]:
    (batch, time, _), planar = lru.u.shape, lru.b.shape[0]
    shapes = ((batch, time, lru.c.shape[0]), (batch, time, planar), (batch, planar))
    return tuple(map(lru.u.new_empty, shapes))  # type: ignore[return-value]


def _backward_meta(lru: LRUCall, h: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *wanted, want_d, _ = rest[-1]
    _, lam, *_ = shapes = list(_shapes(lru))
    shapes[1] = lam[1:]  # summed over rows
    there = (*wanted, want_d and lru.d is not None, True)
    return tuple(h.new_empty(shape if want else 0) for shape, want in zip(shapes, there, strict=True))


define("lru_forward", _forward, _forward_meta)
define("lru_backward", _backward, _backward_meta)
