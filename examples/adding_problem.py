"""
An LSTM learns to add
=====================

The adding problem: numbers in a sequence, two of them marked; what is their sum? Steps until the loss is below 0.01.

The forget gate of a fresh LSTM halves its state in about a step, and biases move by about lr a step: at lr 1e-3 the reach
is a few dozen steps after a thousand. Arms: "torch" trains as torch makes it; "auto" gives the biases the learning rate of
`holdfast.recurrent_rate`; "bias" starts the forget gate with that memory.
"""

import argparse
import math
import statistics

import torch
from torch import nn

import holdfast

SOLVED = 0.01  # mean squared error; the mean of all sums has 1/6


class Adder(nn.Module):
    """An LSTM whose last state is read."""

    def __init__(self, size):
        super().__init__()
        self.lstm, self.read = nn.LSTM(2, size, batch_first=True), nn.Linear(size, 1)

    def forward(self, x):
        return self.read(self.lstm(x)[0][:, -1])


def batch(rows, length, generator):
    """Numbers in [0, 1] with two marks, one in each half, and their sum."""
    x, half = torch.rand(rows, length, generator=generator), length // 2
    first = torch.randint(0, half, (rows,), generator=generator)
    marked = torch.stack([first, torch.randint(half, length, (rows,), generator=generator)], 1)
    marks = torch.zeros(rows, length).scatter_(1, marked, 1.0)
    return torch.stack([x, marks], -1), (x * marks).sum(1, keepdim=True)


def steps_until_solved(arm, seed, choices):
    generator = torch.manual_seed(seed)
    model = Adder(choices.size)
    own = {"recurrent_lr": "auto", "steps": choices.steps, "memory": choices.length} if arm == "auto" else {}
    if arm == "bias":
        gate = slice(choices.size, 2 * choices.size)  # sigmoid(bias) = e^(-1 / length)
        model.lstm.bias_hh_l0.data[gate] = -math.log(math.expm1(1 / choices.length))
    optimizer = torch.optim.Adam(holdfast.parameter_groups(model, lr=choices.lr, **own))
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, choices.steps)
    losses, done = [], 0
    while done < choices.steps and not (len(losses) == 20 and statistics.fmean(losses) < SOLVED):
        x, y = batch(choices.batch, choices.length, generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        plan.step()
        losses, done = [*losses[-19:], loss.item()], done + 1
    return done if statistics.fmean(losses) < SOLVED else None, statistics.fmean(losses)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--arms", nargs="+", default=["torch", "auto"], choices=["torch", "auto", "bias"])
    for name, value in {"seeds": 5, "steps": 4000, "length": 200, "size": 64, "batch": 32}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-3)
    chosen = parser.parse_args()
    for arm in chosen.arms:
        for seed in range(chosen.seeds):
            solved, last = steps_until_solved(arm, seed, chosen)
            print(f"{arm:6s} seed {seed}: {solved or 'not solved'} steps, loss {last:.4f}", flush=True)
