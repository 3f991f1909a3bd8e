"""iat-fig7: ReLU networks with and without softplus on W; the criterion is in `_reparameterized`."""

from __future__ import annotations

from holdfast_papers.experiments.iat._reparameterized import experiment

ACTIVATIONS = ["relu"]

EXPERIMENT = experiment(
    7,
    "ReLU RNNs with and without softplus",
    ACTIVATIONS,
    standard={"widths": [6, 8, 10, 12, 14, 16]},
    quick={"train_steps": 100},
)
