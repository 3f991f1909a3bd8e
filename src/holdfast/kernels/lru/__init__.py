"""The linear recurrent unit: a planar complex scan between two matrix products.

As every kernel: `_reference.py`, `_chunked.py`, `_native.py`, `_op.py`; on a GPU `_gpu.py` with its gradient, by
`_triton.py`, which starts the programs of `_triton_kernels.py`.
"""

from __future__ import annotations

from holdfast.kernels._common.backends import choose
from holdfast.kernels.lru._op import lru
from holdfast.kernels.lru._reference import lru_reference

__all__ = ["choose", "lru", "lru_reference"]
