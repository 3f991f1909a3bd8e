"""ssm-fig5: memory of random RNN, GRU, LSTM and state-space models with tanh between layers."""

from __future__ import annotations

from holdfast_papers.experiments.ssm._random import experiment

EXPERIMENT = experiment(
    5,
    "Memory of random recurrent networks",
    "Heaviside memory functions of randomly initialized RNN, GRU, LSTM and state-space models with nothing but tanh between "
    "layers, and whether a straight line in logarithmic scale caps their late decay.",
    ("rnn", "gru", "lstm", "ssm"),
)
