"""Teachers of the filtering experiments: wide random RNNs, and random causal transformers."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import laws
from holdfast.laws import AbstractLaw
from holdfast.memory import InputSearch, MemoryCurve, Probe, memory_function
from holdfast.nn import ContinuousRNN
from holdfast_papers.experiments.base import Config

SIZE = 0.2  # root mean square of a teacher's outputs on the noise that students learn from: that of (t+1)^-1.5
AMPLITUDES = (0.1, 1.0, 10.0)  # of the inputs that memory is measured by


def random_rnn(config: Config) -> nn.Module:
    """A tanh RNN of eq. 1 with W = gain N / sqrt(m) - shift I, N standard normal, and no bias."""
    m, rng = config["teacher_width"], torch.Generator().manual_seed(config["teacher_seed"])

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    W = config["gain"] / math.sqrt(m) * normal(m, m) - config["shift"] * torch.eye(m)
    model = ContinuousRNN(1, m, parameterization="direct", dt=config["dt"], bias=False, W=W)
    with torch.no_grad():
        model.U.copy_(normal(m, 1))
        model.C.copy_(normal(1, m) / math.sqrt(m))
    return model.eval()


# targets whose memory is known, since they are made of it: a kernel, and a function after the convolution with it
EXPONENTIAL: dict[str, tuple[AbstractLaw, str]] = {
    "e^-t/2": (laws.Exponential(0.5), "linear"),
    "e^-t": (laws.Exponential(1.0), "linear"),
    "e^-t/2, tanh": (laws.Exponential(0.5), "tanh"),
    "e^-t cos 2t": (laws.OscillatingExponential(1.0, 2.0), "linear"),
    "e^-0.4t + e^-2t, tanh": (laws.ExponentialMixture((0.4, 2.0), (0.5, 0.5)), "tanh"),
}
SLOWER: dict[str, tuple[AbstractLaw, str]] = {
    "(1+t)^-1.1": (laws.PowerLaw(1.1), "linear"),
    "(1+t)^-1.5": (laws.PowerLaw(1.5), "linear"),
    "(1+t)^-2": (laws.PowerLaw(2.0), "linear"),
    "(1+t)^-1.5, tanh": (laws.PowerLaw(1.5), "tanh"),
    "(1+t)^-2, tanh": (laws.PowerLaw(2.0), "tanh"),
}
BUILT = {**EXPONENTIAL, **SLOWER}


def kernel_response(rho: AbstractLaw, after: str, x: Tensor, dt: float) -> Tensor:
    """dt sum_j rho(j dt) x_{k-j}, and tanh of it where `after` says so; (sequences, time, 1) in float32."""
    steps = x.shape[1]
    kernel = torch.as_tensor(np.asarray(rho(dt * np.arange(steps))), dtype=torch.float64)
    n = 2 * steps
    y = torch.fft.irfft(torch.fft.rfft(x[..., 0].double(), n) * torch.fft.rfft(kernel, n), n)[..., :steps]
    return (dt * y if after == "linear" else torch.tanh(dt * y)).unsqueeze(-1).float()


def scales(x: Tensor, seed: int) -> Tensor:
    """Inputs of all time scales: every other sequence of the noise is a random sign held for spans from a step to all.

    White noise alone hardly excites slow memory: what is left of a power law after 2 units of time is 2% of the variance of
    the output, and half of its answer to a constant input.

    Args:
        x: white noise (sequences, time, 1).
        seed: of the spans and signs.
    """
    rng, steps = np.random.default_rng(seed), x.shape[1]
    held = x.clone()
    for row in held[1::2, :, 0]:
        at = 0
        while at < steps:
            span = int(np.ceil(steps ** rng.uniform()))  # log-uniform from 1 to all
            row[at : at + span] = float(rng.choice((-1.0, 1.0)))
            at += span
    return held


class CausalTransformer(nn.Module):
    """A random transformer encoder with a causal mask, no positions and no dropout; one input, one output.

    Without positions what it answers depends on the inputs alone and not on the number of the step, as far as a mean over all
    inputs so far can.
    """

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.embed, self.read_out = nn.Linear(1, width), nn.Linear(width, 1)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, 1) to (batch, time, 1)."""
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.read_out(self.layers(self.embed(x), mask=future))


def transformer(config: Config) -> nn.Module:
    """A random causal transformer in evaluation mode; layers of one encoder start from draws of their own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config["teacher_seed"])
        model = CausalTransformer(config["transformer_width"], config["depth"], config["heads"])
        for weight in model.layers.parameters():
            # torch copies one layer: draw all of them again
            if weight.ndim == 2:
                nn.init.xavier_uniform_(weight)
    return model.eval()


@torch.no_grad()
def outputs(teacher: nn.Module, x: Tensor) -> Tensor:
    """What the teacher answers, in parts of 256 sequences."""
    found = [teacher(part) for part in x.split(256)]
    return torch.cat([y[0] if isinstance(y, tuple) else y for y in found])


def memory(teacher: nn.Module, config: Config) -> MemoryCurve:
    """The memory of a teacher in float64, by the probe that the config names."""
    probe = Probe(config["probe"], burn_in=0)
    return memory_function(
        teacher.double(), horizon=config["horizon"], probe=probe, search=InputSearch(amplitudes=AMPLITUDES)
    )
