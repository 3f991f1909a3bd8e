"""What the Triton programs of nonlinear recurrences share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(z):
    # of the absolute value: exp(-2 |z|) does not overflow; near 0, where 1 - e cancels, by its series
    size = tl.abs(z)
    e = tl.exp(-2.0 * size)
    square = z * z
    series = size * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    t = tl.where(size < 0.15, series, (1.0 - e) / (1.0 + e))
    return tl.where(z < 0.0, -t, t)


@triton.jit
def ends(lengths, row, rows, time, HAS_LENGTHS: tl.constexpr):
    """Steps of each row; none of a row past the last one."""
    if HAS_LENGTHS:
        return tl.minimum(tl.load(lengths + row, mask=row < rows, other=0), time).to(tl.int32)
    return tl.where(row < rows, time, 0)
