"""Randomly initialized recurrent networks of one input and one output, as the memory experiments measure them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.decay import stack_rate
from holdfast.memory import MemoryCurve, memory_function
from holdfast.memory._options import InputSearch, ProbeName
from holdfast.nn import SequenceModel
from holdfast_papers.experiments.base import Config

KINDS = ("rnn", "gru", "lstm", "ssm", "s4")
TORCH: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


class Recurrent(nn.Module):
    """torch's own recurrent network with a linear readout; continues from a state."""

    def __init__(self, kind: str, width: int, depth: int) -> None:
        super().__init__()
        self.cell = TORCH[kind](1, width, num_layers=depth, batch_first=True)
        self.readout = nn.Linear(width, 1)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """(batch, time, 1) to (batch, time, 1)."""
        h, state = self.cell(x, state)
        return self.readout(h), state


def random_network(kind: str, width: int, depth: int, seed: int) -> nn.Module:
    """A float64 network of that kind with the default initialization of its library, drawn from `seed`.

    "ssm" is a stack of real diagonal SSMs with tanh between layers and nothing else ("State-space Models ...", Sec. 4);
    "s4" a stack of gated S4D blocks.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind in TORCH:
            network: nn.Module = Recurrent(kind, width, depth)
        elif kind == "ssm":
            network = SequenceModel(1, width, depth=depth, layer="diagonal", state_size=width, block="naive")
        else:
            network = SequenceModel(1, width, depth=depth, layer="s4d", state_size=width, block="gated")
    return network.double().eval()


HIGH, LOW = 1e-4, 1e-11  # of the largest value; float64 leaves noise near 1e-14 of it


@dataclass(frozen=True)
class Tail:
    """The late decay of a curve: the rate fitted to it, and the rate fitted to its last third.

    Both are equal for an exponential. For a power law of an exponent up to 5 the last third falls at less than half of the
    whole's rate. NaN where the curve did not fall so far.
    """

    rate: float
    end: float


def tail(curve: MemoryCurve) -> Tail:
    """The decay between 1e-4 and 1e-11 of the largest value, on the envelope max over s >= t of M(s)."""
    envelope = np.maximum.accumulate(curve.values[::-1])[::-1] / curve.values.max()
    below = np.flatnonzero(envelope < LOW)
    if len(below) == 0:
        return Tail(math.nan, math.nan)
    first, last = int(np.flatnonzero(envelope < HIGH)[0]), int(below[0])
    third = last - (last - first) // 3
    if last - third < 3:
        return Tail(math.nan, math.nan)

    def rate(begin: int) -> float:
        return -float(np.polyfit(curve.time[begin:last], np.log(envelope[begin:last]), 1)[0])

    return Tail(rate(first), rate(third))


def asymptotic_rate(network: nn.Module, amplitude: float) -> float:
    """-log of the spectral radius of one step at the equilibrium under constant input: the rate for t -> inf.

    From the weights alone. In a stack of linear recurrences with memoryless functions between them the Jacobian of a
    step is block triangular: its eigenvalues are those of the layers. Negative where the equilibrium is unstable.
    """
    if not isinstance(network, Recurrent):
        return stack_rate(network)
    return -math.log(float(torch.linalg.eigvals(_jacobian(network, amplitude)).abs().max()))


def _jacobian(network: Recurrent, amplitude: float, settle: int = 5000) -> Tensor:
    with torch.no_grad():
        x = torch.full((1, settle, 1), amplitude, dtype=torch.float64)
        _, state = network(x)
    parts = state if isinstance(state, tuple) else (state,)
    sizes, shape = [part.numel() for part in parts], parts[0].shape

    def step(flat: Tensor) -> Tensor:
        pieces = tuple(piece.reshape(shape) for piece in flat.split(sizes))
        _, after = network(x[:, :1], pieces if isinstance(state, tuple) else pieces[0])
        return torch.cat([part.flatten() for part in (after if isinstance(after, tuple) else (after,))])

    return torch.autograd.functional.jacobian(step, torch.cat([part.flatten() for part in parts]))


def capped(curve: MemoryCurve, rate: float) -> float:
    """How far M(t) e^{rate t} in the last third of the decay exceeds its largest value before.

    At most 1 where a straight line of that slope in logarithmic scale caps the curve. The decay ends where M is 1e-11
    of its largest value; NaN where it never is.
    """
    envelope = np.maximum.accumulate(curve.values[::-1])[::-1] / curve.values.max()
    below = np.flatnonzero(envelope < LOW)
    if len(below) == 0:
        return math.nan
    end = max(int(below[0]), 3)
    t = curve.time[:end]
    product = np.log(np.maximum(curve.values[:end], 1e-300)) + rate * t
    return float(np.exp(product[2 * end // 3 :].max() - product[: 2 * end // 3].max()))


def measure(network: nn.Module, probe: ProbeName, config: Config) -> MemoryCurve:
    """The memory function for the input x = amplitude, as far as `horizon` steps."""
    x = torch.full((1, 1), float(config["amplitude"]), dtype=torch.float64)
    return memory_function(network, horizon=config["horizon"], probe=probe, search=InputSearch(candidates=x))


def thinned(curve: MemoryCurve, points: int) -> np.ndarray:
    """The curve at about that many times, each the largest value until the next: no oscillation is missed."""
    every = max(1, len(curve.values) // points)
    return np.maximum.reduceat(curve.values, np.arange(0, len(curve.values), every))


def thinned_time(horizon: int, points: int) -> np.ndarray:
    """The times of `thinned`."""
    return np.arange(0, horizon + 1, max(1, (horizon + 1) // points))
