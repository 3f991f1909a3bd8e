"""Recurrences, and the gate between them: reference, torch and native C++ versions of each, behind one function."""

from holdfast.kernels.gate import gate
from holdfast.kernels.lru import lru
from holdfast.kernels.rnn import rnn
from holdfast.kernels.s4d import s4d
from holdfast.kernels.scan import scan

__all__ = ["gate", "lru", "rnn", "s4d", "scan"]
