"""The linear recurrent unit in C++: tile by tile where its sizes suit, else as a scan between torch's products.

There it is one matrix product into a buffer, the planar scan in place, one out; backward is the same the other way
round, and reads only the states and the inputs. The products write into given memory, which also keeps them out of
autocast's reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from holdfast.errors import ShapeError
from holdfast.kernels._common import checks
from holdfast.kernels._common.arguments import dense, flags, present, sizes, verify
from holdfast.kernels._common.calls import call
from holdfast.kernels._common.memory import empty
from holdfast.kernels.lru import _fused as fused

_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_ARGUMENTS = (
    "Tensor u, Tensor lam_re, Tensor? lam_im, Tensor b, Tensor c, Tensor? d, Tensor? h0, Tensor? lengths, bool reverse"
)
_LIBRARY.define(f"lru_forward({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"lru_backward({_ARGUMENTS}, Tensor h, Tensor? grad_y, Tensor? grad_last, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def _verify(
    u: Tensor, lam_re: Tensor, lam_im: Tensor | None, b: Tensor, c: Tensor, d: Tensor | None, h0: Tensor | None,
    lengths: Tensor | None,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Batch, time, inputs, numbers of a state and outputs, after a check of all that C relies on."""
    present("lru", b)
    batch, time, inputs = sizes("lru", "u", u, "batch time inputs")
    (states,) = sizes("lru", "lam_re", lam_re, "states")
    outputs, planar = sizes("lru", "c", c, "outputs planar")
    if planar != (states if lam_im is None else 2 * states) or (d is not None and outputs != inputs):
        raise ShapeError(f"lru: c of shape {tuple(c.shape)} does not go with {states} states and {inputs} inputs")
    verify(
        "lru", u, (lam_re, (states,)), (lam_im, (states,)), (b, (planar, inputs)), (c, (outputs, planar)),
        (d, (outputs,)), (h0, (batch, planar)),
    )  # fmt: skip
    if lengths is not None:
        checks.lengths("lru", lengths, (batch,), time, u.device)
    return batch, time, inputs, planar, outputs


def _inside(lengths: Tensor, time: int) -> Tensor:
    """True at (row, t) before the row's end, as (batch, time, 1)."""
    return (torch.arange(time, device=lengths.device) < lengths.unsqueeze(-1)).unsqueeze(-1)


def _product(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x, y, out=empty((x.shape[0], y.shape[1]), x.dtype))


def _eigenvalues(lam_re: Tensor, lam_im: Tensor | None) -> Tensor:
    return dense(lam_re) if lam_im is None else torch.cat((lam_re, lam_im))


