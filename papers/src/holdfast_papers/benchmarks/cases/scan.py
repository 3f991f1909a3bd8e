"""The raw scan h_t = a_t h_{t-1} + b_t, real, with decays that vary in time."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from holdfast.kernels.scan import scan
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, OwnKernel, Runner, Shape
from holdfast_papers.benchmarks.cases.shared import own_case
from holdfast_papers.benchmarks.peers import jax_peers, mamba, rooflines
from holdfast_papers.benchmarks.steps import generator, in_pieces, training_step, truth_by

GROUP = "scan"
# (batch, time, channels): the larger of D and N of each shape (B, T, D, N) of the speed table
SHAPES: tuple[Shape, ...] = ((128, 32, 64), (16, 1024, 128), (64, 784, 64), (4, 8192, 128), (1, 131072, 64))
QUICK = SHAPES[:2]


def make_inputs(shape: Shape) -> Inputs:
    """Decays in (0.8, 1), inputs and cotangent normal."""
    numbers = generator()
    a = 0.8 + 0.2 * torch.rand(shape, generator=numbers)
    b, cotangent = (torch.randn(shape, generator=numbers) for _ in range(2))
    return {"a": a, "b": b, "cotangent": cotangent}


def ours(inputs: Inputs) -> Runner:
    """The kernel as a user calls it."""
    return training_step(lambda a, b: scan(a, b)[0], inputs)


def stated_bytes(shape: Shape) -> int:
    """Memory of a training step in float32: a, b, h, the cotangent and the gradients of a and b."""
    batch, time, channels = shape
    return 4 * 6 * batch * time * channels


KERNEL = OwnKernel(
    name=GROUP,
    dims="BTN",
    make_inputs=make_inputs,
    ours=ours,
    base=(8, 2048, 64),
    sweeps={"T": (1024, 2048, 4096, 8192, 16384), "N": (32, 64, 128, 256, 512), "B": (4, 8, 16, 32, 64)},
    bounds={"T": 1, "N": 1, "B": 1},
    memory_shape=(16, 4096, 256),
    stated_bytes=stated_bytes,
    formula="a, b, h, cotangent, gradients of a and b: 6 B T N",
)


def cases() -> list[Case]:
    """One case a shape."""
    return [_case(shape) for shape in SHAPES]


def _case(shape: Shape) -> Case:
    # the trees of a parallel scan keep both inputs at every level: about 12 arrays
    memory = 4 * 12 * shape[0] * shape[1] * shape[2]
    triad = Contender("STREAM triad", "roofline", rooflines.stream, truth=rooflines.stream_truth)
    fresh = Contender(
        "STREAM triad, new outputs",
        "roofline",
        functools.partial(rooflines.stream, fresh=True),
        truth=rooflines.stream_truth,
    )
    pscan = Contender("mambapy pscan", "peer", mamba.pscan, ("mambapy",), memory=memory)
    lax = Contender("JAX lax.scan", "peer", jax_peers.lax_scan, ("jax",), memory=memory)
    tree = Contender("JAX associative_scan", "peer", jax_peers.associative_scan, ("jax",), memory=memory)
    matches = [
        Match(triad, "raw scan, share of a STREAM triad over the same arrays", 0.9),
        Match(fresh, "raw scan, share of a STREAM triad that allocates its outputs"),
        Match(pscan, "raw scan against mamba.py pscan", 4.0),
        Match(lax, "raw scan against JAX lax.scan", 4.0),
        Match(tree, "raw scan against JAX associative_scan", 9.0),
    ]
    return own_case(KERNEL, shape, truth_by(_reference), matches)


def _reference(a: Tensor, b: Tensor) -> Tensor:
    return in_pieces(lambda a, b, h0: scan(a, b, h0, backend="reference"), (a, b))
