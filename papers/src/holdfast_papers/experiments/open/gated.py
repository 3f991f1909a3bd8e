"""open-gated: are families of trained LSTMs and GRUs stable by the rule?

The theorem of iat leaves gated networks out. LSTMs and GRUs of several widths learn a functional with polynomial and one with
exponential memory; their weights are perturbed.

The criterion, for each cell: stable on the exponential and unstable on the power law by the rule of `assess_stability`, all
weights perturbed; undecided where fewer than four widths approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.kernels import gru, lstm
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.experiments.open import _copies, _verdicts
from holdfast_papers.experiments.rates import _gated
from holdfast_papers.experiments.rates._copies import Weights

CELLS = {"lstm": "LSTM", "gru": "GRU"}
RECURRENT = ["V"]  # W reads the input


def start(cell: str, m: int, seeds: int, targets: int) -> Weights:
    """Copies of torch's layer for each target and seed, biases as matrices of one column."""
    made = _gated.start(cell, 1, m, seeds)
    made |= {name: made[name].unsqueeze(-1) for name in ("a", "b")}
    return {name: value.repeat(targets, 1, 1).clone() for name, value in made.items()}


def gated(cell: str) -> _copies.Outputs:
    """Outputs of every step, from the state 0."""
    kernels: dict[str, Callable[..., tuple[Tensor, ...]]] = {"lstm": lstm, "gru": gru}
    layer = kernels[cell]

    def outputs(weights: Weights, x: Tensor) -> Tensor:
        flat = weights | {name: weights[name].squeeze(-1) for name in ("a", "b")}
        each = zip(*(flat[name].unbind() for name in ("W", "V", "a", "b")), strict=True)
        states = torch.stack([layer(own, copy)[0] for own, copy in zip(x.unbind(), each, strict=True)])
        return torch.einsum("cbtm,cmo->cbto", states, flat["R"]) + flat["r"].unsqueeze(1)

    return outputs


def run(config: Config, work: Work) -> Arrays:
    """Copies of every target and seed of one cell and width: trained, then perturbed."""
    seeds, targets = config["seeds"], list(_copies.TARGETS)
    weights = start(config["cell"], config["m"], seeds, len(targets))
    names = [target for target in targets for _ in range(seeds)]
    masks = {name: torch.ones_like(value) for name, value in weights.items()}
    arrays = _copies.trained_and_measured(gated(config["cell"]), weights, masks, names, RECURRENT, config, work)
    return arrays | {
        "m": np.full(len(names), config["m"]), "seed": np.tile(np.arange(seeds), len(targets)),
        "target": np.arange(len(targets)).repeat(seeds),
    }  # fmt: skip


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Verdicts for each cell and target."""
    found = {shown: [u for u in units if u.config["cell"] == cell] for cell, shown in CELLS.items()}
    return _verdicts.conclusion(config, found, "Layers as torch makes them, with a linear readout")


EXPERIMENT = Experiment(
    id="open-gated",
    where="Open question (Inverse Approximation Theory, Sec. 5)",
    title="Families of trained LSTMs and GRUs",
    summary="LSTMs and GRUs of several widths learn functionals with polynomial and exponential memory, and their weights are "
    "perturbed.",
    presets=presets(
        {
            "cells": list(CELLS), "widths": [8, 12, 16, 32, 64], "seeds": 3, "steps": 5000, "batch": 16, "lr": 0.005,
            "train_steps": 200, "measured_steps": 1600, "sequences": 8, "starts": 6, "ascent": 20, "least": 1e-4, "most": 3.0,
        },
        quick={
            "cells": list(CELLS), "widths": [2, 3, 4, 5], "seeds": 1, "steps": 10, "batch": 4, "train_steps": 30,
            "measured_steps": 40, "sequences": 2, "starts": 2, "ascent": 2,
        },
    ),
    units=lambda config: split(drop(config, "cells", "widths"), cell=config["cells"], m=config["widths"]),
    run=run,
    conclude=conclude,
    cost=lambda config: _copies.cost(config, 1e-5 + 2e-6 * config["m"], 6e-5 + 6e-6 * config["m"]),
)  # fmt: skip
