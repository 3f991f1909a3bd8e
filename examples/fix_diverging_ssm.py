"""
A model that diverges, and the same model that does not
=======================================================

You learn: why a model with direct weights diverges, and that `holdfast.stabilize` fixes it without changing an output.
Run time: about 9 s of CPU time, one thread.

A state-space model with direct weights learns to add up its inputs over a thousand steps. Training moves its slowest mode
towards the stability boundary; one optimizer step too far, and the state grows without bound. A learning rate three times
lower delays that; one ten times lower ends within one step of the boundary. ("StableSSM", Sec. 3.3 and Fig. 6.)
"""

# %%
# The task, and training until the end or until the loss is a thousand times the first one.
import argparse
import copy

import matplotlib.pyplot as plt
import torch
from torch import nn

import holdfast

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--save", metavar="FILE", help="write the losses at the middle rate as a picture")
options = parser.parse_known_args()[0]  # a notebook's kernel has arguments of its own
LENGTH, BATCH, RATES = 1000, 4, (0.03, 0.01, 0.003)


def batch(generator):  # white noise, and its sum
    x = torch.randn(BATCH, LENGTH, 1, generator=generator)
    return x, x.cumsum(1) / LENGTH**0.5


def train(model, lr):
    generator = torch.Generator().manual_seed(1)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=lr), []
    for _ in range(options.steps):
        x, y = batch(generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x)[0], y)
        losses.append(float(loss.detach()))
        if not losses[-1] < 1000 * losses[0]:
            break
        loss.backward()
        optimizer.step()
    return losses


# %%
# The model, its slowest mode with a time constant of 200 steps, and a copy after `stabilize`: the outputs are the same.
torch.manual_seed(0)
rates = torch.logspace(-2.3, 0, 8)
direct = holdfast.nn.DiagonalSSM(1, 8, parameterization="direct", activation="identity", eigenvalues=-rates)
holdfast.stabilize(stable := copy.deepcopy(direct), "best")
x = batch(torch.Generator().manual_seed(0))[0]
print(f"stabilize moves the outputs by {float((stable(x)[0] - direct(x)[0]).detach().abs().max()):.1e}")

# %%
# Both are trained at three learning rates. The margin is the distance of the slowest mode to the boundary, per time step.
curves = {}
for lr in RATES:
    for name, model in (("direct", direct), ("best", stable)):
        losses = curves[lr, name] = train(own := copy.deepcopy(model), lr)
        ended = f"loss {losses[0]:.2f} -> {sum(losses[-20:]) / len(losses[-20:]):.3f}"
        if not losses[-1] < 1000 * losses[0]:
            ended = f"diverged at step {len(losses) - 1} (loss {losses[-1]:.1e})"
        print(f"learning rate {lr:<6g} {name:7s} {ended}; margin {holdfast.certify(own).margin:.1e}")

# %%
# The losses at the middle learning rate.
plt.figure(figsize=(7, 3.2), layout="constrained")
plt.semilogy(curves[RATES[1], "direct"], label="as built")
plt.semilogy(curves[RATES[1], "best"], label="after holdfast.stabilize(model)")
plt.gca().set(xlabel="optimizer step", ylabel="loss", title=f"The same model at learning rate {RATES[1]:g}")
plt.legend()
plt.savefig(options.save, dpi=150) if options.save else plt.show()
