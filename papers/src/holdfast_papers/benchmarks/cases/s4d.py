"""The S4D layer against the FFT layer of the S4D paper."""

from __future__ import annotations

import math

import torch

from holdfast.kernels.s4d import s4d
from holdfast_papers.benchmarks.case import Case, Contender, Inputs, Match, OwnKernel, Runner, Shape
from holdfast_papers.benchmarks.cases.shared import SHAPES, own_case
from holdfast_papers.benchmarks.peers.fft_s4d import fft_s4d, fft_s4d_bytes
from holdfast_papers.benchmarks.steps import generator, training_step, truth_by

GROUP = "s4d"
QUICK = SHAPES[:1]
CHECKPOINT = 128  # the scan algorithm keeps the state once in so many steps


def make_inputs(shape: Shape) -> Inputs:
    """S4D-Lin: A_n = -1/2 + i pi n, steps log-uniform in (1e-3, 1e-1), C and D normal; N / 2 conjugate pairs."""
    batch, time, features, state = shape
    modes = state // 2
    numbers = generator()
    u, cotangent = (torch.randn(batch, time, features, generator=numbers) for _ in range(2))
    c_re, c_im = torch.randn(2, features, modes, generator=numbers) * 0.5**0.5
    span = math.log(1e-3), math.log(1e-1)
    return {
        "u": u,
        "dt": torch.exp(span[0] + (span[1] - span[0]) * torch.rand(features, generator=numbers)),
        "lam_re": torch.full((features, modes), -0.5),
        "lam_im": math.pi * torch.arange(modes).repeat(features, 1),
        "c_re": c_re,
        "c_im": c_im,
        "d": torch.randn(features, generator=numbers),
        "cotangent": cotangent,
    }


def ours(inputs: Inputs) -> Runner:
    """The kernel as a user calls it."""
    return training_step(lambda *leaves: s4d(*leaves)[0], inputs)


def stated_bytes(shape: Shape) -> int:
    """Memory of a training step in float32: u, y, the cotangent, the gradient of u, and a state every 128 steps."""
    batch, time, features, state = shape
    return 4 * batch * time * features * 4 + 4 * batch * (time // CHECKPOINT + 1) * features * state


KERNEL = OwnKernel(
    name=GROUP,
    dims="BTDN",
    make_inputs=make_inputs,
    ours=ours,
    base=(8, 1024, 32, 32),
    sweeps={"T": (1024, 2048, 4096, 8192, 16384), "N": (8, 16, 32, 64, 128), "B": (4, 8, 16, 32, 64)},
    bounds={"T": 1, "N": 1, "B": 1},
    memory_shape=(16, 8192, 128, 16),
    stated_bytes=stated_bytes,
    formula="u, y, cotangent, gradient of u, one state in 128: 4 B T D + B D N T / 128",
)


def cases() -> list[Case]:
    """One case a shape."""
    return [_case(shape) for shape in SHAPES]


def _case(shape: Shape) -> Case:
    batch, time, features, state = shape
    memory = fft_s4d_bytes(batch, time, features, state // 2)
    fft = Contender("FFT S4D", "torch", lambda inputs: training_step(fft_s4d, inputs), memory=memory)
    row, goal = ("S4D against FFT S4D, T >= 784", 15.0) if time >= 784 else ("S4D against FFT S4D, T = 32", 4.0)
    return own_case(KERNEL, shape, truth_by(fft_s4d), [Match(fft, row, goal)], 2 * memory)
