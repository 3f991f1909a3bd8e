"""The nonlinear RNN of the papers, fused: versions in torch, C++ and Triton behind `rnn`.

As every kernel: `_reference.py`, `_chunked.py`, `_native.py`, `_op.py`; `_autograd.py` has the operators and their gradient,
`_triton.py` launches the programs of `_triton_kernels.py` on a GPU.
"""

from holdfast.kernels._common.backends import choose
from holdfast.kernels.rnn._op import rnn
from holdfast.kernels.rnn._reference import ACTIVATIONS, Activation, rnn_reference

__all__ = ["ACTIVATIONS", "Activation", "choose", "rnn", "rnn_reference"]
