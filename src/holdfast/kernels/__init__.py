"""Recurrences, and the gate between them: reference, torch and native C++ versions of each, behind one function.

A folder for each: `_reference.py` has the arguments as one NamedTuple and the plain loop, `_chunked.py` runs on any device,
`_native.py` calls C++ (`csrc/`), `_triton.py` launches the GPU programs of `_triton_kernels.py`, `_op.py` checks, chooses and
owns the gradient. What they share is in `_common/`; `_common/backends.py` is where backends are registered and chosen.
"""

from holdfast.kernels._memory import reuse_memory
from holdfast.kernels.causal_conv import causal_conv
from holdfast.kernels.gate import gate
from holdfast.kernels.gated import gru, lstm
from holdfast.kernels.lru import lru
from holdfast.kernels.rnn import rnn
from holdfast.kernels.s4d import s4d
from holdfast.kernels.scan import scan
from holdfast.kernels.selective import selective

__all__ = ["causal_conv", "gate", "gru", "lru", "lstm", "reuse_memory", "rnn", "s4d", "scan", "selective"]
