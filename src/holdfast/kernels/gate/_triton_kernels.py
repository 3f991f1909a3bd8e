"""The gated residual as Triton programs: a tile of tokens and features each, both halves of the product in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from holdfast.kernels._common._triton_functions import tanh


@triton.jit
def gate_forward_kernel(
    y, x, weight, bias, out, z, tokens, width, KEEP: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    TOKENS: tl.constexpr, FEATURES: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """x + p sigmoid(q) with [p | q] = gelu(y) weight' + bias; z holds [p | q] where backward will ask for it."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    j = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    p = tl.zeros((TOKENS, FEATURES), tl.float32)
    q = p
    for start in range(0, width, INNER):
        k = start + tl.arange(0, INNER)
        given = tl.load(
            y + token[:, None] * width + k[None, :], mask=(token < tokens)[:, None] & (k < width)[None, :], other=0.0
        ).to(tl.float32)
        # gelu in its tanh form; sqrt(2 / pi) = 0.7978845608
        active = 0.5 * given * (1.0 + tanh(0.7978845608 * (given + 0.044715 * given * given * given)))
        active = active.to(y.dtype.element_ty)
        rows = weight + j[None, :].to(tl.int64) * width + k[:, None]
        inside = (k < width)[:, None] & (j < width)[None, :]
        upper = tl.load(rows, mask=inside, other=0.0)
        lower = tl.load(rows + width * width, mask=inside, other=0.0)
        if WIDE:  # the interpreter has no products in bfloat16
            active, upper, lower = active.to(tl.float32), upper.to(tl.float32), lower.to(tl.float32)
        p = tl.dot(active, upper, p, input_precision=PRECISION)
        q = tl.dot(active, lower, q, input_precision=PRECISION)
    known = (token < tokens)[:, None] & (j < width)[None, :]
    p += tl.load(bias + j, mask=j < width, other=0.0)[None, :].to(tl.float32)
    q += tl.load(bias + width + j, mask=j < width, other=0.0)[None, :].to(tl.float32)
    place = token[:, None] * width + j[None, :]
    if KEEP:
        kept = token[:, None] * (2 * width) + j[None, :]
        tl.store(z + kept, p.to(z.dtype.element_ty), mask=known)
        tl.store(z + kept + width, q.to(z.dtype.element_ty), mask=known)
    residual = tl.load(x + place, mask=known, other=0.0).to(tl.float32)
    tl.store(out + place, (residual + p * tl.sigmoid(q)).to(out.dtype.element_ty), mask=known)
