"""The nonlinear RNN of the papers, fused: reference, chunked torch and native C++ versions behind `rnn`."""

from holdfast.kernels._common.backends import choose
from holdfast.kernels.rnn._op import rnn
from holdfast.kernels.rnn._reference import ACTIVATIONS, Activation, rnn_reference

__all__ = ["ACTIVATIONS", "Activation", "choose", "rnn", "rnn_reference"]
