"""A layer that the package does not know, added as CONTRIBUTING says: everything that measures layers takes it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import holdfast
from holdfast.kernels import scan
from holdfast.memory import closed_form
from holdfast.nn import AbstractRecurrent
from holdfast.nn.system import LinearSystem, single_system
from holdfast.parameterizations import get


class Leaky(AbstractRecurrent):
    """h+ = f(w) h + U x, y = sum h: the least that a layer has to say of itself."""

    recurrent_names = ("w",)
    time = "discrete"

    def __init__(self, features, state_size):
        super().__init__(features, state_size, bidirectional=False)
        self.parameterization = get("exp", time="discrete")
        self.w = nn.Parameter(self.parameterization.inverse(torch.linspace(0.5, 0.95, state_size)))
        self.U = nn.Parameter(torch.randn(state_size, features))

    @property
    def state_shape(self):
        return (self.state_size,)

    def eigenvalues(self):
        return self.parameterization(self.w)

    def linear_system(self) -> LinearSystem:
        return single_system(self.eigenvalues(), self.U, None, torch.ones_like(self.U[:, :1].mT))

    def _run(self, x, state, lengths, dt, reverse):
        h, last = scan(self.eigenvalues(), functional.linear(x, self.U), state, reverse=reverse, lengths=lengths)
        return h.sum(-1, keepdim=True), last

    def _step(self, x, state, dt):
        h = self.eigenvalues() * state + functional.linear(x, self.U)
        return h.sum(-1, keepdim=True), h


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return Leaky(1, 3).double()


def test_a_new_layer_has_a_measured_memory_that_is_its_closed_form(layer):
    measured = holdfast.memory_function(layer, horizon=60)
    exact = closed_form.of_layer(layer, 60).memory()
    # rounding of two float64 sums of three terms
    torch.testing.assert_close(torch.from_numpy(measured.values), exact, rtol=1e-11, atol=1e-13)
    assert holdfast.fit_decay(measured).asymptotic.rate == pytest.approx(-torch.tensor(0.95).log().item(), rel=1e-6)


def test_a_new_layer_is_certified_by_its_slowest_mode(layer):
    certificate = holdfast.certify(layer)
    assert certificate.status == "stable"
    assert certificate.scope == "global"
    assert certificate.margin == pytest.approx(0.05, rel=1e-6)


def test_perturbations_of_a_new_layer_take_the_fast_way_and_agree_with_the_loop(layer):
    x = torch.randn(4, 20, 1, dtype=torch.float64)
    y = layer(x)[0].detach()
    radii = [0.01, 0.1]
    fast = holdfast.perturbation_error(layer, x, y, radii, draws=5)
    slow = holdfast.perturbation_error(layer, x, y, radii, search=holdfast.stability.Search(draws=5, evaluation="loop"))
    assert fast.method == "impulse"
    assert slow.method == "loop"
    torch.testing.assert_close(torch.from_numpy(fast.errors), torch.from_numpy(slow.errors), rtol=1e-9, atol=1e-12)


def test_a_new_layer_is_stabilised_and_watched(layer):
    before = layer(torch.ones(1, 5, 1, dtype=torch.float64))[0].detach()
    holdfast.stabilize(layer, "best")
    torch.testing.assert_close(layer(torch.ones(1, 5, 1, dtype=torch.float64))[0], before, rtol=1e-12, atol=1e-12)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with holdfast.GradientMonitor(layer) as monitor:
        layer(torch.ones(1, 5, 1, dtype=torch.float64))[0].sum().backward()
        optimizer.step()
    assert [watched.path for watched in monitor.watched] == ["w"]
    assert monitor.watched[0].view.margin() == pytest.approx(layer.margin())
