"""Teachers of the filtering experiments: wide random RNNs, and random causal transformers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import laws
from holdfast.errors import ArgumentError
from holdfast.laws import AbstractLaw
from holdfast.memory import InputSearch, MemoryCurve, Probe, memory_function
from holdfast.nn import ContinuousRNN
from holdfast_papers.experiments import _networks
from holdfast_papers.experiments.base import Arrays, Config

SIZE = 0.2  # root mean square of a teacher's outputs on the noise that students learn from: that of (t+1)^-1.5
AMPLITUDES = (0.1, 1.0, 10.0)  # of the steps that memory is measured by
POINTS = 300  # of a memory function that is kept


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
    """A random transformer encoder with a causal mask, sinusoidal positions and no dropout; one input, one output."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.embed, self.read_out = nn.Linear(1, width), nn.Linear(width, 1)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, 1) to (batch, time, 1)."""
        steps, width = x.shape[1], self.embed.out_features
        time = torch.arange(steps, dtype=x.dtype).unsqueeze(-1)
        angle = time * torch.exp(-math.log(1e4) * torch.arange(0, width, 2, dtype=x.dtype) / width)
        positions = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        future = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        return self.read_out(self.layers(self.embed(x) + positions, mask=future))


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


def scaled(teacher: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    """The teacher with outputs whose root mean square on x is SIZE."""
    size = float(outputs(teacher, x).square().mean().sqrt())
    if not 0 < size < math.inf:
        raise ArgumentError(f"a teacher's outputs must be finite and not 0, their root mean square is {size}")
    return lambda x: SIZE / size * outputs(teacher, x)


def memory(teacher: nn.Module, config: Config, burn_in: int | None = None) -> MemoryCurve:
    """The Heaviside memory of a teacher in float64."""
    probe = Probe(dt=config["memory_dt"], burn_in=burn_in)
    return memory_function(
        teacher.double(), horizon=config["horizon"], probe=probe, search=InputSearch(amplitudes=AMPLITUDES)
    )


def memory_arrays(curve: MemoryCurve) -> Arrays:
    """A memory function, its rate, that of its last third, and the excess over a line at half its rate; NaN, no decay."""
    found = _networks.tail(curve)
    rate = found.rate
    excess = _networks.capped(curve, rate / 2) if math.isfinite(rate) else math.nan
    return {
        "memory": _networks.thinned(curve, POINTS).astype(np.float32),
        "memory_time": _networks.thinned_time(len(curve.values) - 1, POINTS) * float(curve.time[1] - curve.time[0]),
        "memory_rate": np.array(rate),
        "late_rate": np.array(found.end),
        "excess": np.array(excess),
    }


def is_exponential(arrays: Arrays) -> bool:
    """Whether the memory fell to 1e-11 of its largest value under a straight line at half its fitted rate.

    Its last third must fall at half that rate too: a line that begins at the largest value lies above a power law for as
    long as anything can be measured.
    """
    return bool(arrays["excess"] <= 1 and arrays["late_rate"] >= arrays["memory_rate"] / 2)
