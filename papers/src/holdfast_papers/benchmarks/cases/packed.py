"""Sequences of many lengths in one row, against the same ones padded to the longest, and one after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.kernels.lru import lru
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, Runner, Shape
from holdfast_papers.benchmarks.cases import lru as lru_cases
from holdfast_papers.benchmarks.steps import generator, training_step, truth_by

GROUP = "packed"
SHAPES: tuple[Shape, ...] = ((1, 8192, 64, 64),)
QUICK = SHAPES
SEQUENCES = 64


def bounds(time: int) -> Tensor:
    """Where the sequences lie: random cuts, so that lengths are spread like those of texts, the longest five times the mean."""
    cuts = torch.randperm(time - 1, generator=generator())[: SEQUENCES - 1] + 1
    return torch.cat((torch.tensor([0]), cuts.sort().values, torch.tensor([time])))


def ours(inputs: Inputs) -> Runner:
    """All in one row, cut by `cu_seqlens`."""
    cuts = bounds(inputs["u"].shape[1])
    return training_step(lambda *leaves: lru(*leaves, cu_seqlens=cuts)[0], inputs)


def padded(inputs: Inputs) -> Runner:
    """A row for each sequence, filled up to the longest."""
    cuts = bounds(inputs["u"].shape[1])
    lengths = cuts.diff()

    def forward(u: Tensor, *weights: Tensor) -> Tensor:
        rows = torch.nn.utils.rnn.pad_sequence(u[0].split(lengths.tolist()), batch_first=True)
        y, _ = lru(rows, *weights, lengths=lengths)
        return torch.cat([row[:length] for row, length in zip(y, lengths.tolist(), strict=True)]).unsqueeze(0)

    return training_step(forward, inputs)


def _apart(backend: str) -> Callable[..., Tensor]:
    def forward(u: Tensor, *weights: Tensor) -> Tensor:
        lengths = bounds(u.shape[1]).diff().tolist()
        return torch.cat([lru(part, *weights, backend=backend)[0] for part in u.split(lengths, 1)], 1)  # type: ignore[arg-type]

    return forward


def cases() -> list[Case]:
    """One case a shape."""
    return [_case(shape) for shape in SHAPES]


def _case(shape: Shape) -> Case:
    one_by_one = Contender("one by one", "torch", lambda inputs: training_step(_apart("auto"), inputs))
    return Case(
        group=GROUP,
        shape=shape,
        inputs=lambda: lru_cases.make_inputs(shape),
        truth=truth_by(_apart("reference")),
        ours=Contender("holdfast lru, packed", "ours", ours),
        matches=(
            Match(Contender("padded", "torch", padded), "64 packed sequences against the same ones padded"),
            Match(one_by_one, "64 packed sequences against a call for each"),
        ),
    )
