"""The selective scan of Mamba: a diagonal recurrence whose step, input and output weights change with time.

`op.py` checks and chooses between `reference.py`, `chunked.py` and `native.py`; `heads.py` has Mamba-2's heads as products
of blocks, `watch.py` lets others see step sizes, `limit.py` measures what the exponentials alone take.
"""

from __future__ import annotations

from holdfast.kernels.selective.heads import selective_heads
from holdfast.kernels.selective.op import selective
from holdfast.kernels.selective.reference import selective_reference

__all__ = ["selective", "selective_heads", "selective_reference"]
