"""
A model that diverges, and the same model that does not
=======================================================

A state-space model with direct weights learns to add up its inputs over a thousand steps. The task pulls its slowest
mode to the boundary of stability; one step too far, and the state grows without bound. A learning rate three times
lower delays that; one ten times lower leaves the mode within a step of the boundary. After `holdfast.stabilize` the model
computes what it computed before and trains at the same rates. ("StableSSM", Sec. 3.3 and Fig. 6.)
"""

import argparse
import copy

import matplotlib.pyplot as plt
import torch
from torch import nn

import holdfast
from holdfast.nn import DiagonalSSM

LENGTH, BATCH, RATES = 1000, 4, (0.03, 0.01, 0.003)


def batch(generator):  # white noise, and its sum
    x = torch.randn(BATCH, LENGTH, 1, generator=generator)
    return x, x.cumsum(1) / LENGTH**0.5


def train(model, lr, steps):  # to the end, or until a loss is a thousand times the first
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
    if len(losses) < steps or not losses[-1] < 1000 * losses[0]:
        return f"diverged at step {len(losses) - 1} (loss {losses[-1]:.1e})"
    return f"loss {losses[0]:.2f} -> {sum(losses[-20:]) / len(losses[-20:]):.3f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save", metavar="FILE", help="write the losses at the middle rate as a picture")
    options = parser.parse_args()
    torch.manual_seed(0)
    rates = torch.logspace(-2.3, 0, 8)  # the slowest mode forgets within 200 steps
    direct = DiagonalSSM(1, 8, parameterization="direct", activation="identity", eigenvalues=-rates)
    holdfast.stabilize(stable := copy.deepcopy(direct), "best")
    x = batch(torch.Generator().manual_seed(0))[0]
    moved = (stable(x)[0] - direct(x)[0]).detach().abs().max()
    print(f"stabilize moves the outputs by {float(moved):.1e}")
    curves = {}
    for lr in RATES:
        for name, model in (("direct", direct), ("best", stable)):
            own = copy.deepcopy(model)
            curves[lr, name] = train(own, lr, options.steps)
            print(f"learning rate {lr:<6g} {name:7s}", outcome(curves[lr, name], options.steps), end="; ")
            print(f"margin {holdfast.certify(own).margin:.1e}")
    plt.figure(figsize=(7, 3.2), layout="constrained")
    plt.semilogy(curves[RATES[1], "direct"], label="as it was built")
    plt.semilogy(curves[RATES[1], "best"], label="after holdfast.stabilize(model)")
    plt.gca().set(xlabel="optimizer step", ylabel="loss", title=f"The same model at learning rate {RATES[1]:g}")
    plt.legend()
    plt.savefig(options.save, dpi=150) if options.save else plt.show()


if __name__ == "__main__":
    main()