def lru_forward(
    u: Float[Tensor, "batch time inputs"],
    lam_re: Float[Tensor, " states"],
    lam_im: Float[Tensor, " states"] | None,
    b: Float[Tensor, "planar inputs"],
    c: Float[Tensor, "outputs planar"],
    d: Float[Tensor, " outputs"] | None,
    h0: Float[Tensor, "batch planar"] | None,
    lengths: Int64[Tensor, " batch"] | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y (batch, time, outputs), all states (batch, time, planar) and the final ones (batch, planar)."""
    batch, time, inputs, planar, outputs = _verify(u, lam_re, lam_im, b, c, d, h0, lengths)
    dtype = u.dtype
    lengths, h0, lam = dense(lengths), dense(h0), _eigenvalues(lam_re, lam_im)
    if fused.suits(inputs, planar, outputs):
        weights = (dense(b), dense(c), dense(d))
        return fused.forward(dense(u), lam, lam_im is not None, *weights, h0, lengths, reverse)
    flat = u.reshape(batch * time, inputs)
    h = _product(flat, b.T)
    last = empty((batch, planar), dtype)
    call(
        "lru", "lru_forward", dtype, planar=lam_im is not None, reverse=reverse, rows=batch, steps=time,
        numbers=planar, lam=lam, h0=h0, lengths=lengths, h=h, last=last,
    )  # fmt: skip
    y = _product(h, c.T)
    if d is not None:
        y.addcmul_(flat, d)
    y = y.view(batch, time, outputs)
    if d is not None and lengths is not None:
        y.masked_fill_(_inside(lengths, time).logical_not_(), 0)
    return y, h.view(batch, time, planar), last


def lru_backward(
    u: Float[Tensor, "batch time inputs"],
    lam_re: Float[Tensor, " states"],
    lam_im: Float[Tensor, " states"] | None,
    b: Float[Tensor, "planar inputs"],
    c: Float[Tensor, "outputs planar"],
    d: Float[Tensor, " outputs"] | None,
    h0: Float[Tensor, "batch planar"] | None,
    lengths: Int64[Tensor, " batch"] | None,
    reverse: bool,
    h: Float[Tensor, "batch time planar"],
    grad_y: Float[Tensor, "batch time outputs"] | None,
    grad_last: Float[Tensor, "batch planar"] | None,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, lam (planar), b, c, d and h0 where `wanted` says so; empty tensors elsewhere."""
    flags("lru", "wanted", wanted, 6)
    present("lru", h)
    want_u, want_lam, want_b, want_c, want_d, _ = wanted
    batch, time, inputs, planar, outputs = _verify(u, lam_re, lam_im, b, c, d, h0, lengths)
    row = (batch, planar)
    verify("lru", u, (h, (batch, time, planar)), (grad_y, (batch, time, outputs)), (grad_last, row))
    nothing = u.new_empty(0)
    if lengths is not None and d is not None and grad_y is not None:
        grad_y = grad_y * _inside(lengths, time)
    lengths, h0, grad_last = dense(lengths), dense(h0), dense(grad_last)
    lam, h = _eigenvalues(lam_re, lam_im), dense(h)
    if grad_y is not None and fused.suits(inputs, planar, outputs):
        weights = (dense(b), dense(c), dense(d))
        grads = fused.backward(
            dense(u), lam, lam_im is not None, *weights, h0, lengths, reverse,
            h, dense(grad_y), grad_last, list(wanted),
        )  # fmt: skip
        return grads[0], grads[1].sum(0) if want_lam else nothing, *grads[2:]
    flat_u, flat_h = u.reshape(batch * time, inputs), h.view(batch * time, planar)
    flat_y = None if grad_y is None else grad_y.reshape(batch * time, outputs)
    g = u.new_zeros((batch * time, planar)) if flat_y is None else _product(flat_y, c)
    grad_lam, grad_h0 = (empty(row if want else (0,), u.dtype) for want in (want_lam, True))
    call(
        "lru", "lru_backward", u.dtype, planar=lam_im is not None, reverse=reverse, rows=batch, steps=time,
        numbers=planar, lam=lam, h=h, h0=h0, grad_last=grad_last, lengths=lengths, g=g,
        grad_lam=grad_lam if want_lam else None, grad_h0=grad_h0,
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


def _forward_meta(
    u: Tensor,
    lam_re: Tensor,
    lam_im: Tensor | None,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    h0: Tensor | None,
    lengths: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, time, _ = u.shape
    planar = b.shape[0]
    return (
        u.new_empty((batch, time, c.shape[0])),
        u.new_empty((batch, time, planar)),
        u.new_empty((batch, planar)),
    )


def _backward_meta(
    u: Tensor,
    lam_re: Tensor,
    lam_im: Tensor | None,
    b: Tensor,
    c: Tensor,
    d: Tensor | None,
    h0: Tensor | None,
    lengths: Tensor | None,
    reverse: bool,
    h: Tensor,
    grad_y: Tensor | None,
    grad_last: Tensor | None,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:
    shapes = (u.shape, (b.shape[0],), b.shape, c.shape, (c.shape[0],), (u.shape[0], b.shape[0]))
    there = (*wanted[:4], wanted[4] and d is not None, True)
    return tuple(u.new_empty(shape if want else 0) for shape, want in zip(shapes, there, strict=True))


_LIBRARY.impl("lru_forward", lru_forward, "CPU")
_LIBRARY.impl("lru_backward", lru_backward, "CPU")
_LIBRARY.impl("lru_forward", _forward_meta, "Meta")
_LIBRARY.impl("lru_backward", _backward_meta, "Meta")
