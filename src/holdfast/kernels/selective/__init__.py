"""The selective scan of Mamba: a diagonal recurrence whose step, input and output weights change with time."""

from __future__ import annotations

from holdfast.kernels.selective.heads import selective_heads
from holdfast.kernels.selective.op import selective
from holdfast.kernels.selective.reference import selective_reference

__all__ = ["selective", "selective_heads", "selective_reference"]
