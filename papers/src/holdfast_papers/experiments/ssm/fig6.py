"""ssm-fig6: memory of random S4."""

from __future__ import annotations

from holdfast_papers.experiments.base import Experiment, presets
from holdfast_papers.experiments.ssm._random import conclude, run, units

EXPERIMENT = Experiment(
    id="ssm-fig6",
    where="Figure 6",
    title="Memory of random S4",
    summary="Heaviside memory functions of randomly initialised stacks of S4 blocks, and whether a straight line in "
    "logarithmic scale caps their late decay.",
    presets=presets(
        {"kinds": ["s4"], "repeats": 10, "width": 64, "depths": [1, 2, 4], "amplitude": 1.0},
        standard={},
        quick={"repeats": 3, "width": 32, "depths": [1, 2]},
    ),
    units=units,
    run=run,
    conclude=conclude,
    version=2,
    cost=lambda config: 0.5 * config["depth"],
)
