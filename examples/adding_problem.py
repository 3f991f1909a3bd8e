"""
An LSTM learns to add
=====================

You learn: why an LSTM fails the adding problem, and that another initialization of its gates solves it.
Run time: 25 ms of CPU time per step, up to 40 minutes for all arms and seeds; `--arms start --seeds 0` takes one.

The task: the sum of the two marked numbers of a sequence. Counted: optimizer steps until the loss is below 0.01. Arms: "torch";
"auto", biases at the rate of `recurrent_rate`; "start", gates initialized from 1,500 examples. Decided by a 95% t interval.
"""

import argparse
import math
from itertools import product
from statistics import fmean

import torch
from scipy import stats
from torch import nn

import holdfast

SOLVED, BATCHES = 0.01, 50  # mean squared error over so many batches; the mean of all sums has 1/6


class Adder(nn.Module):
    """An LSTM whose last state is read."""

    def __init__(self, size):
        super().__init__()
        self.lstm, self.read = nn.LSTM(2, size, batch_first=True), nn.Linear(size, 1)

    def forward(self, x):
        return self.read(self.lstm(x)[0][:, -1])


def batch(rows, length, generator):
    """Numbers in [0, 1] with two marks, one in each half, and their sum."""
    x, ends = torch.rand(rows, length, generator=generator), (0, length // 2, length)
    marked = [torch.randint(ends[i], ends[i + 1], (rows, 1), generator=generator) for i in (0, 1)]
    marks = torch.zeros(rows, length).scatter_(1, torch.cat(marked, 1), 1.0)
    return torch.stack([x, marks], -1), (x * marks).sum(1, keepdim=True)


def steps_until_solved(arm, seed, choices):
    generator, model, rate = torch.manual_seed(seed), Adder(choices.size), None
    if arm == "start":
        holdfast.study_task(*batch(1500, choices.length, torch.Generator().manual_seed(1000 + seed))).initialize(model)
    if arm == "auto":
        rate = holdfast.recurrent_rate(model, steps=choices.steps, memory=choices.length, schedule="constant")
    optimizer = torch.optim.Adam(holdfast.parameter_groups(model, lr=choices.lr, recurrent_lr=rate))
    holdfast.accelerate(model)
    losses = []
    while len(losses) < choices.steps and (len(losses) < BATCHES or fmean(losses[-BATCHES:]) >= SOLVED):
        x, y = batch(choices.batch, choices.length, generator)
        model.zero_grad()
        (loss := nn.functional.mse_loss(model(x), y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return len(losses), fmean(losses[-BATCHES:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--arms", nargs="+", default=["torch", "auto", "start"])
    parser.add_argument("--seeds", nargs="+", type=int, default=range(5))
    for name, value in {"steps": 6000, "length": 200, "size": 64, "batch": 32, "lr": 2e-3}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    chosen, steps = parser.parse_args(), {}
    for seed, arm in product(chosen.seeds, chosen.arms):
        taken, last = steps_until_solved(arm, seed, chosen)
        steps.setdefault(arm, []).append(taken)
        print(f"{arm:6s} seed {seed}: {taken if last < SOLVED else 'not solved'} steps, loss {last:.4f}", flush=True)
    for arm in [arm for arm in chosen.arms if arm != "torch" and "torch" in steps and len(chosen.seeds) > 1]:
        logs = torch.tensor(steps[arm]).log() - torch.tensor(steps["torch"]).log()
        half = stats.t.ppf(0.975, len(logs) - 1) * logs.std() / len(logs) ** 0.5
        ratio, low, high = (math.exp(logs.mean() + end) for end in (0, -half, half))
        print(f"{arm}: {ratio:.2f} [{low:.2f}, {high:.2f}] times the steps of torch")
