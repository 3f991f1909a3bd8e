"""
A forecaster: what diagnose says, and what following it gives
=============================================================

You learn: how to follow the diagnosis of a forecaster, and how much its test error improves.
Run time: about 20 s of CPU time, one thread. Data: 40 hourly series; an LSTM reads two weeks and forecasts a day.
"""

# %%
# The series, and windows of 336 hours with the 24 that follow. The last week of each series is for the test.
import argparse

import torch
from torch import nn

import holdfast

parser = argparse.ArgumentParser()
for name, default in (("--series", 40), ("--steps", 300)):
    parser.add_argument(name, type=int, default=default)
arguments = parser.parse_args()
PAST, AHEAD, WEEK = 336, 24, 168


def hourly_series(count, hours=5 * WEEK):
    generator = torch.Generator().manual_seed(0)
    phase, size = torch.rand(2, count, 1, generator=generator), 0.5 + torch.rand(2, count, 1, generator=generator)
    hour = torch.arange(hours)
    day, week = torch.sin(2 * torch.pi * (hour / 24 + phase[0])), torch.sin(2 * torch.pi * (hour / WEEK + phase[1]))
    values = (size[0] * day + size[1] * week) * (1 - 0.5 * (hour // 24 % 7 >= 5).float())  # half at weekends
    values = values + 0.3 * torch.randn(count, hours, generator=generator)
    return (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True)


def windows(values):  # the latest come last
    cut = values.unfold(1, PAST + AHEAD, AHEAD).transpose(0, 1).reshape(-1, PAST + AHEAD)
    return cut[:, :PAST, None], cut[:, PAST:]


series = hourly_series(arguments.series)
(x, y), (test_x, test_y) = windows(series[:, : 4 * WEEK]), windows(series[:, 4 * WEEK - PAST :])


class Forecaster(nn.Module):
    """Two weeks in, a day out."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, AHEAD)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def train(model, rate):
    generator, optimizer = torch.Generator().manual_seed(1), torch.optim.Adam(model.parameters(), rate)
    for _ in range(arguments.steps):
        rows = torch.randint(len(x), (32,), generator=generator)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return float(nn.functional.mse_loss(model(test_x), test_y).detach())


# %%
# Trained, and beside it the value of a week ago.
torch.manual_seed(0)
print(f"test error of the LSTM: {train(model := Forecaster(), 3e-3):.3f}")
print(f"test error of the value a week ago: {float((test_x[:, -WEEK : AHEAD - WEEK, 0] - test_y).square().mean()):.3f}")
report = holdfast.diagnose(model, data=(x, y), name="forecaster")
print(report)

# %%
# Each advice followed in a model of its own, and trained as the LSTM was.
for advice in report.advice:
    torch.manual_seed(0)
    model = Forecaster()
    exec(advice.call)  # the lines that were printed; you would paste them
    print(f"{advice.trouble}: test error {train(model, advice.trial.changed_rate):.3f}")
