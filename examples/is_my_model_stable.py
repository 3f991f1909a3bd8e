"""
Is my model stable?
===================

You learn: how to check the stability of a model by certificate, perturbation and monitor, before and after `stabilize`.
Run time: about 8 s of CPU time, one thread.

A diagonal state-space model with direct weights is trained on a target with the memory (1 + t)^-1.1, which moves its
slowest modes towards the stability boundary. `stabilize` changes the parameterization but not the function that the
model computes.
"""

import warnings

import numpy as np
import torch
from torch import nn

import holdfast
from holdfast.nn import DiagonalSSM
from holdfast.stability import Ball

LENGTH, BATCH, STEPS = 100, 64, 150
RADII = np.geomspace(1e-3, 0.3, 6)


def task(generator):
    """Noise in, and its convolution with (1 + t)^-1.1 out."""
    k = torch.arange(LENGTH, dtype=torch.float64)
    kernel = holdfast.laws.PowerLaw(1.1).integral(k, k + 1).float()
    x = torch.randn(BATCH, LENGTH, 1, generator=generator)
    padded = nn.functional.pad(x.transpose(1, 2), (LENGTH - 1, 0))
    return x, nn.functional.conv1d(padded, kernel.flip(0).reshape(1, 1, -1)).transpose(1, 2)


def train(model, generator, lr):
    """The last loss, and the monitor's history; a warning before the weights leave the stable region is printed."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    with warnings.catch_warnings(record=True) as caught, holdfast.GradientMonitor(model) as monitor:
        warnings.simplefilter("always")
        for _ in range(STEPS):
            x, y = task(generator)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x)[0], y)
            loss.backward()
            optimizer.step()
    return float(loss.detach()), monitor.history, [str(w.message) for w in caught]


def row(name, model):
    """Margin from the weights alone, and the error at each radius, the recurrent weights moving in their worst way."""
    x, y = task(torch.Generator().manual_seed(1))
    curve = holdfast.perturbation_error(model, x, y, RADII, norm=Ball(scope="recurrent"), search="modes")
    numbers = (holdfast.certify(model).margin, curve.centre, *curve.errors)
    return f"{name:8s}" + "".join(f"{number:10.2g}" for number in numbers)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    rates = torch.logspace(-1.3, 0, 32)  # the slowest mode forgets within 20 steps; the task needs all 100
    model = DiagonalSSM(1, 32, parameterization="direct", activation="identity", eigenvalues=-rates)
    loss, history, told = train(model, generator, lr=1e-3)
    print(f"trained with direct weights: loss {loss:.2e}, gradient over weight up to {history.maximum.max():.3g}")
    print("\n".join(f"  monitor: {text}" for text in told))
    print("\nsup error E(beta) when every recurrent weight moves by up to beta")
    print(f"{'weights':8s}{'margin':>10s}{'beta=0':>10s}" + "".join(f"{beta:10.2g}" for beta in RADII))
    print(row("direct", model))
    for name in ("exp", "best"):
        holdfast.stabilize(model, name)  # the same function: E(0) stays
        print(row(name, model))

    loss, history, told = train(model, generator, lr=1e-3)
    print(f"\ntrained on with best: loss {loss:.2e}, gradient over weight up to {history.maximum.max():.3g}")
    print(f"  monitor: {len(told)} warnings")


if __name__ == "__main__":
    main()
