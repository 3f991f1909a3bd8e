"""iat-fig8: hardtanh and tanh networks with and without softplus on W; the criterion is in `_reparameterized`."""

from __future__ import annotations

from functools import partial

from holdfast_papers.experiments.base import Experiment, presets
from holdfast_papers.experiments.iat import _reparameterized as shared

ACTIVATIONS = ["hardtanh", "tanh"]

EXPERIMENT = Experiment(
    id="iat-fig8",
    where="Figure 8",
    title="Hardtanh and tanh RNNs with and without softplus",
    summary="Networks of several widths, W free or with softplus on its eigenvalues, are trained on the functional with memory "
    "(t+1)^-1.5, and their weights are perturbed.",
    presets=presets(
        shared.COMMON,
        standard={"steps": 4000, "tuned_seeds": 1, "train_size": 4096},
        quick={
            "steps": 150, "seeds": 1, "tuned_seeds": 0, "widths": [8, 16], "train_size": 1280, "test_size": 16,
            "long_steps": 400, "draws": 1,
        },
    ),
    units=partial(shared.units, activations=ACTIVATIONS),
    run=shared.run,
    conclude=partial(shared.conclude, activations=ACTIVATIONS),
    cost=shared.cost,
)  # fmt: skip
