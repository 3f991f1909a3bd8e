"""
The network inside a forecaster: darts
======================================

You learn: how to diagnose the network inside a forecaster of darts, and how to replace its recurrence.
Run time: about 45 s of CPU time, one thread. Data: eight hourly series; an LSTM reads two weeks and forecasts a day.
"""

# %%
# The series: 0.5 at weekends what it is on other days, with noise. The last two weeks are for the test.
import argparse
import logging

import numpy as np
import pandas as pd
import torch
from darts import TimeSeries
from darts.models import BlockRNNModel

import holdfast

parser = argparse.ArgumentParser()
for name, default in (("--series", 8), ("--epochs", 15), ("--seeds", 3)):
    parser.add_argument(name, type=int, default=default)
arguments = parser.parse_args()
for name in ("pytorch_lightning", "darts"):
    logging.getLogger(name).setLevel(logging.ERROR)
PAST, AHEAD, TEST = 336, 24, 336


def hourly_series(seed, hours=8 * 168):
    rng, hour = np.random.default_rng(seed), np.arange(hours)
    (day, week), size = rng.random(2), 0.5 + rng.random(2)
    values = size[0] * np.sin(2 * np.pi * (hour / 24 + day)) + size[1] * np.sin(2 * np.pi * (hour / 168 + week))
    values = values * np.where(hour // 24 % 7 >= 5, 0.5, 1.0) + 0.3 * rng.standard_normal(hours)
    times = pd.date_range("2026-01-05", periods=hours, freq="h")
    return TimeSeries.from_times_and_values(times, (values / values.std()).astype(np.float32))


series = [hourly_series(seed) for seed in range(arguments.series)]
train = [one[:-TEST] for one in series]


def forecaster(seed):
    quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    return BlockRNNModel(
        PAST, AHEAD, model="LSTM", hidden_dim=32, n_epochs=arguments.epochs, random_state=seed,
        optimizer_kwargs={"lr": 3e-3}, pl_trainer_kwargs={**quiet, "enable_progress_bar": False},
    )  # fmt: skip


def error(model):  # a day ahead at each midnight of the last two weeks
    forecasts = model.historical_forecasts(
        series, start=series[0].time_index[-TEST], forecast_horizon=AHEAD, stride=AHEAD, retrain=False,
        last_points_only=False, verbose=False,
    )  # fmt: skip
    pairs = [
        (f.values(), one.slice_intersect(f).values()) for one, many in zip(series, forecasts, strict=True) for f in many
    ]
    return float(np.mean([np.square(a - b).mean() for a, b in pairs]))


# %%
# What its LSTM remembers, against what the series need: a week is 168 steps.
for seed in range(arguments.seeds):
    plain = forecaster(seed)
    plain.fit(train, max_samples_per_ts=80)
    if seed == 0:
        print(holdfast.diagnose(plain, needs=168))
    swapped = forecaster(seed)
    swapped.fit(train, epochs=0, max_samples_per_ts=80)  # darts makes the network when it first sees data
    torch.manual_seed(seed)
    holdfast.nn.swap_recurrences(swapped, "s4d")
    swapped.fit(train, max_samples_per_ts=80)
    print(f"seed {seed}: test error LSTM {error(plain):.3f}, S4D {error(swapped):.3f}")
