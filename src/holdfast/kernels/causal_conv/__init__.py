"""The short causal convolution before a selective scan: each channel by itself, with the last inputs as its state.

`_op.py` checks and chooses between `_reference.py`, `_native.py` and `_gpu.py`, which launches the programs of
`_triton_kernels.py` by way of `_triton.py`.
"""

from __future__ import annotations

from holdfast.kernels.causal_conv._op import causal_conv
from holdfast.kernels.causal_conv._reference import causal_conv_reference

__all__ = ["causal_conv", "causal_conv_reference"]
