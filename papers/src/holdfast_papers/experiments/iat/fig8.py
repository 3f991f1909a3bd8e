"""iat-fig8: hardtanh and tanh networks with and without softplus on W; the criterion is in `_reparameterized`."""

from __future__ import annotations

from holdfast_papers.experiments.iat._reparameterized import experiment

ACTIVATIONS = ["hardtanh", "tanh"]

EXPERIMENT = experiment(
    8,
    "Hardtanh and tanh RNNs with and without softplus",
    ACTIVATIONS,
    standard={},
    quick={},
)
