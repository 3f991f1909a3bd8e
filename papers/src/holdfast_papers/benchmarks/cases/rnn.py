"""The nonlinear RNN h_t = tanh(W h_{t-1} + U x_t + b) against torch's modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.kernels.rnn import rnn
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, OwnKernel, Runner, Shape
from holdfast_papers.benchmarks.cases import shared
from holdfast_papers.benchmarks.peers import torch_nn
from holdfast_papers.benchmarks.steps import generator, in_pieces, training_step, truth_by

GROUP = "rnn"
# without (1, 131072, 64, 16), where torch.nn.RNN takes 11 s per step; m = 256 instead of N in two of the others
SHAPES: tuple[Shape, ...] = (*shared.SHAPES[:4], (128, 32, 1, 256), (16, 1024, 128, 256))
QUICK = SHAPES[:1]


def make_inputs(shape: Shape) -> Inputs:
    """Weights as torch.nn.RNN starts them: uniform within 1 / sqrt(m)."""
    batch, time, features, state = shape
    numbers = generator()

    def uniform(*size: int) -> Tensor:
        return (2 * torch.rand(size, generator=numbers) - 1) * state**-0.5

    return {
        "x": torch.randn(batch, time, features, generator=numbers),
        "w": uniform(state, state),
        "u": uniform(state, features),
        "b": uniform(state),
        "cotangent": torch.randn(batch, time, state, generator=numbers),
    }


def ours(inputs: Inputs) -> Runner:
    """The kernel as a user calls it."""
    return training_step(lambda *leaves: rnn(*leaves)[0], inputs)


def stated_bytes(shape: Shape) -> int:
    """Memory of a training step in float32: x, h, the cotangent and the gradient of x."""
    batch, time, features, state = shape
    return 4 * batch * time * (2 * features + 2 * state)


KERNEL = OwnKernel(
    name=GROUP,
    dims="BTDN",
    make_inputs=make_inputs,
    ours=ours,
    base=(32, 256, 32, 64),
    sweeps={"T": (128, 256, 512, 1024, 2048), "N": (16, 32, 64, 128, 256), "B": (8, 16, 32, 64, 128)},
    bounds={"T": 1, "N": 2, "B": 1},
    memory_shape=(64, 4096, 64, 64),
    stated_bytes=stated_bytes,
    formula="x, h, cotangent, gradient of x: 2 B T D + 2 B T N",
)


def cases() -> list[Case]:
    """One case a shape."""
    return [_case(shape) for shape in SHAPES]


def _case(shape: Shape) -> Case:
    state = shape[3]
    row, goal = (
        ("RNN against torch.nn.RNN, m <= 64", 6.0) if state <= 64 else ("RNN against torch.nn.RNN, m = 256", 2.0)
    )
    matches = [Match(Contender("torch.nn.RNN", "torch", torch_nn.rnn), row, goal)]
    if shape == SHAPES[2]:
        matches += [
            Match(shared.gated(kind, state, "x"), f"RNN against torch.nn.{kind.__name__}") for kind in (nn.LSTM, nn.GRU)
        ]
    return shared.own_case(KERNEL, shape, truth_by(_reference), matches)


def _reference(x: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
    return in_pieces(lambda x, h0: rnn(x, w, u, b, h0, backend="reference"), (x,))
