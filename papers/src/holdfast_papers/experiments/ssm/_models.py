"""Small models to compare for Table 1: one way of mixing over time each, in the same stack."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from holdfast.nn import S4D

Sequences = Float[Tensor, "batch time width"]
KINDS = ("rnn", "tcn", "transformer", "ssm", "ckconv", "linear transformer")
KERNEL = 4  # of the TCN; layer l is dilated by KERNEL^l, so that L layers see KERNEL^L steps


class Recurrent(nn.Module):
    """h+ = tanh(W h + U x), y = C h: m (m + d_input + d_output) weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.RNN(width, width, bias=False, batch_first=True)
        self.readout = nn.Linear(width, width, bias=False)

    def forward(self, x: Sequences) -> Sequences:
        """The whole sequence."""
        return self.readout(self.cell(x)[0])


class Convolution(nn.Module):
    """A causal dilated convolution: C K d_input weights."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, KERNEL, dilation=dilation, bias=False)
        self.past = (KERNEL - 1) * dilation

    def forward(self, x: Sequences) -> Sequences:
        """The whole sequence."""
        return self.conv(functional.pad(x.mT, (self.past, 0))).mT


class Attention(nn.Module):
    """Causal softmax attention over one head, added to its input: 3 m d_input weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)

    def forward(self, x: Sequences) -> Sequences:
        """The whole sequence."""
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
        return x + functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)


class LinearAttention(nn.Module):
    """The same with phi(q)'phi(k) instead of e^{q'k}, phi = elu + 1: sums over the past, carried along."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)

    def forward(self, x: Sequences) -> Sequences:
        """The whole sequence."""
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        sums = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(1)
        weights = (q * k.cumsum(1)).sum(-1, keepdim=True)
        return x + (q.unsqueeze(-2) @ sums).squeeze(-2) / weights


class StateSpace(nn.Module):
    """S4D and a mixture of its channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = S4D(width, 16)
        self.readout = nn.Linear(width, width, bias=False)

    def forward(self, x: Sequences) -> Sequences:
        """The whole sequence."""
        return self.readout(self.layer(x)[0])


class ContinuousKernel(nn.Module):
    """A convolution as long as the sequence, its kernel a small network of the lag with sine activations, by FFT."""

    def __init__(self, width: int, hidden: int = 32) -> None:
        super().__init__()
        self.lag = nn.Linear(1, hidden)
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, width)
        self.readout = nn.Linear(width, width, bias=False)

    def forward(self, x: Sequences) -> Sequences:
        """The whole sequence."""
        length = x.shape[1]
        lag = torch.arange(length, dtype=x.dtype).unsqueeze(-1) / 1000
        kernel = self.outer(torch.sin(self.inner(torch.sin(30 * self.lag(lag))))) / math.sqrt(length)
        spectrum = torch.fft.rfft(x, 2 * length, dim=1) * torch.fft.rfft(kernel, 2 * length, dim=0)
        return self.readout(torch.fft.irfft(spectrum, 2 * length, dim=1)[:, :length])


class Stack(nn.Module):
    """One number in, L mixers with an activation after each, one number out."""

    def __init__(
        self, mixers: list[nn.Module], width: int, activation: Callable[[Tensor], Tensor] = torch.tanh
    ) -> None:
        super().__init__()
        self.encoder = nn.Linear(1, width)
        self.mixers = nn.ModuleList(mixers)
        self.decoder = nn.Linear(width, 1)
        self.activation = activation

    def forward(self, x: Float[Tensor, "batch time 1"]) -> Float[Tensor, "batch time 1"]:
        """The whole sequence."""
        h = self.encoder(x)
        for mixer in self.mixers:
            h = self.activation(mixer(h))
        return self.decoder(h)

    def mixing_weights(self) -> int:
        """The numbers that Table 1 counts: those of the mixers."""
        return sum(p.numel() for p in self.mixers.parameters())


MIXERS: dict[str, Callable[[int, int], nn.Module]] = {
    "rnn": lambda width, layer: Recurrent(width),
    "tcn": lambda width, layer: Convolution(width, KERNEL**layer),
    "transformer": lambda width, layer: Attention(width),
    "ssm": lambda width, layer: StateSpace(width),
    "ckconv": lambda width, layer: ContinuousKernel(width),
    "linear transformer": lambda width, layer: LinearAttention(width),
}


def reference_model(
    kind: str, width: int, depth: int, seed: int, activation: Callable[[Tensor], Tensor] = torch.tanh
) -> Stack:
    """A model of that kind with torch's default initialization, drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Stack([MIXERS[kind](width, layer) for layer in range(depth)], width, activation).eval()
