"""Real networks, random and trained, whose law is known from where they rest. Run: python tests/decay/networks.py

RNN, GRU and LSTM, on the adding problem and the copy task, before and after training, by three probes: 36 fits. On a
constant input a network comes to rest at some state, or never; at rest a deviation decays by the largest eigenvalue of the
Jacobian of one step there. That is the truth which fit_decay's answer is held against: it does not use the curve.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from holdfast.decay import fit_decay
from holdfast.memory import memory_function
from holdfast.memory.probes import PROBES
from holdfast.stability.cells import cell_of, state_size, weights_of

KINDS, TASKS = ("RNN", "GRU", "LSTM"), {"adding": (2, 1), "copy": (6, 6)}
HORIZON = 2000
SETTLED = 20_000  # steps after which a state that moves is taken never to rest


class Network(nn.Module):
    def __init__(self, kind, inputs, outputs, width=24):
        super().__init__()
        self.rnn, self.head = getattr(nn, kind)(inputs, width, batch_first=True), nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def adding(batch, generator, steps=20):
    """Two marked numbers of a sequence are to be added."""
    x = torch.zeros(batch, steps, 2)
    x[..., 0] = torch.rand(batch, steps, generator=generator)
    rows, half = torch.arange(batch), steps // 2
    for first in (0, half):
        x[rows, first + torch.randint(half, (batch,), generator=generator), 1] = 1
    wanted = (x[..., 0] * x[..., 1]).sum(1)
    return x, lambda y: (y[:, -1, 0] - wanted).square().mean()


def copying(batch, generator, symbols=4, wait=8):
    """Four symbols are to be given back after a wait."""
    told = torch.randint(1, symbols + 1, (batch, 4), generator=generator)
    tokens = torch.zeros(batch, wait + 8, dtype=torch.long)
    tokens[:, :4], tokens[:, wait + 3] = told, symbols + 1
    x = nn.functional.one_hot(tokens, symbols + 2).float()
    return x, lambda y: nn.functional.cross_entropy(y[:, -4:].flatten(0, 1), told.flatten())


def make(kind, task, steps, seed=0):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = Network(kind, *TASKS[task])
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        x, loss_of = (adding if task == "adding" else copying)(64, generator)
        optimizer.zero_grad()
        loss_of(net(x)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return net.eval().double()


@dataclass(frozen=True)
class Truth:
    law: str
    rate: float


def rest(net, drive, state):
    """Where states (rows, n) come to rest; None where one of them does not."""
    cell, (_, _, w, b) = cell_of(net.rnn), weights_of(net.rnn, 0, False)
    for _ in range(SETTLED):
        moved = cell(drive, state, w, b)
        if float((moved - state).abs().max()) < 1e-13:
            return moved
        state = moved
    return None


@torch.no_grad()
def truth(net, probe, tried):
    """What the curve must do for t -> inf: each x tried leaves the network on its way to some rest, the slowest decides."""
    cell, (w_ih, b_ih, w, b) = cell_of(net.rnn), weights_of(net.rnn, 0, False)
    zeros = torch.zeros(len(tried), state_size(net.rnn), dtype=torch.float64)
    held = nn.functional.linear(tried, w_ih, b_ih)
    still = nn.functional.linear(torch.zeros_like(tried), w_ih, b_ih)
    start = rest(net, still, zeros)
    state, drive = start, still
    if start is not None and probe == "heaviside":
        drive = held
    elif start is not None:
        state = cell(held, start, w, b) if probe == "impulse" else rest(net, held, zeros)
    end = None if state is None else rest(net, drive, state)
    if end is None or (probe == "impulse" and float((end - start).abs().max()) > 1e-6):
        return Truth("non-decaying", math.nan)
    J = torch.func.vmap(torch.func.jacrev(lambda h, d: cell(d, h, w, b)))(end, drive)
    return Truth("exponential", -math.log(float(torch.linalg.eigvals(J).abs().amax())))


@dataclass(frozen=True)
class Verdict:
    name: str
    probe: str
    fit: object
    truth: Truth
    late: float  # the rate over the second half of the window

    @property
    def answer(self):
        if self.fit.status == "undecided":
            return "undecided"
        return "right" if self.fit.law == self.truth.law else "wrong"

    @property
    def excused(self):
        """Whether an undecided curve does not show its law: too few folds, another rate still, too few oscillations."""
        folds = self.truth.rate * (self.fit.window[1] - self.fit.window[0])
        unlike = abs(self.late / self.truth.rate - 1) > 0.12 if self.truth.rate else True
        return self.truth.law == "exponential" and (folds < 3 or unlike or "oscillates too few" in self.fit.explanation)


def judge(net, name, probe, horizon=HORIZON):
    inputs = net.rnn.input_size
    curve = memory_function(net, input_size=inputs, horizon=horizon, probe=probe)
    fit = fit_decay(curve)
    tried = torch.from_numpy(np.unique(curve.maximiser, axis=0))
    inside = (curve.time >= sum(fit.window) / 2) & (curve.time <= fit.window[1]) & (fit.envelope > 0)
    late = -np.polyfit(curve.time[inside], np.log(fit.envelope[inside]), 1)[0] if inside.sum() > 2 else math.nan
    return Verdict(name, probe, fit, truth(net, probe, tried), float(late))


def zoo(training=600):
    for kind, task, steps in itertools.product(KINDS, TASKS, (0, training)):
        net = make(kind, task, steps)
        for probe in PROBES:
            yield judge(net, f"{kind} {task} {'trained' if steps else 'random'}", probe)


def row(v):
    rate = "-" if v.fit.rate is None else f"{v.fit.rate:.4g}"
    excuse = "" if v.answer != "undecided" else ", not shown by the curve" if v.excused else ", MISSED"
    seen = f"{v.fit.law:13} rate {rate:8}"
    return f"{v.name:20} {v.probe:10} {seen} truth {v.truth.law} {v.truth.rate:.4g}, late {v.late:.4g}: {v.answer}{excuse}\n"


if __name__ == "__main__":
    counts = Counter()
    for verdict in zoo():
        sys.stdout.write(row(verdict))
        sys.stdout.flush()
        counts[verdict.answer] += 1
    sys.stdout.write(f"{dict(counts)}\n")
