"""The linear recurrent unit against other LRUs, its own matrix products, and LSTM and GRU of equal width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast.kernels.lru import lru
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, OwnKernel, Runner, Shape
from holdfast_papers.benchmarks.cases.shared import SHAPES, gated, own_case
from holdfast_papers.benchmarks.peers import jax_peers, rooflines, s5
from holdfast_papers.benchmarks.steps import generator, in_pieces, training_step, truth_by

GROUP = "lru"
QUICK = SHAPES[:1]
LONGEST_GRU = 1024  # torch.nn.GRU takes 22 s per step at T = 131072; an information row is not worth that


def make_inputs(shape: Shape) -> Inputs:
    """Eigenvalues in the ring 0.9 < |lam| < 0.999, inputs scaled so that the state has unit size."""
    batch, time, features, modes = shape
    numbers = generator()
    radius = 0.9 + 0.099 * torch.rand(modes, generator=numbers)
    angle = 2 * torch.pi * torch.rand(modes, generator=numbers)
    scale = ((1 - radius**2) / (2 * features)).sqrt().repeat(2)[:, None]
    u, cotangent = (torch.randn(batch, time, features, generator=numbers) for _ in range(2))
    return {
        "u": u,
        "lam_re": radius * angle.cos(),
        "lam_im": radius * angle.sin(),
        "b": scale * torch.randn(2 * modes, features, generator=numbers),
        "c": torch.randn(features, 2 * modes, generator=numbers) / modes**0.5,
        "d": torch.randn(features, generator=numbers),
        "cotangent": cotangent,
    }


def ours(inputs: Inputs) -> Runner:
    """The kernel as a user calls it."""
    return training_step(lambda *leaves: lru(*leaves)[0], inputs)


def stated_bytes(shape: Shape) -> int:
    """Memory of a training step in float32: u, y, the cotangent, the gradient of u and the states."""
    batch, time, features, modes = shape
    return 4 * batch * time * (4 * features + 2 * modes)


KERNEL = OwnKernel(
    name=GROUP,
    dims="BTDN",
    make_inputs=make_inputs,
    ours=ours,
    base=(8, 1024, 64, 64),
    sweeps={"T": (512, 1024, 2048, 4096, 8192), "N": (16, 32, 64, 128, 256), "B": (4, 8, 16, 32, 64)},
    bounds={"T": 1, "N": 1, "B": 1},
    memory_shape=(16, 4096, 128, 64),
    stated_bytes=stated_bytes,
    formula="u, y, cotangent, gradient of u, states: 4 B T D + B T (2 N)",
)


def cases() -> list[Case]:
    """One case a shape."""
    return [_case(shape) for shape in SHAPES]


def _case(shape: Shape) -> Case:
    batch, time, features, modes = shape
    width = max(features, modes)  # a drop-in replacement; one feature alone would make no LSTM
    # complex trees over the batch: about 12 arrays of (batch, time, modes) complex64
    memory = 8 * 12 * batch * time * modes
    # the products are the limit: at 64 x 784 x 64 x 64 s5-pytorch takes 6.2 times as long as they do alone, JAX 6.9 times
    matches = [
        Match(Contender("s5-pytorch", "peer", s5.s5, ("s5",), memory=memory), "LRU against s5-pytorch", 4.0),
        Match(Contender("JAX LRU", "peer", jax_peers.lru, ("jax",), memory=memory), "LRU against a JAX LRU", 4.0),
        Match(
            Contender("bare GEMMs", "roofline", rooflines.gemms, truth=rooflines.gemms_truth),
            "LRU over its own bare GEMMs",
            0.8 if time >= 784 else None,
            "at most",
        ),
        Match(gated(nn.LSTM, width, "u"), "LRU against torch.nn.LSTM of equal width", 4.0),
    ]
    if time <= LONGEST_GRU:
        matches.append(Match(gated(nn.GRU, width, "u"), "LRU against torch.nn.GRU of equal width"))
    return own_case(KERNEL, shape, truth_by(_reference), matches)


def _reference(u: Tensor, lam_re: Tensor, lam_im: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return in_pieces(lambda u, h0: lru(u, lam_re, lam_im, b, c, d, h0, backend="reference"), (u,))
