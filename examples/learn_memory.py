"""
How fast can a memory be learned?
=================================

You learn: which recurrent learning rate a memory of 100 steps needs, and why smaller ones cannot learn it.
Run time: about 14 s of CPU time, one thread.

A layer that starts with a short memory learns one of 100 steps, at several learning rates of its recurrent weights.

Adam moves a free weight by about the learning rate eta per step, whatever the size of the gradient. So in K steps of a
cosine schedule a mode of rate r0 = -f(w0) reaches a time constant of at most about ``1 / |f(w0 + eta K / 2)|``: the lines,
`holdfast.stability.reach`. Dots are trained layers. Left of the crossing with the dotted line no run can learn the memory.
Vertical lines are `holdfast.recurrent_rate`.
"""

import argparse

import matplotlib.pyplot as plt
import torch

import holdfast
from holdfast.nn import DiagonalSSM
from holdfast.stability import reach

MEMORY = 100.0  # steps to 1/e
START = torch.linspace(0.1, 0.8, 4)  # rates, so that time constants start at 10 steps and below


def student(name):
    torch.manual_seed(0)
    return DiagonalSSM(1, 4, parameterization=name, activation="identity", eigenvalues=-START, bias=False)


def trained(name, rate, steps):
    """The longest time constant after training on the response of one slow mode."""
    layer, generator = student(name), torch.Generator().manual_seed(1)
    groups = holdfast.parameter_groups(layer, lr=0.01, recurrent_lr=rate)
    optimizer = torch.optim.Adam(groups)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    slow = torch.exp(-torch.arange(300) / MEMORY) / MEMORY
    for _ in range(steps):
        x = torch.randn(8, 300, 1, generator=generator)
        spectrum = torch.fft.rfft(x, 600, dim=1) * torch.fft.rfft(slow, 600)[:, None]
        target = torch.fft.irfft(spectrum, 600, dim=1)[:, :300]
        optimizer.zero_grad()
        (layer(x)[0] - target).square().mean().backward()
        optimizer.step()
        plan.step()
    return -1 / layer.eigenvalues().max().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.0025, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5])
    parser.add_argument("--save", help="draw the figure into this file")
    choices = parser.parse_args()
    for name, colour in {"exp": "tab:blue", "best": "tab:orange"}.items():
        print(f"{name}: recurrent rate, reach and trained time constant")
        limits = [reach(student(name), rate, choices.steps)[0].reached for rate in choices.rates]
        found = [trained(name, rate, choices.steps) for rate in choices.rates]
        for rate, limit, tau in zip(choices.rates, limits, found, strict=True):
            print(f"  {rate:<8g} {limit:10.1f} {tau:10.1f}")
        law = holdfast.recurrent_rate(student(name), steps=choices.steps, memory=MEMORY)
        print(f"  by law {law.rate:.3g}, at least {law.low:.3g}: {law.reason}")
        plt.loglog(choices.rates, limits, color=colour, label=f"{name}: reach")
        plt.loglog(choices.rates, found, "o", color=colour, label=f"{name}: trained")
        plt.axvline(law.rate, color=colour, linewidth=0.8)
    plt.axhline(MEMORY, color="black", linestyle=":", label="memory to be learned")
    plt.ylim(5, 2000)
    plt.xlabel("learning rate of the recurrent weights")
    plt.ylabel("longest time constant, steps")
    plt.legend(fontsize="small")
    if choices.save:
        plt.savefig(choices.save, dpi=110)


if __name__ == "__main__":
    main()
