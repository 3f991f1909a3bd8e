"""The linear scan h_t = a_t h_{t-1} + b_t.

`_op.py` checks and chooses between `_reference.py`, `_chunked.py`, `_native.py` and `_gpu.py`, which launches the programs of
`_triton_kernels.py` by way of `_triton.py`.
"""

from __future__ import annotations

from holdfast.kernels._common.backends import choose
from holdfast.kernels.scan._op import scan
from holdfast.kernels.scan._reference import scan_reference

__all__ = ["choose", "scan", "scan_reference"]
