"""Teachers of the filtering experiments: wide random RNNs, and random causal transformers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.errors import ArgumentError
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
