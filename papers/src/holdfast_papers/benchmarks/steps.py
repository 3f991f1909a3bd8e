"""Ways to make a runner or a truth from a function of torch tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast_papers.benchmarks.case import Inputs, Results, Runner


def training_step(forward: Callable[..., Tensor], inputs: Inputs) -> Runner:
    """A runner for torch: y = forward(*inputs), and the gradients of <y, cotangent> in every other input.

    Results are y and, under each input's name, its gradient.
    """
    cotangent = inputs["cotangent"]
    leaves = {name: value.clone().requires_grad_() for name, value in inputs.items() if name != "cotangent"}

    def step() -> tuple[Tensor, tuple[Tensor, ...]]:
        y = forward(*leaves.values())
        return y, torch.autograd.grad(y, tuple(leaves.values()), cotangent)

    def read(given: tuple[Tensor, tuple[Tensor, ...]]) -> Results:
        y, gradients = given
        return {"y": y.detach(), **dict(zip(leaves, gradients, strict=True))}

    return Runner(step, read)


def truth_by(forward: Callable[..., Tensor]) -> Callable[[Inputs], Results]:
    """The results of the same training step in float64."""

    def truth(inputs: Inputs) -> Results:
        runner = training_step(forward, {name: value.double() for name, value in inputs.items()})
        return runner.read(runner.step())

    return truth


def in_pieces(layer: Callable[..., tuple[Tensor, Tensor]], sequences: tuple[Tensor, ...], steps: int = 64) -> Tensor:
    """The outputs of layer(*piece, h0) over pieces of time, each starting from the state that the last one ended in.

    For the loops over time in float64: a loop that reads x[:, t] costs autograd a tensor as large as x at every step,
    two minutes at T = 8192, and 64 steps of it nothing to speak of.
    """
    outputs, state = [], None
    for pieces in zip(*(x.split(steps, dim=1) for x in sequences), strict=True):
        y, state = layer(*pieces, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1)


def generator() -> torch.Generator:
    """The same numbers in every run."""
    return torch.Generator().manual_seed(0)
