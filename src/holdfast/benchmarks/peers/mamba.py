"""mambapy's `pscan`, the parallel scan in plain torch of mamba.py.

Real numbers only: its backward has no conjugate, so that complex gradients are wrong
(tests/benchmarks/test_peers.py shows it).
"""

from __future__ import annotations

from typing import Any

from holdfast.benchmarks.case import Inputs, Results, Runner
from holdfast.benchmarks.peers.optional import load
from holdfast.benchmarks.steps import training_step

# pscan takes (batch, time, D, N); Mamba's own N is 16, and (1, all channels) was not faster
STATE = 16


def pscan(inputs: Inputs) -> Runner:
    """h_t = a_t h_{t-1} + b_t over (batch, time, channels)."""
    run = load("mambapy.pscan").pscan
    batch, time, channels = inputs["a"].shape
    inner = training_step(run, {n: x.view(batch, time, channels // STATE, STATE) for n, x in inputs.items()})

    def read(given: Any) -> Results:
        return {name: value.flatten(2) for name, value in inner.read(given).items()}

    return Runner(inner.step, read)
