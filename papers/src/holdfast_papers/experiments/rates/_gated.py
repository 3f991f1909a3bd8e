"""Copies of torch's LSTM and GRU at once, and how long each of them remembers on given inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast_papers.experiments.rates._copies import Weights

NUDGE = 1e-6  # size of the difference between two nearby states, in double
Step = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def module(cell: str, features: int, units: int, seed: int) -> nn.RNNBase:
    """One layer as torch makes it."""
    torch.manual_seed(seed)
    return {"lstm": nn.LSTM, "gru": nn.GRU}[cell](features, units, batch_first=True)


def start(cell: str, features: int, units: int, seeds: int) -> Weights:
    """Weights of torch's layer for each seed, with a linear readout to one number."""
    layers = [module(cell, features, units, seed) for seed in range(seeds)]
    names = {"weight_ih_l0": "W", "weight_hh_l0": "V", "bias_ih_l0": "a", "bias_hh_l0": "b"}
    weights = {short: torch.stack([getattr(layer, long).detach() for layer in layers]) for long, short in names.items()}
    bound = 1 / math.sqrt(units)
    heads = [(2 * torch.rand(units, 1, generator=torch.Generator().manual_seed(s)) - 1) * bound for s in range(seeds)]
    return weights | {"R": torch.stack(heads), "r": torch.zeros(seeds, 1, 1)}


def steps_of(cell: str, weights: Weights, x: Tensor) -> tuple[Step, tuple[Tensor, ...]]:
    """One step h, c -> h, c of all copies, and what the inputs (copies, batch, time, features) add to the gates."""
    copies, batch, time, features = x.shape
    split = torch.bmm(x.reshape(copies, -1, features), weights["W"].mT) + weights["a"].unsqueeze(1)
    if cell == "lstm":
        split = split + weights["b"].unsqueeze(1)
    given = split.unflatten(1, (batch, time)).unbind(2)
    b = weights["b"].unsqueeze(1)

    def lstm(own: Tensor, V: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = torch.baddbmm(own, h, V).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c

    def gru(own: Tensor, V: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        units = h.shape[-1]
        back = torch.baddbmm(b, h, V)
        r, z = torch.sigmoid(own[..., : 2 * units] + back[..., : 2 * units]).chunk(2, -1)
        n = torch.tanh(own[..., 2 * units :] + r * back[..., 2 * units :])
        return torch.lerp(n, h, z), c

    return (lstm if cell == "lstm" else gru), given


def answers(cell: str, weights: Weights, x: Tensor) -> Tensor:
    """Outputs at the last step (copies, batch, 1), from the state 0."""
    step, given = steps_of(cell, weights, x)
    V = weights["V"].mT
    h = c = x.new_zeros(*x.shape[:2], weights["V"].shape[-1])
    for own in given:
        h, c = step(own, V, h, c)
    return torch.bmm(h, weights["R"]) + weights["r"]


@torch.no_grad()
def time_constants(cell: str, weights: Weights, x: Tensor) -> Tensor:
    """Steps in which the difference of two nearby states falls to 1/e on these inputs; inf where it does not fall.

    The state of each sequence is followed beside one that lies NUDGE away; the distance is brought back to NUDGE after every
    step and its mean logarithmic growth is taken over the second half, for each sequence. Of the batch the mean counts.

    Args:
        cell: "lstm" or "gru".
        weights: of the copies.
        x: inputs (copies, batch, time, features).
    """
    weights = {name: weight.double() for name, weight in weights.items()}
    step, given = steps_of(cell, weights, x.double())
    V = weights["V"].mT
    h = c = torch.zeros(*x.shape[:2], V.shape[1], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    dh, dc = (torch.randn(h.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    dc = dc if cell == "lstm" else dc * 0
    growth = []
    for own in given:
        size = (dh.square().sum(-1, keepdim=True) + dc.square().sum(-1, keepdim=True)).sqrt().clamp(min=1e-300)
        dh, dc = dh * (NUDGE / size), dc * (NUDGE / size)
        h1, c1 = step(own, V, h + dh, c + dc)
        h, c = step(own, V, h, c)
        dh, dc = h1 - h, (c1 - c if cell == "lstm" else dc * 0)
        size = (dh.square().sum(-1) + dc.square().sum(-1)).sqrt().clamp(min=1e-300)
        growth.append((size / NUDGE).log())
    rate = -torch.stack(growth)[len(growth) // 2 :].mean(0).mean(-1)
    return torch.where(rate > 0, 1 / rate, torch.inf)
