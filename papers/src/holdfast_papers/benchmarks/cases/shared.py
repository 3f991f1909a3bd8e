"""What the kernels' cases have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, OwnKernel, Results, Shape
from holdfast_papers.benchmarks.peers import torch_nn

# (B, T, D, N) of the speed table
SHAPES: tuple[Shape, ...] = (
    (128, 32, 1, 64),
    (16, 1024, 128, 64),
    (64, 784, 64, 64),
    (4, 8192, 128, 16),
    (1, 131072, 64, 16),
)


def gated(kind: type[nn.LSTM] | type[nn.GRU], width: int, source: str) -> Contender:
    """torch's LSTM or GRU with `width` hidden units over the input called `source`.

    It computes another function than ours, so that its truth is itself in float64, over the first 256 steps: torch has
    no fused float64 version, and 131072 steps of it take 20 s.
    """
    build, truth = torch_nn.gated(kind, width, source)
    return Contender(f"torch.nn.{kind.__name__}({width})", "torch", build, truth=truth, checked_steps=256)


def own_case(
    kernel: OwnKernel, shape: Shape, truth: Callable[[Inputs], Results], matches: Sequence[Match], memory: int = 0
) -> Case:
    """The case of one of our kernels at a shape."""
    return Case(
        group=kernel.name,
        shape=shape,
        inputs=lambda: kernel.make_inputs(shape),
        truth=truth,
        ours=Contender(f"holdfast {kernel.name}", "ours", kernel.ours),
        matches=tuple(matches),
        memory=memory,
    )
