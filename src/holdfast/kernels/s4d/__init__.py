"""The fused S4D layer: diagonal state-space modes from continuous eigenvalues to outputs.

As every kernel: `reference.py`, `chunked.py`, `native.py`, `op.py`; also `choice.py` (scan or Fourier transform),
`discretize.py` (for the torch versions) and `step.py` (one step of a stream).
"""

from __future__ import annotations

from holdfast.kernels.s4d.choice import Choice, choose
from holdfast.kernels.s4d.op import s4d
from holdfast.kernels.s4d.reference import s4d_reference
from holdfast.kernels.s4d.step import s4d_step

__all__ = ["Choice", "choose", "s4d", "s4d_reference", "s4d_step"]
