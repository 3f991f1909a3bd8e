"""The selective scan of Mamba: a diagonal recurrence whose step, input and output weights change with time.

`_op.py` checks and chooses between `_reference.py`, `_chunked.py`, `_native.py` and `_triton.py`, which launches the programs
of `_triton_kernels.py`; `_heads.py` has Mamba-2's heads as products
of blocks, `_watch.py` lets others see step sizes.
"""

from __future__ import annotations

from holdfast.kernels.selective._heads import selective_heads
from holdfast.kernels.selective._op import selective
from holdfast.kernels.selective._reference import selective_reference

__all__ = ["selective", "selective_heads", "selective_reference"]
