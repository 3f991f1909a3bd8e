"""Recurrences where the model rests and along data, against products of Jacobians by autograd."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from holdfast import GradientMonitor, certify
from holdfast.nn import ContinuousGRU, Mamba, SelectiveSSM
from holdfast.stability.certificates._along import _period


class Shifted(nn.Module):
    """A GRU that never reads zeros: a bias of 3 lies before it."""

    def __init__(self, layers=1):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(2, 8)
        nn.init.constant_(self.first.bias, 3.0)
        self.rnn = nn.GRU(8, 12, num_layers=layers, batch_first=True)

    def forward(self, x):
        return self.rnn(self.first(x))[0]


def products(cell, drive, size):
    """The largest exponent by autograd: a random vector through the Jacobians of every step, scaled back each time."""
    h = torch.zeros(size, dtype=torch.float64)
    v = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logs = []
    for u in drive:
        v = torch.autograd.functional.jacobian(lambda state, u=u: cell(u, state), h) @ v
        h = cell(u, h)
        logs.append(float(v.norm().log()))
        v = v / v.norm()
    kept = logs[len(logs) // 4 :]
    return sum(kept) / len(kept)


def gru_cell_of(rnn):
    """One step written out."""
    w_ih, w_hh, b_ih, b_hh = (p.detach().double() for p in rnn.parameters())

    def cell(x, h):
        rx, zx, nx = (x @ w_ih.T + b_ih).chunk(3, -1)
        rh, zh, nh = (h @ w_hh.T + b_hh).chunk(3, -1)
        z, n = torch.sigmoid(zx + zh), torch.tanh(nx + torch.sigmoid(rx + rh) * nh)
        return (1 - z) * n + z * h

    return cell


def test_a_layer_behind_a_bias_is_linearised_on_what_it_reads_and_the_monitor_agrees():
    model = Shifted()
    zeros = model.first(torch.zeros(1, 400, 2))[0].double().detach()
    wanted = products(gru_cell_of(model.rnn), zeros, 12)
    found = certify(model)
    assert found.time_constant == pytest.approx(-1 / wanted, rel=0.01)  # 300 steps of a product settle to that
    assert certify(model.rnn).time_constant != pytest.approx(found.time_constant, rel=0.1)  # on zeros of its own
    model(torch.randn(2, 5, 2)).sum().backward()
    monitor = GradientMonitor(model, share=1.0)
    monitor.record()
    assert monitor.history.margin[0, 0] == pytest.approx(found.margin, rel=1e-6)


def test_the_exponent_along_data_is_that_of_the_products_of_jacobians():
    model, x = Shifted(), torch.randn(2, 400, 2)
    found = certify(model, inputs=x).along
    wanted = [products(gru_cell_of(model.rnn), row.double().detach(), 12) for row in model.first(x)]
    assert found.exponent == pytest.approx(sum(wanted) / 2, abs=3 * found.error + 1e-3)
    assert found.rows == 2 and found.time_constant == pytest.approx(-1 / found.exponent)


def test_upper_layers_and_both_directions_have_an_exponent_each():
    torch.manual_seed(0)
    model = nn.LSTM(2, 6, num_layers=2, bidirectional=True, batch_first=True)
    parts = certify(model, inputs=torch.randn(2, 200, 2)).parts
    assert len(parts) == 4
    for part in parts:  # untrained gates hardly move: along noise they forget as at rest
        assert part.along.time_constant == pytest.approx(part.time_constant, rel=0.1)


@pytest.mark.parametrize("make", [lambda: SelectiveSSM(3, 4), lambda: Mamba(4, 4)])
def test_a_selective_layer_forgets_by_the_mean_of_its_steps(make):
    torch.manual_seed(0)
    layer = make()
    features = layer.features
    part = certify(layer, inputs=torch.randn(2, 64, features))
    assert part.along.exponent < 0
    zeros = certify(layer, inputs=torch.zeros(1, 256, features))
    # on zeros dt is that at rest but for the first steps of a convolution
    assert zeros.along.time_constant == pytest.approx(zeros.time_constant, rel=0.02)


def test_a_gated_layer_of_ours_is_followed_by_its_own_step():
    torch.manual_seed(0)
    layer = ContinuousGRU(2, 5)
    part = certify(layer, inputs=torch.zeros(1, 600, 2))
    assert part.along.exponent == pytest.approx(math.log(1 - part.margin), rel=0.02)


def rotating(size):
    model = nn.RNN(1, 2, batch_first=True, bias=False)
    with torch.no_grad():
        model.weight_hh_l0.copy_(size * torch.tensor([[0.8, -0.6], [0.6, 0.8]]))
    return model


def test_a_slow_drift_to_rest_is_no_oscillation():
    time = np.arange(1000.0)[:, None]
    for drift in (np.exp(-time / 5000), 1 / (1 + time), np.log1p(time)):
        assert _period(drift - drift.mean(0)) is None
    for period in (2, 3, 40):
        assert _period(np.cos(2 * np.pi * time / period)) == pytest.approx(period, rel=0.02)


def test_what_does_not_rest_is_told_as_oscillating_with_its_period():
    found = certify(rotating(1.5))
    assert found.status == "unstable"  # 0 repels
    assert found.restless.kind == "oscillating"
    # turned by atan(3/4) a step where tanh does not bend it: 9.76 steps; saturation moves that by a few percent
    assert found.restless.period == pytest.approx(2 * math.pi / math.atan2(3, 4), rel=0.05)
    assert certify(rotating(0.9)).restless is None


def test_chaos_is_told_with_its_exponent_and_bound():
    torch.manual_seed(0)
    model = nn.RNN(1, 64, batch_first=True)
    nn.init.normal_(model.weight_hh_l0, std=2.5 / 8)  # gain 2.5: chaotic (Sompolinsky et al. 1988)
    found = certify(model, starts=2)
    assert found.restless.kind == "chaotic" and found.restless.largest <= 1
    assert found.restless.exponent.exponent > 0.1


def test_a_model_that_cannot_be_run_is_looked_at_on_zeros_and_said_so():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 3, batch_first=True)

        def forward(self, x, other):
            return self.rnn(x + other)[0]

    assert any("could not be run on zeros" in note for note in certify(Two()).notes)
