"""Gated recurrences, LSTM and GRU, with torch's weights: `_reference.py` is the plain loop, `_native.py` calls C++, `_op.py`
checks, chooses and owns the gradient, `_step.py` is one step of a stream.

On a GPU `_gpu.py` owns the gradient, with `_triton.py` and `_triton_kernels.py`.
"""

from holdfast.kernels.gated._op import gru, lstm
from holdfast.kernels.gated._reference import gru_reference, lstm_reference

__all__ = ["gru", "gru_reference", "lstm", "lstm_reference"]
