"""Real networks, random and trained, whose law is known from where they rest. Run: python tests/decay/networks.py [FOLDER]

RNN, GRU and LSTM, on the adding problem and the copy task, before and after training, by three probes: 36 fits. On a
constant input a network comes to rest at some state, or never; at rest a deviation decays by the largest eigenvalue of the
Jacobian of one step there. That is the truth which fit_decay's answer is held against: it does not use the curve. The
counts go into docs/decay_confusion.md; trained weights are kept in FOLDER, where one is given.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import confusion
import numpy as np
import torch
from torch import Tensor, nn

from holdfast.decay import fit_decay
from holdfast.memory import memory_function
from holdfast.memory._options import PROBES
from holdfast.nn._views.families.torch_modules import cell_of, state_size, weights_of

KINDS, TASKS = ("RNN", "GRU", "LSTM"), {"adding": (2, 1), "copy": (6, 6)}
HORIZON = 2000
SETTLED = 20_000  # steps after which Newton's method looks for the state of rest
LEVEL, STEADY, FOLDS = 0.01, 0.12, 3.0  # what fit_decay asks: a level, a steady rate, e-folds
SECTION = "## Real networks\n"
WORDS = """
`python tests/decay/networks.py` measures RNN, GRU and LSTM of 24 units with a linear readout, on the adding problem and
on the copy task, before and after 600 steps of Adam, with the three probes over 2,000 steps. The true
rate is not taken from the curve: on a constant input the network has an equilibrium, found by simulation and Newton's \
method, and the largest eigenvalue of
one step there gives the rate for t -> inf. If several inputs were maximizers, the slowest rate decides.

**Wrong verdicts: {wrong} of {total}.**

| networks | right | rightly undecided | missed | wrong |
| --- | ---: | ---: | ---: | ---: |
{rows}

