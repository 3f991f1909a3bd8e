"""stable-table6: sequential CIFAR-10 under five parameterizations of the recurrent weights."""

from __future__ import annotations

from holdfast_papers.experiments.stable import _images

FACTS = _images.Facts(
    name="cifar10",
    title="CIFAR-10",
    side=32,
    margin=3.0,
    paper={"best": 0.6641, "exp": 0.6587, "softplus": 0.6584, "direct": 0.09736},
    published="S4D 89.8%, LRU 89.0%, S5 90.1%",
)

EXPERIMENT = _images.experiment(
    "stable-table6",
    "Table 6",
    FACTS,
    summary="Colour photographs",
    paper={"steps": 3515, "single_steps": 3515},
    standard={"valid": 1000, "test": 2000, "grey": True, "steps": 5 * 70, "single_steps": 70},
)
