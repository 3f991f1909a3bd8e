"""open-activations: does the curse of memory hold for the leaky form dh/dt = -h + sigma(W h + U x + b)?

The theorem of iat is about dh/dt = sigma(W h + U x + b) with tanh or hardtanh. Networks of the leaky form with four activations
learn a functional with polynomial and one with exponential memory; their weights are perturbed.

The criterion, for each activation: unstable on the power law and stable on the exponential by the rule of `assess_stability`,
all weights perturbed; undecided where fewer than four widths approximate. The same for recurrent weights alone is reported too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.experiments.open import _copies, _verdicts
from holdfast_papers.experiments.rates._copies import Weights

FASTEST = 2.0  # of the rates at the start; the slowest is 1/m
NAMES = {"tanh": "tanh", "sigmoid": "sigmoid", "relu": "ReLU", "softsign": "softsign"}


@dataclass(frozen=True)
class Activation:
    """An activation, and where its units rest at the start.

    Args:
        of: the function.
        rest: what a unit sums up to where it rests.
        slope: of the function there.
    """

    of: Callable[[Tensor], Tensor]
    rest: float
    slope: float


ACTIVATIONS = {
    "tanh": Activation(torch.tanh, 0.0, 1.0),
    "sigmoid": Activation(torch.sigmoid, 0.0, 0.25),
    "relu": Activation(torch.relu, 1.0, 1.0),  # in the middle of its linear part
    "softsign": Activation(torch.nn.functional.softsign, 0.0, 1.0),
}


def start(activation: str, widths: Sequence[int], seeds: int) -> tuple[Weights, Weights]:
    """Weights and masks of one copy for each width and seed, seeds varying fastest.

    Linearized where it rests, a network decays at rates that are geometric on [1/m, 2], with random eigenvectors.

    Args:
        activation: a key of ACTIVATIONS.
        widths: numbers of units.
        seeds: copies of each width.
    """
    about = ACTIVATIONS[activation]
    rest = float(about.of(torch.tensor(about.rest)))
    widest, made, masks = max(widths), [], []
    for m in widths:
        for seed in range(seeds):
            rng = torch.Generator().manual_seed(seed)
            Q = torch.linalg.qr(torch.randn(m, m, generator=rng))[0]
            rates = torch.logspace(-math.log10(m), math.log10(FASTEST), m)
            W = (Q * ((1 - rates) / about.slope)) @ Q.mT
            R = torch.randn(m, 1, generator=rng) / m
            one = {
                "W": W, "U": torch.randn(m, 1, generator=rng) / about.slope, "b": (about.rest - rest * W.sum(1)).unsqueeze(1),
                "R": R, "r": -rest * R.sum().reshape(1, 1),
            }  # fmt: skip
            made.append({name: padded(value, widest) for name, value in one.items()})
            masks.append({name: padded(torch.ones_like(value), widest) for name, value in one.items()})
    return _stacked(made), _stacked(masks)


def padded(value: Tensor, widest: int) -> Tensor:
    """A matrix with zeros beyond it: (m, m), (m, 1) or (1, 1) up to the widest network."""
    room = [size if size == 1 else widest for size in value.shape]
    # a width of 1 is a size of 1 too: no experiment has it
    return torch.nn.functional.pad(value, (0, room[1] - value.shape[1], 0, room[0] - value.shape[0]))


def _stacked(weights: Sequence[Weights]) -> Weights:
    return {name: torch.stack([w[name] for w in weights]) for name in weights[0]}


def leaky(activation: str, masks: Weights) -> _copies.Outputs:
    """Outputs of h+ = h + dt (-h + sigma(W h + U x + b)), y = R'h + r, from the rest of the start.

    Args:
        activation: a key of ACTIVATIONS.
        masks: 1 where a weight is; those of the copies, or as many in a row for each copy as weights come.
    """
    about = ACTIVATIONS[activation]
    rest = float(about.of(torch.tensor(about.rest)))

    def outputs(weights: Weights, x: Tensor) -> Tensor:
        times = len(weights["W"]) // len(masks["W"])
        w = {name: value * masks[name].repeat_interleave(times, 0) for name, value in weights.items()}
        given = torch.einsum("cbti,cmi->tcbm", x, w["U"]) + w["b"].mT
        h = x.new_full((*x.shape[:2], w["W"].shape[-1]), rest)
        W, states = w["W"].mT, []
        for own in given:
            h = torch.lerp(h, about.of(torch.baddbmm(own, h, W)), _copies.DT)
            states.append(h)
        return torch.einsum("tcbm,cmo->cbto", torch.stack(states), w["R"]) + w["r"].unsqueeze(1)

    return outputs


def run(config: Config, work: Work) -> Arrays:
    """Copies of every target, width and seed with one activation: trained, then perturbed."""
    widths, seeds, targets = config["widths"], config["seeds"], list(_copies.TARGETS)
    weights, masks = start(config["activation"], widths * len(targets), seeds)
    each = len(widths) * seeds
    names = [target for target in targets for _ in range(each)]
    outputs = leaky(config["activation"], masks)
    arrays = _copies.trained_and_measured(outputs, weights, masks, names, ["W"], config, work)
    return arrays | {
        "m": np.array(widths * len(targets)).repeat(seeds), "seed": np.tile(np.arange(seeds), len(widths) * len(targets)),
        "target": np.arange(len(targets)).repeat(each),
    }  # fmt: skip


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Verdicts for each activation and target."""
    found = {NAMES[u.config["activation"]]: [u] for u in units}
    return _verdicts.conclusion(config, found, "Networks dh/dt = -h + sigma(W h + U x + b), y = c'h + d")


EXPERIMENT = Experiment(
    id="open-activations",
    where="Open question (Inverse Approximation Theory, Sec. 5)",
    title="Leaky networks with four activations",
    summary="Networks dh/dt = -h + sigma(W h + U x + b) with tanh, sigmoid, ReLU and softsign learn functionals with "
    "polynomial and exponential memory, and their weights are perturbed.",
    presets=presets(
        {
            "activations": list(ACTIVATIONS), "widths": [4, 8, 12, 16, 24], "seeds": 2, "steps": 5000, "batch": 16, "lr": 0.005,
            "train_steps": 200, "measured_steps": 600, "sequences": 8, "starts": 6, "ascent": 20, "least": 1e-4, "most": 3.0,
        },
        quick={
            "widths": [4, 6, 8, 12], "seeds": 1, "steps": 20, "batch": 4, "train_steps": 50, "measured_steps": 60,
            "sequences": 2, "starts": 2, "ascent": 2, "activations": ["tanh", "relu"],
        },
    ),
    units=lambda config: split(drop(config, "activations"), activation=config["activations"]),
    run=run,
    conclude=conclude,
    cost=lambda config: _copies.cost(config, 3e-4, 5e-4),
)  # fmt: skip
