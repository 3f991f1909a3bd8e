"""One token of a Mamba that generates: the convolution and the scan one step further, as `accelerate` computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.kernels.causal_conv import causal_conv_reference
from holdfast.kernels.selective import selective_reference
from holdfast.nn import _mixer_functions as mixer_functions
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Results, Runner, Shape
from holdfast_papers.benchmarks.peers.optional import load
from holdfast_papers.benchmarks.steps import generator

GROUP = "selective-token"
SHAPE: Shape = (1, 1, 1536, 16)  # batch, time, inner channels and states of Mamba's 130M model
TAPS = 4
ROW = "one token of Mamba's convolution and scan against transformers'"


def make_inputs(shape: Shape) -> Inputs:
    """A step in the middle of a text: inputs before it, a state, and step sizes of 0.001 to 0.1 after softplus."""
    batch, _, channels, state = shape
    numbers = generator()

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=numbers)

    return {
        "x": normal(batch, channels), "window": normal(batch, channels, TAPS), "taps": normal(channels, TAPS),
        "bias": normal(channels), "h0": normal(batch, channels, state), "dt": normal(batch, channels) - 4.5,
        "A": -torch.arange(1.0, state + 1).repeat(channels, 1), "B": normal(batch, state), "C": normal(batch, state),
        "D": torch.ones(channels), "z": normal(batch, channels),
    }  # fmt: skip


def by(functions: Callable[[], Any]) -> Callable[[Inputs], Runner]:
    """A runner with the two functions of a module, which write the new inputs and the new state in place."""

    def build(inputs: Inputs) -> Runner:
        module, given = functions(), {name: value.clone() for name, value in inputs.items()}

        @torch.no_grad()
        def step() -> tuple[Tensor, Tensor]:
            x, window, taps, bias, state, dt, *weights, z = given.values()
            u = module.causal_conv1d_update(x.unsqueeze(-1), window, taps, bias, activation="silu").squeeze(-1)
            return module.mamba_selective_state_update(state, u, dt, *weights, z=z, dt_softplus=True), state

        return Runner(step, lambda outputs: {"y": outputs[0].clone(), "state": outputs[1].clone()})

    return build


def truth(inputs: Inputs) -> Results:
    """A sequence of one step through the references, in float64."""
    x, window, taps, bias, state, dt, A, B, C, D, z = (value.double() for value in inputs.values())
    u, _ = causal_conv_reference(x.unsqueeze(1), taps, bias, window[..., 1:], silu=True)
    dt, B, C, z = (value.unsqueeze(1) for value in (dt, B, C, z))
    y, last = selective_reference(u, dt, A, B, C, D, z=z, dt_softplus=True, h0=state)
    return {"y": y.squeeze(1), "state": last}


def case(shape: Shape = SHAPE) -> Case:
    """One token at one shape."""
    theirs = by(lambda: load("transformers.models.mamba.modeling_mamba"))
    return Case(
        group=GROUP,
        shape=shape,
        inputs=lambda: make_inputs(shape),
        truth=truth,
        ours=Contender("holdfast one token", "ours", by(lambda: mixer_functions)),
        matches=(Match(Contender("transformers", "peer", theirs, ("transformers",)), ROW),),
    )
