"""ssm-fig5: memory of random RNN, GRU, LSTM and state-space models with tanh between layers."""

from __future__ import annotations

from holdfast_papers.experiments.base import Experiment, presets
from holdfast_papers.experiments.ssm._random import conclude, run, units

KINDS = ["rnn", "gru", "lstm", "ssm"]

EXPERIMENT = Experiment(
    id="ssm-fig5",
    where="Figure 5",
    title="Memory of random recurrent networks",
    summary="Heaviside memory functions of randomly initialised RNN, GRU, LSTM and state-space models with nothing but "
    "tanh between layers, and whether a straight line in logarithmic scale caps their late decay.",
    presets=presets(
        {"kinds": KINDS, "repeats": 10, "width": 64, "depths": [1, 2, 4], "amplitude": 1.0},
        standard={},
        quick={"repeats": 3, "width": 32, "depths": [1, 2]},
    ),
    units=units,
    run=run,
    conclude=conclude,
    version=2,
    cost=lambda config: {"rnn": 0.2, "gru": 0.5, "lstm": 0.5, "ssm": 0.5}[config["kind"]] * config["depth"],
)
