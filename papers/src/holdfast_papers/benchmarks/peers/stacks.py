"""Layers of others that fit into our stack, so that only the recurrent layer is exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.nn import SequenceModel
from holdfast_papers.benchmarks.peers.fft_s4d import fft_s4d
from holdfast_papers.benchmarks.peers.optional import load


class FFTS4D(nn.Module):
    """S4D-Lin with the weights of the state-spaces layer: log_dt, log of the negative real part, frequency, C, D."""

    def __init__(self, features: int, state_size: int) -> None:
        super().__init__()
        modes = state_size // 2
        self.features = features
        self.log_dt = nn.Parameter(torch.rand(features) * math.log(100) + math.log(1e-3))
        self.log_A_real = nn.Parameter(torch.full((features, modes), math.log(0.5)))
        self.A_imag = nn.Parameter((math.pi * torch.arange(modes)).expand(features, modes).clone())
        self.C = nn.Parameter(torch.randn(features, modes, 2) * math.sqrt(0.5))
        self.D = nn.Parameter(torch.randn(features))

    def forward(self, x: Tensor, state: None = None, **how: Any) -> tuple[Tensor, None]:
        """The whole sequence; this layer has no state."""
        c_re, c_im = self.C.unbind(-1)
        y = fft_s4d(x, torch.exp(self.log_dt), -torch.exp(self.log_A_real), self.A_imag, c_re, c_im, self.D)
        return y, None


class S5Layer(nn.Module):
    """s5-pytorch's S5 layer as it stands."""

    def __init__(self, features: int, state_size: int) -> None:
        super().__init__()
        self.features = features
        self.layer = load("s5.s5_model").S5(features, state_size)

    def forward(self, x: Tensor, state: None = None, **how: Any) -> tuple[Tensor, None]:
        """The whole sequence from a zero state."""
        return self.layer(x), None


def exchange(model: SequenceModel, layer: Callable[[], nn.Module]) -> SequenceModel:
    """The model with a layer of anybody's in every block; all other weights stay."""
    for block in model.blocks:
        block.mixer = layer()
    return model
