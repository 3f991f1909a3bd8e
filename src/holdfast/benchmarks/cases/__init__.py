"""The rows of the speed table, one file a kernel.

Shapes are (B, T, D, N): batch, time, features and state size.
"""

from holdfast.benchmarks.cases import lru, rnn, s4d, scan, selective

__all__ = ["lru", "rnn", "s4d", "scan", "selective"]