Of {decided} rates {near} lie within 12% of the true one. A verdict is rightly undecided if the curve does not show what \
the criterion requires: 3
e-folds at the true rate, that rate within 12% over the third and the last quarter of the window and within 12%
between them, or a level to 1% over the second half. Most of these use the step probe: a constant input
saturates the gates, which then have time constants of a thousand steps and more, in a window of 2,000.
"""


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


def make(kind, task, steps, seed=0, kept=None):
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = Network(kind, *TASKS[task])
    file = None if kept is None or not steps else kept / f"{kind}-{task}-{steps}-{seed}.pt"
    if file is not None and file.exists():
        net.load_state_dict(torch.load(file, weights_only=True))
        return net.eval().double()
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for _ in range(steps):
        x, loss_of = (adding if task == "adding" else copying)(64, generator)
        optimizer.zero_grad()
        loss_of(net(x)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    if file is not None:
        torch.save(net.state_dict(), file)
    return net.eval().double()


@dataclass(frozen=True)
class Truth:
    """The rate for t -> inf, 0 where it never rests; what does not fall by 1% in all the time measured is no decay."""

    rate: float

    @property
    def law(self):
        return "exponential" if self.rate * HORIZON >= LEVEL else "non-decaying"


@dataclass(frozen=True)
class Rest:
    state: Tensor  # (rows, n)
    rate: Tensor  # (rows,), 0 where a row never comes to rest


def follow(step, state, steps):
    for k in range(steps):
        moved = step(state)
        if k % 50 == 0 and float((moved - state).abs().max()) < 1e-15:
            return moved
        state = moved
    return state


def rest(step_of, drive, state):
    """Where rows come to rest, and by which rate a deviation decays there.

    Followed first, and then found by Newton's method: at a rate of 0.001 it takes 30,000 steps to come within rounding.
    What that finds counts if it attracts, and if the row has come nearer to it after some steps more.
    """
    jacobian = torch.func.vmap(torch.func.jacrev(lambda h, d: step_of(d, h)))
    state = follow(lambda h: step_of(drive, h), state, SETTLED)
    at, eye = state, torch.eye(state.shape[1], dtype=state.dtype)
    for _ in range(30):
        moved = (step_of(drive, at) - at).unsqueeze(-1)
        # gates that are saturated make the matrix singular: the shortest step
        at = at + torch.linalg.lstsq(eye - jacobian(at, drive), moved, driver="gelsd").solution.squeeze(-1)
        at = torch.where((at.isfinite() & (at.abs() < 1e6)).all(1, keepdim=True), at, state)
    radius = torch.linalg.eigvals(jacobian(at, drive)).abs().amax(1)
    before = (state - at).abs().amax(1)
    after = (follow(lambda h: step_of(drive, h), state, SETTLED // 10) - at).abs().amax(1)
    rests = ((step_of(drive, at) - at).abs().amax(1) < 1e-12) & ((after < before) | (before < 1e-11))
    return Rest(torch.where(rests.unsqueeze(1), at, state), torch.where(rests, -radius.log(), 0.0).clamp(min=0.0))


@torch.no_grad()
def truth(net, probe, tried):
    """What the curve must do for t -> inf: each x tried leaves the network on its way to some rest, the slowest decides."""
    cell, (w_ih, b_ih, w, b) = cell_of(net.rnn), weights_of(net.rnn, "_l0")

    def step_of(drive, state):
        return cell(drive, state, w, b)

    zeros = torch.zeros(len(tried), state_size(net.rnn), dtype=torch.float64)
    held = nn.functional.linear(tried, w_ih, b_ih)
    still = nn.functional.linear(torch.zeros_like(tried), w_ih, b_ih)
    start = rest(step_of, still[:1], zeros[:1])
    if start.rate.min() == 0:
        return Truth(0.0)
    state = start.state.expand_as(zeros)
    if probe == "impulse":
        state = step_of(held, state)
    elif probe == "reversed":
        state = follow(lambda h: step_of(held, h), zeros, SETTLED)
    end = rest(step_of, held if probe == "heaviside" else still, state)
    # after an impulse the outputs stay where another state of rest holds them
    elsewhere = probe == "impulse" and bool(((end.state - start.state).abs().amax(1) > 1e-6).any())
    return Truth(0.0 if elsewhere else float(end.rate.min()))


@dataclass(frozen=True)
class Verdict:
    name: str
    probe: str
    fit: object
    truth: Truth
    quarters: tuple[float, float]  # the rates over the third and the last quarter of the window
    moved: float  # by how much the log of the curve changes over the second half

    @property
    def answer(self):
        if self.fit.status == "undecided":
            return "rightly undecided" if self.hidden else "missed"
        lasting = self.truth.law == "non-decaying" and self.fit.law == "periodic"
        return "right" if lasting or self.fit.law == self.truth.law else "wrong"

    @property
    def hidden(self):
        """Whether the curve does not show what fit_decay asks for: too few e-folds, another rate still, or no level."""
        if self.truth.law == "non-decaying":
            return self.moved > LEVEL
        third, last = self.quarters
        folds = self.truth.rate * (self.fit.window[1] - self.fit.window[0])
        arrived = all(abs(rate / self.truth.rate - 1) <= STEADY for rate in self.quarters)
        # the quarters' middles are half of the second half apart
        return folds < FOLDS or not arrived or not abs(2 * math.log(last / third)) <= STEADY


def slope(t, log_v):
    return -float(np.polyfit(t, log_v, 1)[0]) if len(t) > 2 else math.nan


def judge(net, name, probe, horizon=HORIZON):
    curve = memory_function(net, input_size=net.rnn.input_size, horizon=horizon, probe=probe)
    fit = fit_decay(curve)
    tried = torch.from_numpy(np.unique(curve.maximiser, axis=0))
    first, last = fit.window
    inside = (curve.time >= (first + last) / 2) & (curve.time <= last) & (fit.envelope > 0)
    t, log_v = curve.time[inside], np.log(fit.envelope[inside])
    early = t < first + 0.75 * (last - first)
    quarters = slope(t[early], log_v[early]), slope(t[~early], log_v[~early])
    return Verdict(name, probe, fit, truth(net, probe, tried), quarters, float(np.ptp(log_v)) if len(t) else math.nan)


def zoo(kinds=KINDS, tasks=tuple(TASKS), lengths=(0, 600), kept=None):
    for kind, task, steps in itertools.product(kinds, tasks, lengths):
        net = make(kind, task, steps, kept=kept)
        for probe in PROBES:
            yield judge(net, f"{kind} {task} {'trained' if steps else 'random'}", probe)


def row(v):
    seen = v.fit.law if v.fit.rate is None else f"{v.fit.law} {v.fit.rate:.4g}"
    known = v.truth.law if v.truth.rate == 0 else f"{v.truth.law} {v.truth.rate:.4g}"
    late = "{:.4g}, {:.4g}".format(*v.quarters)
    return f"{v.name:19} {v.probe:9} {seen:19} truth {known:23} late {late:18} {v.answer}\n"


def section(verdicts):
    """The counts as a part of the page."""
    counts = Counter((v.name.split()[2], v.answer) for v in verdicts)
    answers = ("right", "rightly undecided", "missed", "wrong")
    rows = [f"| {kind} | " + " | ".join(str(counts[kind, a]) for a in answers) + " |" for kind in ("random", "trained")]
    decided = [v for v in verdicts if v.fit.rate is not None]
    near = sum(abs(v.fit.rate / v.truth.rate - 1) <= STEADY for v in decided)
    wrong = sum(v.answer == "wrong" for v in verdicts)
    numbers = {"wrong": wrong, "total": len(verdicts), "rows": "\n".join(rows), "decided": len(decided), "near": near}
    return SECTION + WORDS.format(**numbers)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    found = []
    for verdict in zoo(kept=folder):
        sys.stdout.write(row(verdict))
        sys.stdout.flush()
        found.append(verdict)
    sys.stdout.write(f"{dict(Counter(v.answer for v in found))}\n")
    page = confusion.PAGE.read_text().partition(SECTION)[0].rstrip("\n")
    confusion.PAGE.write_text(f"{page}\n\n{section(found)}")
