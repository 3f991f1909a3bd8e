"""Recurrent layers, blocks and stacks with stable memory."""

from holdfast.nn.base import AbstractRecurrent
from holdfast.nn.blocks import GatedBlock, GatedMLP, HyenaBlock, NaiveBlock
from holdfast.nn.continuous_gru import ContinuousGRU
from holdfast.nn.continuous_rnn import ContinuousRNN
from holdfast.nn.diagonal_ssm import DiagonalSSM
from holdfast.nn.linear_rnn import LinearRNN
from holdfast.nn.lru import LRU
from holdfast.nn.models import LanguageModel, SequenceClassifier, SequenceModel
from holdfast.nn.recurrence import Recurrence
from holdfast.nn.s4d import S4D
from holdfast.nn.selective_ssm import SelectiveSSM

# every recurrent layer by its name: a new one is added here
LAYERS: dict[str, type[AbstractRecurrent]] = {
    layer.__name__: layer for layer in (DiagonalSSM, LinearRNN, LRU, S4D, SelectiveSSM, ContinuousRNN, ContinuousGRU)
}

__all__ = [
    "LAYERS",
    "LRU",
    "S4D",
    "AbstractRecurrent",
    "ContinuousGRU",
    "ContinuousRNN",
    "DiagonalSSM",
    "GatedBlock",
    "GatedMLP",
    "HyenaBlock",
    "LanguageModel",
    "LinearRNN",
    "NaiveBlock",
    "Recurrence",
    "SelectiveSSM",
    "SequenceClassifier",
    "SequenceModel",
]
