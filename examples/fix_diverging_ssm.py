"""
A model that diverges, and the same model that does not
=======================================================

A state-space model with direct weights learns to add up its inputs over a thousand steps. The task pulls its slowest
mode to the boundary of stability; one step too far, and the state grows without bound. A learning rate three times
lower only delays that. One ten times lower gets through these steps, but leaves the mode so near the boundary that a
single step of that rate can cross it. After `holdfast.stabilize` the model computes what it computed before and trains
at the same rates, more slowly where the mode has far to go. ("StableSSM", Sec. 3.3 and Fig. 6.)
"""

import argparse
import copy
import math

import matplotlib.pyplot as plt
import torch
from torch import nn

import holdfast
from holdfast.nn import DiagonalSSM

LENGTH, BATCH, RATES = 1000, 4, (0.03, 0.01, 0.003)


def batch(generator):
    """White noise, and its sum over the last thousand steps or so."""
    x = torch.randn(BATCH, LENGTH, 1, generator=generator)
    return x, x.cumsum(1) / math.sqrt(LENGTH)


def train(model, lr, steps):
    """Losses until the end, or until one is a thousand times the first or not finite."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        x, y = batch(generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x)[0], y)
        losses.append(float(loss.detach()))
        if not losses[-1] < 1000 * losses[0]:
            break
        loss.backward()
        optimizer.step()
    return losses


def outcome(losses, steps):
    """What became of a run, in words."""
    if len(losses) < steps or not losses[-1] < 1000 * losses[0]:
        return f"diverged at step {len(losses) - 1} (loss {losses[-1]:.1e})"
    return f"loss {losses[0]:.2f} -> {sum(losses[-20:]) / len(losses[-20:]):.3f}"


def draw(curves, path):
    """The losses of both models at the middle rate."""
    fig, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for name, label in (("direct", "as it was built"), ("best", "after holdfast.stabilize(model)")):
        ax.plot(curves[RATES[1], name], label=label)
    ax.set(xlabel="optimizer step", ylabel="loss", yscale="log", title=f"The same model at learning rate {RATES[1]:g}")
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    fig.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save", metavar="FILE", help="write the losses at the middle rate as a picture")
    options = parser.parse_args()
    steps = options.steps
    torch.manual_seed(0)
    rates = torch.logspace(-2.3, 0, 8)  # the slowest mode forgets within 200 steps
    direct = DiagonalSSM(1, 8, parameterization="direct", activation="identity", eigenvalues=-rates)
    stable = copy.deepcopy(direct)
    holdfast.stabilize(stable, "best")
    x, _ = batch(torch.Generator().manual_seed(0))
    moved = (stable(x)[0] - direct(x)[0]).detach().abs().max()
    print(f"stabilize moves the outputs by {float(moved):.1e}")
    curves = {}
    for lr in RATES:
        for name, model in (("direct", direct), ("best", stable)):
            own = copy.deepcopy(model)
            curves[lr, name] = train(own, lr, steps)
            print(f"learning rate {lr:<6g} {name:7s}", outcome(curves[lr, name], steps), end="; ")
            print(f"margin {holdfast.certify(own).margin:.1e}")
    if options.save:
        draw(curves, options.save)


if __name__ == "__main__":
    main()
