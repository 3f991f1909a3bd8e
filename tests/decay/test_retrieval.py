"""An effect that comes back after a pause is reported as a retrieval; whatever rings, fluctuates or decays is not."""

import numpy as np
import pytest
import torch
import zoo
from torch import nn

import holdfast
from holdfast import DecayFit, MemoryCurve, fit_decay, memory_function
from holdfast.decay._fit_decay import retrieval
from holdfast.decay._signal import find_noise
from holdfast.figures import Rule

T = np.arange(600.0)


def spikes(steps, sizes):
    values = np.zeros(steps)
    values[list(sizes)] = list(sizes.values())
    return values


def fit(values):
    return fit_decay(MemoryCurve(time=np.arange(len(values)), values=np.abs(values)))


@pytest.mark.parametrize(
    ("values", "returns"),
    [
        (spikes(256, {0: 1, 119: 1}), [(119, 1.0)]),
        (spikes(130, {0: 1, 119: 0.9}), [(119, 0.9)]),
        (spikes(300, {0: 2, 100: 0.6}), [(100, 0.3)]),
        (spikes(400, {5: 0.02, 124: 1}), [(119, 50.0)]),
        (spikes(300, {0: 1, 60: 0.9, 150: 0.4}), [(60, 0.9), (150, 0.4)]),
        (spikes(1000, {0: 1, 119: 1, 238: 1}), [(119, 1.0), (238, 1.0)]),
        (np.exp(-T / 5) + 0.8 * np.exp(-np.abs(T - 200) / 3), [(200, 0.8)]),
    ],
)
def test_delay_and_size_of_each_return_are_told(values, returns):
    found = fit(values)
    assert (found.law, found.status) == ("retrieval", "decided")
    # the sum of two bumps adds e^-40 at the peak
    assert [(r.delay, r.size) for r in found.returns] == [(d, pytest.approx(s, rel=1e-9)) for d, s in returns]
    largest = max(returns, key=lambda pair: pair[1])
    assert found.constant == ("delay", largest[0])
    assert f"returns after {largest[0]:g}" in found.summary()
    assert found.to_dict()["returns"][0]["delay"] == returns[0][0]


def test_a_return_is_found_in_noise_and_noise_alone_is_none():
    rng = np.random.default_rng(0)
    noise = 1e-3 * np.abs(rng.standard_normal(400))
    found = fit(spikes(400, {0: 1, 119: 0.5}) + noise)
    # four standard deviations of the noise on either peak
    assert found.returns[0].delay == 119
    assert found.returns[0].size == pytest.approx(0.5, abs=4e-3)
    assert fit(np.exp(-T[:400] / 20) + noise).law == "exponential"


RINGING = {
    "one mode": np.exp(-T / 100) * np.cos(0.1 * T),
    "slow mode": np.exp(-T / 1000) * np.cos(0.01 * T),
    "beats": np.exp(-T / 200) * (np.cos(0.3 * T) + np.cos(0.33 * T)),
    "harmonics in phase": np.exp(-T / 100) * sum(np.cos(2 * np.pi * k * T / 100) for k in range(16)),
    "echo with feedback": spikes(1000, {100 * k: 0.6**k for k in range(10)}),
    "echo with feedback, two returns": spikes(250, {100 * k: 0.6**k for k in range(3)}),
    "periodic": spikes(1000, {50 * k: 1 for k in range(20)}),
    "delay line": spikes(256, {119: 1}),
    "cascade beside a skip": np.exp(-T / 2) + (T / 70) ** 7 * np.exp(7 - T / 10),
    "change of sign": 2 * np.exp(-T / 20) - 0.2 * np.exp(-T / 300),
    "return of 2%": spikes(300, {0: 1, 100: 0.02}),
    "chaos": np.random.default_rng(3).standard_t(3, 2000),
}


@pytest.mark.parametrize("name", RINGING)
def test_what_rings_fluctuates_or_is_only_late_is_no_retrieval(name):
    found = fit(RINGING[name])
    assert found.law != "retrieval"
    assert found.returns == ()


def test_an_echo_with_feedback_is_the_exponential_that_it_is():
    found = fit(RINGING["echo with feedback"])
    assert found.law == "exponential"
    # peaks lie 100 steps apart, and blocks of one oscillation keep their distances: the rate is exact
    assert found.rate == pytest.approx(-np.log(0.6) / 100, rel=1e-6)


@pytest.mark.parametrize("kind", zoo.MAKERS)
def test_no_curve_of_the_zoo_is_taken_for_a_retrieval(kind):
    for seed in zoo.HELD_OUT[:150]:
        curve = zoo.animal(kind, seed).curve
        values = curve.values / curve.values.max()
        assert retrieval(curve.time, values, find_noise(values, None)) is None, seed


@pytest.mark.parametrize("layer", [holdfast.nn.S4D, holdfast.nn.LRU, holdfast.nn.DiagonalSSM])
def test_fresh_layers_retrieve_nothing(layer):
    for seed in range(4):
        torch.manual_seed(seed)
        curve = memory_function(layer(1, 32), input_size=1, horizon=600, probe="impulse")
        assert fit_decay(curve).law != "retrieval"


def test_a_shift_register_returns_after_its_length():
    W = torch.diag(torch.ones(39), -1)
    layer = holdfast.nn.LinearRNN(1, 40, parameterization="direct", W=W)
    with torch.no_grad():
        layer.U.zero_()[0] = 1.0
        layer.C.zero_()[0, [0, 39]] = torch.tensor([1.0, 0.5])
    found = fit_decay(memory_function(layer, input_size=1, horizon=200, probe="impulse"))
    assert [(r.delay, r.size) for r in found.returns] == [(39, 0.5)]


class Attention(nn.Module):
    """One head whose scores are a learned bias for each distance."""

    def __init__(self, reach=48):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(reach))
        self.skip = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        weights = torch.softmax(self.scores, 0)
        padded = nn.functional.pad(x.transpose(1, 2), (len(weights) - 1, 0))
        read = nn.functional.conv1d(padded, weights.flip(0)[None, None]).transpose(1, 2)
        return read + self.skip * x


@pytest.fixture(scope="module")
def copier():
    """Attention trained to add to each input the one of 30 steps before."""
    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
    for _ in range(120):
        x = torch.randn(16, 96, 1)
        loss = ((model(x) - x - 0.8 * nn.functional.pad(x, (0, 0, 30, 0))[:, :96])[:, 48:] ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_trained_attention_retrieves_and_every_screen_says_so(copier):
    found = fit_decay(memory_function(copier, input_size=1, horizon=128, probe="impulse"))
    assert [r.delay for r in found.returns] == [30]
    # the softmax sums to 1, the skip path learns to be near 1
    assert 0.6 < found.largest_return.size < 1.1
    report = holdfast.diagnose(copier, input_size=1, horizon=256)
    first = report.lines(width=200)[1]
    assert "retrieval, no decay: the effect of one input (impulse) returns after 30 steps" in first


def test_the_figure_marks_the_return():
    (panel,) = fit(spikes(256, {3: 1, 122: 1})).figure().panels
    rules = [layer.x for layer in panel.layers if isinstance(layer, Rule) and layer.x is not None]
    assert rules == [122]


def test_a_retrieval_that_ends_has_a_horizon_and_survives_a_file(tmp_path):
    found = fit(spikes(256, {0: 1, 119: 1}))
    assert found.horizon() == 120
    assert DecayFit.load(found.save(tmp_path / "fit.json")).returns == found.returns
