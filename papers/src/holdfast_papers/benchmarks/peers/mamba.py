"""Mamba's scan elsewhere: mambapy's `pscan`, the parallel scan in plain torch of mamba.py, and transformers' loop.

Real numbers only: its backward has no conjugate, so that complex gradients are wrong
(papers/tests/benchmarks/test_peers.py shows it).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast_papers.benchmarks.case import Inputs, Results, Runner
from holdfast_papers.benchmarks.peers.optional import load
from holdfast_papers.benchmarks.steps import training_step

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


def selective_pscan(inputs: Inputs) -> Runner:
    """The selective scan as mamba.py computes it: discretized for all steps, then scanned."""
    run = load("mambapy.pscan").pscan

    def forward(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
        delta = functional.softplus(dt)
        factor = torch.exp(delta.unsqueeze(-1) * A)
        drive = (delta.unsqueeze(-1) * B.unsqueeze(2)) * u.unsqueeze(-1)
        return (run(factor, drive) @ C.unsqueeze(-1)).squeeze(3) + D * u

    return training_step(forward, inputs)


def transformers_loop(inputs: Inputs) -> Runner:
    """transformers' own way without a GPU: a loop over slices of the discretized sequence, time last."""
    run = load("transformers.models.mamba.modeling_mamba").mamba_selective_scan
    turned = {name: x.mT.contiguous() if x.ndim == 3 else x for name, x in inputs.items()}
    inner = training_step(lambda u, dt, A, B, C, D: run(u, dt, A, B, C, D, delta_softplus=True), turned)

    def read(given: Any) -> Results:
        return {name: x.mT if x.ndim == 3 else x for name, x in inner.read(given).items()}

    return Runner(inner.step, read)


def transformers_forward(inputs: Inputs) -> Runner:
    """The same without gradients, as a model is evaluated."""
    run = load("transformers.models.mamba.modeling_mamba").mamba_selective_scan
    u, dt, A, B, C, D = (x.mT.contiguous() if x.ndim == 3 else x for name, x in inputs.items() if name != "cotangent")

    @torch.no_grad()
    def step() -> Tensor:
        return run(u, dt, A, B, C, D, delta_softplus=True)

    return Runner(step, lambda y: {"y": y.mT})


def transformers_chunks(inputs: Inputs) -> Runner:
    """transformers' scan of Mamba-2 without a GPU, in its chunks of 256 steps."""
    run = load("transformers.models.mamba2.modeling_mamba2").mamba2_chunk_scan
    return training_step(lambda u, dt, A, B, C, D: run(u, dt, A, B, C, 256, D), inputs)
