"""The rows of the speed table, one file per kernel.

Shapes are (B, T, D, N): batch, time, features and state size.
"""

from holdfast_papers.benchmarks.cases import lru, packed, rnn, s4d, scan, selective

__all__ = ["lru", "packed", "rnn", "s4d", "scan", "selective"]
