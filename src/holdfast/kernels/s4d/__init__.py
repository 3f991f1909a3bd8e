"""The fused S4D layer: diagonal state-space modes from continuous eigenvalues to outputs.

As every kernel: `_reference.py`, `_chunked.py`, `_native.py`, `_op.py`; also `_choice.py` (scan or Fourier transform)
and `_step.py` (one step of a stream). `_tables.py` has the matrices of a block of time, which `_triton.py` makes on a GPU by
the programs of `_triton_kernels.py`.
"""

from __future__ import annotations

from holdfast.kernels.s4d._choice import Choice, choose
from holdfast.kernels.s4d._op import s4d
from holdfast.kernels.s4d._reference import s4d_reference
from holdfast.kernels.s4d._step import s4d_step

__all__ = ["Choice", "choose", "s4d", "s4d_reference", "s4d_step"]
