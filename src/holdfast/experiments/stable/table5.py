"""stable-table5: sequential MNIST under five parameterizations of the recurrent weights."""

from __future__ import annotations

from functools import partial

from holdfast.experiments.base import Experiment, presets
from holdfast.experiments.stable import _images

FACTS = _images.Facts(
    name="mnist",
    title="MNIST",
    side=28,
    paper={"best": 0.993, "exp": 0.9921, "softplus": 0.9919, "direct": 0.1009},
    published="S4 99.27% (20 epochs, annotated-s4), S5 99.65%",
)

EXPERIMENT = Experiment(
    id="stable-table5",
    where="Table 5",
    title="Sequential MNIST by parameterization",
    summary="Handwritten digits read pixel by pixel and classified, the recurrent weights under five parameterizations from "
    "the same eigenvalues, and direct from the authors' start as well.",
    presets=presets(
        {
            "download": True, "train": 0, "valid": 5000, "test": 0, "pool": 1, "steps": 4296,
            "shares": [0.1, 0.3, 1.0, 3.0], "seeds": 3, "width": 64, "depth": 2, "states": 64, "lr": 0.01,
            "weight_decay": 0.01, "batch": 128, "warmup": 20, "slowest": 1e-3, "fastest": 0.5,
        },
        standard={"train": 0, "valid": 2000, "test": 10_000, "pool": 2, "steps": 150},
        quick={
            "download": False, "train": 4000, "valid": 200, "test": 500, "pool": 4, "steps": 30, "shares": [1.0],
            "seeds": 1, "warmup": 5,
        },
    ),
    units=partial(_images.units, facts=FACTS),
    run=_images.run,
    conclude=partial(_images.conclude, facts=FACTS),
    cost=_images.cost,
)  # fmt: skip
