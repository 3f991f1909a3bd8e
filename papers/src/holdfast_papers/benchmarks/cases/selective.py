"""The selective scan of Mamba against transformers' loop, mambapy's parallel scan and the exponentials alone."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.kernels._common import library
from holdfast.kernels.selective import selective, selective_heads
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, OwnKernel, Runner, Shape
from holdfast_papers.benchmarks.cases import token
from holdfast_papers.benchmarks.cases.shared import own_case
from holdfast_papers.benchmarks.peers import mamba, rooflines
from holdfast_papers.benchmarks.steps import generator, training_step, truth_by

GROUP = "selective"
# the inner sizes of Mamba's 130M model, of a small one in a batch, and of a long sequence
SHAPES: tuple[Shape, ...] = ((1, 512, 1536, 16), (8, 1024, 512, 16), (1, 16384, 1536, 16))
QUICK = SHAPES[:1]
# heads of Mamba-2's 130M model: batch, time, heads, width of a head, states
HEADS: tuple[Shape, ...] = ((1, 512, 24, 64, 128), (1, 2048, 24, 64, 64))
# block by block in float64: the loop's graph would take 20 numbers per state and step
TRUTH = truth_by(lambda *leaves: selective(*leaves, dt_softplus=True, backend="chunked")[0])
LOOP_STEPS = 512  # transformers' loop takes T^2; beyond this it is not waited for


def make_inputs(shape: Shape) -> Inputs:
    """As Mamba starts: A = -1, -2, ..., -N, step sizes of 0.001 to 0.1 after softplus."""
    batch, time, channels, state = shape
    numbers = generator()

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=numbers)

    return {
        "u": normal(batch, time, channels),
        "dt": normal(batch, time, channels) - 4.5,
        "A": -torch.arange(1.0, state + 1).repeat(channels, 1),
        "B": normal(batch, time, state),
        "C": normal(batch, time, state),
        "D": torch.ones(channels),
        "cotangent": normal(batch, time, channels),
    }


def ours(inputs: Inputs) -> Runner:
    """The kernel as a user calls it."""
    return training_step(lambda *leaves: selective(*leaves, dt_softplus=True)[0], inputs)


def stated_bytes(shape: Shape) -> int:
    """Memory of a training step in float32: u, dt, y, the cotangent, two gradients, and a state in each tile."""
    batch, time, channels, state = shape
    return 4 * batch * time * (6 * channels + channels * state // library.number("selective_tile_steps") + 6 * state)


KERNEL = OwnKernel(
    name=GROUP,
    dims="BTDN",
    make_inputs=make_inputs,
    ours=ours,
    base=(2, 512, 256, 16),
    sweeps={"T": (256, 512, 1024, 2048, 4096), "N": (8, 16, 32, 64, 128), "B": (1, 2, 4, 8, 16)},
    bounds={"T": 1, "N": 1, "B": 1},
    memory_shape=(4, 2048, 1024, 16),
    stated_bytes=stated_bytes,
    formula="u, dt, y, cotangent, two gradients, one state in 64: 6 B T D + B T D N / 64 + 6 B T N",
)


def cases() -> list[Case]:
    """One case a shape, the forward pass at the first, Mamba-2's heads, and one token."""
    return [
        *(_case(shape) for shape in SHAPES), _forward_case(SHAPES[0]), *(_heads_case(shape) for shape in HEADS), token.case(),
    ]  # fmt: skip


def _case(shape: Shape) -> Case:
    batch, time, channels, state = shape
    whole = 4 * batch * time * channels * state
    limit = Contender("exponentials alone", "roofline", rooflines.exponentials, truth=rooflines.exponentials_truth)
    matches = [Match(limit, "selective scan over one exp and one multiply-add a state and step", 3.5, "at most")]
    parallel = Contender("mambapy pscan", "peer", mamba.selective_pscan, ("mambapy",), memory=12 * whole)
    matches.append(Match(parallel, "selective scan against mamba.py's, discretization included", 6.0))
    if time <= LOOP_STEPS:
        loop = Contender("transformers", "peer", mamba.transformers_loop, ("transformers",), memory=20 * whole)
        matches.append(Match(loop, "selective scan against transformers' loop, T = 512", 100.0))
    return own_case(KERNEL, shape, TRUTH, matches, 2 * 6 * 4 * batch * time * channels)


def _forward_case(shape: Shape) -> Case:
    def forward(inputs: Inputs) -> Runner:
        leaves = [value for name, value in inputs.items() if name != "cotangent"]

        @torch.no_grad()
        def step() -> Tensor:
            return selective(*leaves, dt_softplus=True)[0]

        return Runner(step, lambda y: {"y": y})

    loop = Contender("transformers", "peer", mamba.transformers_forward, ("transformers",))
    return Case(
        group=f"{GROUP}-forward",
        shape=shape,
        inputs=lambda: make_inputs(shape),
        truth=lambda inputs: {"y": TRUTH(inputs)["y"]},
        ours=Contender("holdfast selective", "ours", forward),
        matches=(Match(loop, "forward pass of the selective scan against transformers' loop, T = 512", 15.0),),
    )


def make_heads(shape: Shape) -> Inputs:
    """As Mamba-2 starts: rates from -1 to -16, step sizes of 0.001 to 0.1, one group."""
    batch, time, heads, width, state = shape
    numbers = generator()
    u, cotangent = torch.randn(2, batch, time, heads, width, generator=numbers)
    B, C = torch.randn(2, batch, time, 1, state, generator=numbers)
    dt = 0.001 * 100 ** torch.rand(batch, time, heads, generator=numbers)
    rates = -torch.linspace(1, 16, heads)
    return {"u": u, "dt": dt, "A": rates, "B": B, "C": C, "D": torch.ones(heads), "cotangent": cotangent}


def by_channels(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """The heads as channels of the selective scan, every rate written out for each state."""
    width, state = u.shape[-1], B.shape[-1]
    dt, D = (x.repeat_interleave(width, -1) for x in (dt, D))
    rates = A.repeat_interleave(width).unsqueeze(-1).expand(-1, state)
    return selective(u.flatten(2), dt, rates, B, C, D)[0].view(u.shape)


def _heads_case(shape: Shape) -> Case:
    chunked = Contender("transformers", "peer", mamba.transformers_chunks, ("transformers",))
    channels = Contender("selective", "torch", lambda inputs: training_step(by_channels, inputs))
    return Case(
        group=f"{GROUP}-heads",
        shape=shape,
        inputs=lambda: make_heads(shape),
        truth=truth_by(lambda *leaves: selective_heads(*leaves)[0]),
        ours=Contender("holdfast heads", "ours", lambda i: training_step(lambda *x: selective_heads(*x)[0], i)),
        matches=(
            Match(channels, "Mamba-2's heads by blocks against the selective scan of their channels"),
            Match(chunked, "Mamba-2's heads against transformers' chunk scan"),
        ),
    )
