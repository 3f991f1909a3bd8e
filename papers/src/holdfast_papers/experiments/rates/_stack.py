"""Copies of a small stack that reads a sequence and answers at its last step.

An encoder of one hidden layer, then blocks x + C gelu(h), h the states of a DiagonalSSM of real modes that reads the normalized
x, and a linear readout of the last step: as `holdfast.nn.RecurrentStack` with DiagonalSSM, with the copies as one more axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.kernels import scan
from holdfast_papers.experiments.rates import _linear
from holdfast_papers.experiments.rates._copies import Weights


def recurrent_names(layers: int) -> tuple[str, ...]:
    """The recurrent weights of a stack."""
    return tuple(f"w{k}" for k in range(layers))


def start(sizes: tuple[int, int, int], rates: Tensor, layers: int, seeds: int) -> Weights:
    """All but the recurrent weights, for each seed.

    Args:
        sizes: number of inputs, width, number of outputs.
        rates: of the modes at the start, the same in each layer.
        layers: number of blocks.
        seeds: how many.
    """
    inputs, width, outputs = sizes
    shapes = {"E": (inputs, width), "F": (width, width), "R": (width, outputs)}
    for k in range(layers):
        shapes |= {f"U{k}": (width, len(rates)), f"C{k}": (len(rates), width)}
    made: dict[str, list[Tensor]] = {name: [] for name in shapes}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        for name, shape in shapes.items():
            made[name].append((2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(shape[0]))
    weights = {name: torch.stack(values) for name, values in made.items()}
    lam = -rates
    level = (-torch.expm1(2 * lam)).sqrt().div(torch.expm1(lam) / lam).float()
    for k in range(layers):
        weights[f"U{k}"] *= level
        weights[f"g{k}"] = torch.ones(seeds, 1, width)
        weights[f"b{k}"] = torch.zeros(seeds, 1, len(rates))
    return weights | {"e": torch.zeros(seeds, 1, width), "r": torch.zeros(seeds, 1, outputs)}


def answers(names: Sequence[str], weights: Weights, inputs: Tensor, layers: int) -> Tensor:
    """Outputs at the last step (copies, batch, outputs).

    Args:
        names: the parameterizations, each of an equal share of the copies in a row.
        weights: of the copies.
        inputs: (seeds, batch, time, features), the same for all copies of a seed.
        layers: number of blocks.
    """
    copies, (seeds, batch, time, _) = len(weights["E"]), inputs.shape
    tokens = inputs.flatten(1, 2).repeat(copies // seeds, 1, 1)
    x = torch.bmm(functional.gelu(torch.baddbmm(weights["e"], tokens, weights["E"])), weights["F"])
    for k in range(layers):
        z = functional.layer_norm(x, x.shape[-1:]) * weights[f"g{k}"]
        lam = _linear.eigenvalues(names, weights[f"w{k}"]).unsqueeze(1)
        U = weights[f"U{k}"] * (torch.expm1(lam) / lam)
        u = torch.baddbmm(weights[f"b{k}"], z, U).unflatten(1, (batch, time)).flatten(0, 1)
        decay = torch.exp(lam).expand(copies, batch, -1).reshape(copies * batch, 1, -1)
        h, _ = scan(decay, u)
        h, x = (h, x) if k < layers - 1 else (h[:, -1:], x.unflatten(1, (batch, time))[:, :, -1:].flatten(1, 2))
        x = x + torch.bmm(functional.gelu(h).reshape(copies, -1, h.shape[-1]), weights[f"C{k}"])
    return torch.baddbmm(weights["r"], x, weights["R"])


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of each copy: cross-entropy for classes (seeds, batch), squares for numbers (seeds, batch, outputs)."""
    seeds = len(targets)
    every = targets.repeat(len(outputs) // seeds, *(1,) * (targets.ndim - 1))
    if every.is_floating_point():
        return (outputs - every).square().mean((1, 2))
    return (
        functional.cross_entropy(outputs.flatten(0, 1), every.flatten(), reduction="none")
        .unflatten(0, every.shape)
        .mean(1)
    )
