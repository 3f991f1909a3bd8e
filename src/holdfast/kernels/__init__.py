"""Recurrences, and the gate between them: reference, torch and native C++ versions of each, behind one function.

A folder for each: `reference.py` is the plain loop, `chunked.py` runs on any device, `native.py` calls C++ (`csrc/`),
`op.py` checks, chooses and owns the gradient. They share `library.py` (finds the compiled library), `checks.py`
(arguments, in words), `segments.py` (rows cut at resets and packed bounds), `arguments.py` (the last look before C reads
a tensor), `calls.py` (the one way into C), `autograd.py` (ways in), `memory.py` (large results) and `stream.py` (what
the memory system gives).
"""

from holdfast.kernels.causal_conv import causal_conv
from holdfast.kernels.gate import gate
from holdfast.kernels.lru import lru
from holdfast.kernels.rnn import rnn
from holdfast.kernels.s4d import s4d
from holdfast.kernels.scan import scan
from holdfast.kernels.selective import selective

__all__ = ["causal_conv", "gate", "lru", "rnn", "s4d", "scan", "selective"]
