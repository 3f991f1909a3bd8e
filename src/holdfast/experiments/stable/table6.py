"""stable-table6: sequential CIFAR-10 under five parameterizations of the recurrent weights."""

from __future__ import annotations

from functools import partial

from holdfast.experiments.base import Experiment, presets
from holdfast.experiments.stable import _images

FACTS = _images.Facts(
    name="cifar10",
    title="CIFAR-10",
    side=32,
    paper={"best": 0.6641, "exp": 0.6587, "softplus": 0.6584, "direct": 0.09736},
    published="S4D 89.8%, LRU 89.0%, S5 90.1%",
)

EXPERIMENT = Experiment(
    id="stable-table6",
    where="Table 6",
    title="Sequential CIFAR-10 by parameterization",
    summary="Colour photographs read pixel by pixel and classified, the recurrent weights under five parameterizations from "
    "the same eigenvalues, and direct from the authors' start as well.",
    presets=presets(
        {
            "download": True, "train": 0, "valid": 5000, "test": 0, "pool": 1, "steps": 3515,
            "shares": [0.1, 0.3, 1.0, 3.0], "seeds": 3, "width": 64, "depth": 2, "states": 64, "lr": 0.01,
            "weight_decay": 0.01, "batch": 128, "warmup": 20, "slowest": 1e-3, "fastest": 0.5,
        },
        standard={"train": 0, "valid": 1000, "test": 2000, "pool": 2, "steps": 120},
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
