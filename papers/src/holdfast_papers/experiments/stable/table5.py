"""stable-table5: sequential MNIST under five parameterizations of the recurrent weights."""

from __future__ import annotations

from holdfast_papers.experiments.stable import _images

FACTS = _images.Facts(
    name="mnist",
    title="MNIST",
    side=28,
    margin=1.0,
    paper={"best": 0.993, "exp": 0.9921, "softplus": 0.9919, "direct": 0.1009},
    published="S4 99.27% (20 epochs, annotated-s4), S5 99.65%",
)

EXPERIMENT = _images.experiment(
    "stable-table5",
    "Table 5",
    FACTS,
    summary="Handwritten digits",
    paper={"steps": 4296, "single_steps": 4296},
    standard={"valid": 2000, "test": 10_000, "steps": 906, "single_steps": 453},
)
