"""ssm-fig6: memory of random S4."""

from __future__ import annotations

from holdfast_papers.experiments.ssm._random import experiment

EXPERIMENT = experiment(
    6,
    "Memory of random S4",
    "Heaviside memory functions of randomly initialized stacks of S4 blocks, and whether a straight line in logarithmic scale "
    "caps their late decay.",
    ("s4",),
)
