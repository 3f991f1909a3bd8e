"""The linear recurrent unit: a planar complex scan between two matrix products."""

from __future__ import annotations

from holdfast.kernels._common.backends import choose
from holdfast.kernels.lru._op import lru
from holdfast.kernels.lru._reference import lru_reference

__all__ = ["choose", "lru", "lru_reference"]
