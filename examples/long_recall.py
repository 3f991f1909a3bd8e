"""
A value kept for a thousand steps
=================================

You learn: why the initial modes of a model decide what it can learn to recall.
Run time: about 9 s of CPU time, one thread.

The first input is a value to keep, the others are noise; after the last step the model has to output the value. Whether
it can learn this depends on its initial modes: those that decay within ten steps receive no gradient from a
thousand steps later, slow ones do. ("StableSSM", Table 4, tests the same ability with tokens.)
"""

import argparse

import torch
from torch import nn

import holdfast
from holdfast.nn import LRU

STARTS = {"fast modes, 0.5 to 0.9": (0.5, 0.9), "slow modes, 0.99 to 0.9999": (0.99, 0.9999)}


class Keeper(nn.Module):
    """An LRU that reads value and noise, and a readout of its last output."""

    def __init__(self, ring):
        super().__init__()
        self.layer, self.out = LRU(2, 32, r_min=ring[0], r_max=ring[1]), nn.Linear(2, 1)

    def forward(self, x):
        return self.out(self.layer(x, return_state=False)[0][:, -1])[:, 0]


def batch(distance, generator):
    """A value of +1 or -1 in the first step, in a channel of its own; noise in the other."""
    value = torch.randint(0, 2, (32,), generator=generator) * 2.0 - 1
    x = torch.zeros(32, distance + 1, 2)
    x[:, :, 1] = 0.3 * torch.randn(32, distance + 1, generator=generator)
    x[:, 0, 0] = value
    return x, value


def train(model, distance, steps):
    """The share of 32 new values that come back after training."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(holdfast.parameter_groups(model, lr=0.02, recurrent_lr=0.002, weight_decay=0.0))
    for _ in range(steps):
        x, value = batch(distance, generator)
        optimizer.zero_grad()
        nn.functional.soft_margin_loss(model(x), value).backward()
        optimizer.step()
    x, value = batch(distance, generator)
    return float((model(x).sign() == value).float().mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--distances", type=int, nargs="+", default=[10, 100, 1000])
    choices = parser.parse_args()
    for name, ring in STARTS.items():
        for distance in choices.distances:
            torch.manual_seed(0)
            share = train(Keeper(ring), distance, choices.steps)
            print(f"{name:26s} after {distance:4d} steps: {share:4.0%} of the values come back")


if __name__ == "__main__":
    main()
