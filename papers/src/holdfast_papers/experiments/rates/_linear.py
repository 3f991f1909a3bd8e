"""Copies of one linear diagonal layer that learn a kernel from windows of white noise, without running over time.

The output at the end of a window is the inner product of its inputs with the layer's impulse response, which is a sum of powers
of the modes: training costs (copies x modes x lags), and the error after it is exact, |k - rho|^2 / |rho|^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast import parameterizations
from holdfast_papers.experiments.rates._copies import Weights

RECURRENT = ("w",)
FASTEST = 0.8  # rate of the fastest mode at the start


def starting_rates(slowest: float, modes: int) -> Tensor:
    """Geometric from `slowest` to FASTEST, in double."""
    return torch.logspace(math.log10(slowest), math.log10(FASTEST), modes, dtype=torch.float64)


def free(name: str, lam: Tensor) -> Tensor:
    """The free weights of real parts `lam` under a parameterization."""
    return parameterizations.get(name).inverse(lam)


def eigenvalues(names: Sequence[str], w: Tensor) -> Tensor:
    """Real parts of copies whose parameterizations are `names`, each for an equal share of the copies in a row."""
    blocks = w.chunk(len(names))
    return torch.cat([parameterizations.get(name)(block) for name, block in zip(names, blocks, strict=True)])


def copies_of(start: Weights, count: int) -> Weights:
    """Weights of each seed, (seeds, ...), repeated for `count` copies, the seed varying fastest."""
    return {k: w.repeat(count // len(w), *(1,) * (w.ndim - 1)).clone() for k, w in start.items()}


def with_free_weights(start: Weights, names: Sequence[str], lam: Tensor, copies: int, key: str = "w") -> Weights:
    """Adds the free weights of eigenvalues `lam` (modes,), through each parameterization's inverse."""
    each = torch.stack([free(name, lam) for name in names]).float()
    start[key] = each.repeat_interleave(copies // len(names), 0).clone()
    return start


def real_start(rates: Tensor, seeds: int) -> Weights:
    """Input and readout weights of a DiagonalSSM of real modes as it starts, for each seed; states have unit variance."""
    modes = len(rates)
    weights: Weights = {"U": torch.empty(seeds, modes), "C": torch.empty(seeds, modes)}
    lam = -rates
    level = (-torch.expm1(2 * lam)).sqrt().div(torch.expm1(lam) / lam).float()
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        weights["U"][seed] = (2 * torch.rand(modes, generator=generator) - 1) * level
        weights["C"][seed] = (2 * torch.rand(modes, generator=generator) - 1) / math.sqrt(modes)
    return weights


def complex_start(rates: Tensor, seeds: int) -> Weights:
    """As `real_start` for modes -r + i omega: frequencies even in (0, pi), in an order that mixes slow and fast modes."""
    modes = len(rates)
    order = torch.randperm(modes, generator=torch.Generator().manual_seed(0))
    omega = math.pi * (torch.arange(modes) + 0.5) / modes
    weights = {"omega": omega[order].float().repeat(seeds, 1)}
    level = (-torch.expm1(-2 * rates)).sqrt().float()
    for name in ("C", "S"):
        weights[name] = torch.stack(
            [
                (2 * torch.rand(modes, generator=torch.Generator().manual_seed(2 * seed + (name == "S"))) - 1)
                / math.sqrt(modes)
                for seed in range(seeds)
            ]
        )
    return {**weights, "U": level.repeat(seeds, 1)}


def kernel(lam: Tensor, weights: Weights, lags: int) -> Tensor:
    """Impulse responses (copies, lags), of real modes or, where there is an omega, of complex ones."""
    block = 2 ** math.ceil(math.log2(max(2.0, math.sqrt(lags))))
    count = -(-lags // block)
    inner = torch.arange(block, dtype=lam.dtype)
    outer = block * torch.arange(count, dtype=lam.dtype)
    if "omega" not in weights:
        gain = weights["C"] * weights["U"] * torch.expm1(lam) / lam
        far, near = torch.exp(lam.unsqueeze(-1) * outer), torch.exp(lam.unsqueeze(-1) * inner)
        return torch.bmm((gain.unsqueeze(-1) * far).mT, near).flatten(1)[:, :lags]
    angle = weights["omega"].unsqueeze(-1)
    far, near = torch.exp(lam.unsqueeze(-1) * outer), torch.exp(lam.unsqueeze(-1) * inner)
    c, s = (weights["C"] * weights["U"]).unsqueeze(-1), (weights["S"] * weights["U"]).unsqueeze(-1)
    # Re (c - i s) e^(i omega (p + q)): two real products instead of one complex
    cos, sin = torch.cos(angle * outer), torch.sin(angle * outer)
    even, odd = far * (c * cos + s * sin), far * (s * cos - c * sin)
    return (
        torch.bmm(even.mT, near * torch.cos(angle * inner)) + torch.bmm(odd.mT, near * torch.sin(angle * inner))
    ).flatten(1)[:, :lags]


def windows(step: int, seeds: int, batch: int, lags: int) -> Tensor:
    """White noise (seeds, batch, lags), the latest input first: the same for every copy of a seed."""
    drawn = [
        torch.randn(batch, lags, generator=torch.Generator().manual_seed(7919 * s + 1_000_003 * step))
        for s in range(seeds)
    ]
    return torch.stack(drawn)


def window_loss(gap: Tensor, inputs: Tensor) -> Tensor:
    """Mean square over a batch of the output's error, for each copy; gap = k - rho (copies, lags), the seed fastest."""
    seeds = len(inputs)
    by_seed = gap.unflatten(0, (-1, seeds)).transpose(0, 1)
    return torch.bmm(by_seed, inputs.mT).square().mean(-1).transpose(0, 1).flatten()


def relative_error(gap: Tensor, rho: Tensor) -> Tensor:
    """|k - rho|^2 / |rho|^2, inf where it is not a number."""
    error = gap.double().square().sum(-1) / rho.double().square().sum()
    return torch.where(error.isfinite(), error, torch.inf)
