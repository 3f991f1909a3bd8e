"""Linear memory capacity against reservoirpy and closed forms."""

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import ArgumentError
from holdfast.memory import Readout, Run


class Reservoir(nn.Module):
    """h_t = 0.3 h_(t-1) + 0.7 tanh(W h_(t-1) + V x_t + b), as reservoirpy's Reservoir(lr=0.7)."""

    def __init__(self, W, V, b):
        super().__init__()
        for name, value in (("W", W), ("V", V), ("b", b)):
            self.register_buffer(name, torch.tensor(value))

    def forward(self, x):
        h = x.new_zeros(len(x), len(self.b))
        visited = []
        for t in range(x.shape[1]):
            h = 0.3 * h + 0.7 * torch.tanh(h @ self.W.T + x[:, t] @ self.V.T + self.b)
            visited.append(h)
        return torch.stack(visited, 1)


def test_the_capacity_of_a_reservoir_is_that_of_reservoirpy():
    rng = np.random.default_rng(1)
    W = rng.uniform(-1, 1, (20, 20))
    W *= 0.9 / np.abs(np.linalg.eigvals(W)).max()
    V, b = rng.uniform(-1, 1, (20, 1)), rng.uniform(-0.1, 0.1, 20)
    series = torch.tensor(rng.uniform(-0.8, 0.8, 600))
    found = holdfast.memory.memory_capacity(Reservoir(W, V, b), longest=30, series=series, readout=Readout(ridge=1e-4))
    # reservoirpy 0.4.2: memory_capacity(Reservoir(W=W, Win=V, bias=b, lr=0.7) >> Ridge(ridge=1e-4), k_max=30,
    # series=series[:, None], as_list=True); equal up to the rounding of sums in another order
    assert found.total == pytest.approx(5.570237497006437, rel=1e-10)
    first = [0.9957872034886542, 0.9742700995569782, 0.9136562439607535, 0.7332564870938405, 0.4943781437784796]
    np.testing.assert_allclose(found.capacities[:5], first, rtol=1e-10)


class Delays(nn.Module):
    def forward(self, x):
        return torch.cat([torch.nn.functional.pad(x, (0, 0, k, 0))[:, : x.shape[1]] for k in (1, 2, 5)], -1)


def test_a_delay_line_recalls_its_delays_exactly_and_nothing_else():
    found = holdfast.memory.memory_capacity(Delays(), longest=10, series=2000, double=True)
    kept = np.isin(found.delays, [1, 2, 5])
    # the ridge of 1e-6 beside sums of 0.2 over 1,600 steps takes off 1e-8
    np.testing.assert_allclose(found.capacities[kept], 1, atol=1e-7)
    # by chance the squared correlation with something unrelated is about 1/400, and hardly ever 16 times that
    assert (found.capacities[~kept] < 16 / found.tested).all()
    assert found.total == pytest.approx(3, abs=0.1)
    assert "last one recalled by half is 5 steps" in found.summary()


def test_a_linear_network_with_distinct_modes_has_as_many_as_it_has_units():
    torch.manual_seed(0)
    rnn = nn.RNN(1, 4, batch_first=True, bias=False, dtype=torch.float64)
    with torch.no_grad():  # small inputs: tanh is linear up to 1e-4
        rnn.weight_hh_l0.copy_(torch.diag(torch.tensor([0.1, 0.4, 0.7, -0.6])))
        rnn.weight_ih_l0.fill_(0.01)
    before = lambda x: nn.functional.pad(rnn(x)[0], (0, 0, 1, 0))[:, :-1]  # noqa: E731 - the state before u(t)
    found = holdfast.memory.memory_capacity(
        before, longest=40, series=50_000, run=Run(dtype=torch.float64), readout=Readout(1e-18)
    )
    # Jaeger 2001: MC = n for a linear reservoir of n distinct modes; correlations over 10,000 steps are known to 0.01
    assert found.total == pytest.approx(4, abs=0.04)


def test_arguments_that_leave_nothing_to_test_are_refused():
    with pytest.raises(ArgumentError, match="ridge"):
        holdfast.memory.memory_capacity(nn.GRU(1, 2, batch_first=True), readout=Readout(ridge=0.0))
    with pytest.raises(ArgumentError, match="longest"):
        holdfast.memory.memory_capacity(nn.GRU(1, 2, batch_first=True), series=100)
