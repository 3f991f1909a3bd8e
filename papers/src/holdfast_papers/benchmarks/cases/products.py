"""The product of a linear layer, forward and its three gradients, against torch's: the same where torch's is as fast."""

from __future__ import annotations

import torch
from torch.nn import functional

from holdfast.kernels._linear import linear, pays
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Shape
from holdfast_papers.benchmarks.steps import generator, training_step, truth_by

GROUP = "linear"
# (B, T, inputs, outputs): a block of a language model, a wide batch of a narrow one, the projection of a Mamba of 130M
SHAPES: tuple[Shape, ...] = ((8, 256, 128, 384), (64, 784, 64, 64), (1, 512, 768, 3072))
QUICK = SHAPES[:1]
GOAL = 1.5  # where torch takes AVX2 for it although the CPU has AVX-512; elsewhere both are torch's
ROW = "product of a linear layer against torch's"


def make_inputs(shape: Shape) -> Inputs:
    """Weights of size 1 / sqrt(inputs)."""
    batch, time, inputs, outputs = shape
    numbers = generator()
    return {
        "x": torch.randn(batch, time, inputs, generator=numbers),
        "weight": torch.randn(outputs, inputs, generator=numbers) / inputs**0.5,
        "bias": torch.randn(outputs, generator=numbers),
        "cotangent": torch.randn(batch, time, outputs, generator=numbers),
    }


def cases() -> list[Case]:
    """One case per shape."""
    return [_case(shape) for shape in SHAPES]


def _case(shape: Shape) -> Case:
    torchs = Contender("torch", "torch", lambda inputs: training_step(functional.linear, inputs))
    return Case(
        group=GROUP,
        shape=shape,
        inputs=lambda: make_inputs(shape),
        truth=truth_by(functional.linear),
        ours=Contender("linear", "ours", lambda inputs: training_step(linear, inputs)),
        matches=(Match(torchs, ROW, GOAL if pays() else None),),
    )
