"""GradientMonitor: autograd's own numbers, margins of certify, warnings before divergence, adapters."""

import copy
import math
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.errors import ArgumentError, UnknownNameError
from holdfast.nn import LRU, S4D, ContinuousGRU, ContinuousRNN, DiagonalSSM, LinearRNN, SelectiveSSM, SequenceModel
from holdfast.stability import DivergenceGuard, DivergenceWarning, GradientMonitor, certify
from holdfast.stability.monitor.monitor import WEIGHTS_EVERY

ROUNDING = 1e-6  # the monitor reads in float32


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def loss_of(model, features=2):
    y = model(torch.randn(3, 10, features))
    y = y[0] if isinstance(y, tuple) else y
    return y.square().mean()


LAYERS = {
    "diagonal": lambda: DiagonalSSM(2, 6),
    "lru": lambda: LRU(2, 6),
    "s4d": lambda: S4D(2, 6),
    "selective": lambda: SelectiveSSM(2, 16),
    "linear": lambda: LinearRNN(2, 6),
    "linear direct": lambda: LinearRNN(2, 6, parameterization="direct"),
    "rnn": lambda: ContinuousRNN(2, 6),
    "gru": lambda: ContinuousGRU(2, 6),
    "torch rnn": lambda: nn.RNN(2, 6, batch_first=True),
    "torch lstm": lambda: nn.LSTM(2, 6, num_layers=2, batch_first=True),
    "torch gru": lambda: nn.GRU(2, 6, bidirectional=True, batch_first=True),
    "stack": lambda: SequenceModel(2, 4, depth=2, layer="lru", state_size=4),
}


@pytest.mark.parametrize("name", LAYERS)
def test_numbers_are_those_of_autograd(name):
    model = LAYERS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    expected = []
    with GradientMonitor(model, quantiles=(0.0, 0.5, 1.0)) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            expected.append([by_hand(watched) for watched in monitor.watched])
            optimizer.step()
    found = monitor.history
    assert found.steps.tolist() == [0, 1, 2]
    table = np.array(expected)
    np.testing.assert_allclose(found.minimum, table[..., 0], rtol=ROUNDING)
    np.testing.assert_allclose(found.maximum, table[..., 1], rtol=ROUNDING)
    np.testing.assert_allclose(found.norm_ratio, table[..., 2], rtol=ROUNDING)
    np.testing.assert_allclose(found.quantiles[..., 0], table[..., 0], rtol=ROUNDING)
    np.testing.assert_allclose(found.quantiles[..., 2], table[..., 1], rtol=ROUNDING)
    assert ((found.minimum <= found.quantiles[..., 1]) & (found.quantiles[..., 1] <= found.maximum)).all()


def by_hand(watched):
    w = torch.cat([p.detach().flatten().double() for p in watched.parameters])
    g = torch.cat([p.grad.flatten().double() for p in watched.parameters])
    ratio = torch.where(g == 0, 0.0, (g / w).abs())
    return [float(ratio.min()), float(ratio.max()), float(g.norm() / w.norm())]


def test_quantiles_of_many_entries_are_close_to_the_exact_ones():
    model = nn.RNN(2, 200, batch_first=True)  # 40,000 entries, of which 4,000 are looked at
    loss_of(model).backward()
    monitor = GradientMonitor(model, share=0.0)
    monitor.record()
    p = model.weight_hh_l0
    ratio = (p.grad / p.detach()).abs()
    exact = np.quantile(ratio.numpy(), monitor.levels)
    # the rank of the 5% quantile of n samples has a standard error of sqrt(0.05 0.95 / n), 7% of 0.05
    np.testing.assert_allclose(monitor.history.quantiles[0, 0], exact, rtol=0.2)
    assert monitor.history.maximum[0, 0] == pytest.approx(float(ratio.max()), rel=ROUNDING)


@pytest.mark.parametrize(
    "name",
    ["diagonal", "lru", "s4d", "selective", "linear", "linear direct", "rnn", "torch rnn", "torch lstm", "torch gru"],
)
def test_margins_are_those_of_certify(name):
    model = LAYERS[name]()
    loss_of(model).backward()
    monitor = GradientMonitor(model)
    monitor.record()
    found = certify(model)
    assert np.nanmin(monitor.history.margin[0]) == pytest.approx(found.margin, rel=1e-4, abs=1e-6)
    rates = monitor.history.continuous_margin[0]
    if found.continuous_margin is None:
        assert np.isnan(rates).all()
    else:
        assert np.nanmin(rates) == pytest.approx(found.continuous_margin, rel=1e-4)


def test_a_saturated_network_is_judged_where_it_rests_and_not_by_its_matrix():
    model = nn.RNN(1, 4, batch_first=True)
    with torch.no_grad():
        model.weight_hh_l0.copy_(6 * torch.eye(4))
        model.bias_hh_l0.fill_(3.0)
    loss_of(model, 1).backward()
    monitor = GradientMonitor(model)
    monitor.record()  # a warning would be an error
    # h = tanh(6 h + 3 + b) is nearly 1, where the slope 6 (1 - h^2) is nearly 0
    assert monitor.history.margin[0, 0] > 0.99


def test_margin_of_an_euler_step_is_that_of_the_step():
    W = torch.tensor([[-1.0, 3.0], [-3.0, -1.0]])
    model = ContinuousRNN(1, 2, W=W, parameterization="direct", dt=0.19)  # unstable from 0.2 on
    loss_of(model, 1).backward()
    monitor = GradientMonitor(model)
    monitor.record()
    assert monitor.history.margin[0, 0] == pytest.approx(1 - abs(1 + 0.19 * (-1 + 3j)), rel=1e-3)


def test_only_every_nth_step_is_kept_and_other_optimizers_are_left_alone():
    model, other = DiagonalSSM(1, 4), nn.Linear(2, 2)
    ours, theirs = torch.optim.SGD(model.parameters(), lr=0.01), torch.optim.SGD(other.parameters(), lr=0.01)
    with GradientMonitor(model, every=3) as monitor:
        for _ in range(7):
            for optimizer in (ours, theirs):
                optimizer.zero_grad()
            loss_of(model, 1).backward()
            other(torch.ones(2)).sum().backward()
            ours.step()
            theirs.step()
    assert monitor.history.steps.tolist() == [0, 3, 6]
    ours.step()
    assert len(monitor.history.steps) == 3  # closed


def test_training_is_not_changed_by_watching():
    def train(watch):
        torch.manual_seed(1)
        model = DiagonalSSM(1, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        monitor = GradientMonitor(model)
        if watch:
            monitor.__enter__()
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(model, 1).backward()
            optimizer.step()
        monitor.close()
        return model.w.detach()

    assert torch.equal(train(True), train(False))


def drive(model, weight, path, monitor):
    """Sets the weight along `path` as training would, with a gradient of 1."""
    for value in path:
        with torch.no_grad():
            weight.fill_(value)
        weight.grad = torch.ones_like(weight)
        for p in model.parameters():
            p.grad = torch.ones_like(p) if p.grad is None else p.grad
        monitor.record()


def test_a_recurrence_on_its_way_out_is_warned_about_before_it_is_out():
    model = DiagonalSSM(1, 1, parameterization="direct", time="discrete")
    monitor = GradientMonitor(model, lookahead=20)
    path = np.arange(0.5, 0.995, 0.01)
    with pytest.warns(DivergenceWarning, match=r"will leave the stable region in \d+ records") as caught:
        drive(model, model.w, path, monitor)
    assert len(caught) == 1
    step = int(str(caught[0].message).split("step ")[1].split(":")[0])
    left = (1 - path[step]) / 0.01
    assert 15 <= left <= 20  # reported 20 steps ahead, at a constant pace
    with pytest.warns(DivergenceWarning, match="on or beyond the stability boundary"):
        drive(model, model.w, [1.01], monitor)


def test_a_stable_parameterization_is_not_accused():
    model = DiagonalSSM(1, 1, parameterization="exp", time="continuous")
    monitor = GradientMonitor(model, lookahead=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drive(model, model.w, np.linspace(0, -10, 40), monitor)
    assert np.all(np.diff(monitor.history.margin[:, 0]) < 0)


def test_gradients_that_break_or_jump_are_warned_about_once():
    model = DiagonalSSM(1, 2)
    monitor = GradientMonitor(model)
    for _ in range(30):
        for p in model.parameters():
            p.grad = torch.full_like(p, 1e-3)
        monitor.record()
    model.w.grad = torch.full_like(model.w, 1e2)
    usual = 1e-3 * sum(p.numel() for p in model.parameters()) ** 0.5
    ratio = 1e2 * model.w.numel() ** 0.5 / usual
    with pytest.warns(DivergenceWarning, match=f"{ratio:.1e}"[:2] + ".* times its recent median") as caught:
        monitor.record()
    monitor.record()  # reported once; a second warning would be an error
    assert len(caught) == 1
    model.w.grad = torch.full_like(model.w, math.nan)
    with pytest.warns(DivergenceWarning, match="not finite"):
        monitor.record()
    assert math.isnan(monitor.history.norm_ratio[-1, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1e25, 1e-30])
def test_the_norms_of_huge_and_tiny_gradients_are_right(dtype, size):
    model = nn.RNN(1, 4).to(dtype)
    monitor = GradientMonitor(model)
    for p in model.parameters():
        p.grad = torch.full_like(p, size)
    monitor.record()  # a warning would be an error
    weight = model.weight_hh_l0.detach().double()
    # bfloat16 keeps 3 digits
    assert monitor.history.norm_ratio[0, 0] == pytest.approx(4 * size / float(weight.norm()), rel=1e-2)


def test_float64_gradients_beyond_float32_are_finite():
    model = nn.RNN(1, 4).double()
    monitor = GradientMonitor(model)
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e60)
    monitor.record()
    assert math.isfinite(monitor.history.norm_ratio[0, 0])


def test_complex_weights_are_measured_by_their_modulus():
    class Unit(nn.Module):
        def __init__(self):
            super().__init__()
            self.lam = nn.Parameter(torch.tensor([3 + 4j, 1j]))
            self.real = nn.Parameter(torch.ones(2))

    model = Unit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with GradientMonitor(model, names=["lam", "real"]) as monitor:
        (model.lam.abs().square().sum() + model.real.sum()).backward()
        optimizer.step()
    assert monitor.history.maximum[0, 0] == pytest.approx(2)
    assert monitor.history.norm_ratio[0].tolist() == pytest.approx([2, 1])


def test_a_weight_at_rest_with_no_gradient_counts_as_zero_and_one_without_as_nothing():
    model = DiagonalSSM(1, 2)
    with torch.no_grad():
        model.w.copy_(torch.tensor([0.0, 2.0]))
    monitor = GradientMonitor(model)
    monitor.record()
    assert math.isnan(monitor.history.maximum[0, 0])
    model.w.grad = torch.tensor([0.0, 1.0])
    monitor.record()
    assert monitor.history.minimum[1, 0] == 0
    assert monitor.history.maximum[1, 0] == 0.5


def test_writer_gets_scalars():
    written = {}
    writer = types.SimpleNamespace(
        add_scalar=lambda tag, value, step: written.setdefault(tag, []).append((step, value))
    )
    model = DiagonalSSM(1, 4)
    loss_of(model, 1).backward()
    monitor = GradientMonitor(model, writer=writer)
    monitor.record(step=7)
    assert written["gradient_over_weight/w/maximum"] == [(7, monitor.history.maximum[0, 0])]
    assert {tag.rsplit("/", 1)[1] for tag in written} == {
        "minimum", "maximum", "norm_ratio", "margin", "continuous_margin", "quantile_0.05", "quantile_0.5", "quantile_0.95",
    }  # fmt: skip


def test_named_weights_are_watched_too():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    monitor = GradientMonitor(model, names=["1.weight"])
    model(torch.ones(2)).sum().backward()
    monitor.record()
    assert monitor.history.paths == ("1.weight",)
    assert math.isnan(monitor.history.margin[0, 0])


@pytest.mark.parametrize(
    ("model", "how", "error", "text"),
    [
        (nn.Linear(2, 2), {}, ArgumentError, "pass their names"),
        (nn.Linear(2, 2), {"names": ["wieght"]}, UnknownNameError, "Did you mean 'weight'"),
        (nn.RNN(2, 2), {"every": 0}, ArgumentError, "every >= 1"),
        (None, {}, ArgumentError, "model must be an nn.Module, got NoneType"),
        (nn.RNN(2, 2), {"every": 1.5}, ArgumentError, "every must be a whole number"),
        (nn.RNN(2, 2), {"quantiles": (2.0,)}, ArgumentError, r"\[0, 1\]"),
    ],
    ids=str,
)
def test_mistakes_are_named(model, how, error, text):
    with pytest.raises(error, match=text):
        GradientMonitor(model, **how)
    monitor = GradientMonitor(nn.RNN(2, 2))
    with monitor, pytest.raises(ArgumentError, match="already attached"):
        monitor.__enter__()


def test_a_nan_in_any_weight_or_gradient_is_named():
    model = nn.Sequential(nn.Linear(2, 2), DiagonalSSM(2, 2))
    monitor = GradientMonitor(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model[0].weight.grad[0, 0] = math.nan
    with torch.no_grad():
        model[0].bias[0] = math.nan
    with pytest.warns(DivergenceWarning) as caught:
        monitor.record()
    assert {(a.subject, a.cause) for a in monitor.alarms} >= {("0.weight", "not finite"), ("0.bias", "not finite")}
    assert any("0.weight, step 0: its gradient is not finite" in str(w.message) for w in caught)


def test_a_nan_in_a_weight_that_no_loss_reads_is_named_within_ten_steps():
    model = nn.Sequential(nn.Linear(2, 2), DiagonalSSM(2, 2))
    monitor = GradientMonitor(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    monitor.record()
    with torch.no_grad():
        model[0].bias[0] = math.nan
    for _ in range(WEIGHTS_EVERY - 1):
        monitor.record()  # a warning would be an error
    with pytest.warns(DivergenceWarning, match="0.bias, step 10: it is not finite"):
        monitor.record()


def test_step_sizes_and_states_of_a_selective_model_are_seen_and_copies_are_deaf():
    model = SelectiveSSM(2, 16)
    with GradientMonitor(model) as monitor:
        copied = copy.deepcopy(model)
        loss_of(copied).backward()
        assert math.isnan(monitor._activations.read()[0])
        monitor._activations._calls = 0
        loss = loss_of(model)
        loss.backward()
        monitor.record(loss=loss)
    assert monitor.history.step_size[0] > 0 and monitor.history.largest_state[0] > 0
    assert monitor.history.loss[0] == pytest.approx(float(loss.detach()))
    assert not model._forward_hooks


@pytest.mark.parametrize("action", ["warn", "stop", "rollback"])
def test_a_guard_takes_the_step_stops_or_goes_back(action):
    model = DiagonalSSM(1, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guard = DivergenceGuard(model, optimizer, on_divergence=action, snapshot_every=10)
    for step in range(25):
        if step == 20:
            kept = model.w.detach().clone()
        optimizer.zero_grad()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        assert guard.check(1.0)
        optimizer.step()
    with pytest.warns(DivergenceWarning, match="the loss is 3 times"):
        assert guard.check(3.0) == (action == "warn")
    assert bool(guard.stopped) == (action == "stop")
    assert torch.equal(model.w.detach(), kept) == (action == "rollback")
    assert optimizer.param_groups[0]["lr"] == (0.005 if action == "rollback" else 0.01)
    assert guard.rollbacks == ([(25, 20)] if action == "rollback" else [])


class Detached(nn.Module):
    """A readout that learns behind a recurrence that does not, unless it is `alive`."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out, self.alive = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 1), False

    def forward(self, x):
        h = self.rnn(x)[0]
        return self.out(h if self.alive else 0 * h + h.detach())


def trained(model, steps=8, scale=1.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with GradientMonitor(model) as monitor, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(steps):
            optimizer.zero_grad()
            (scale * loss_of(model)).backward()
            optimizer.step()
    return [alarm for alarm in monitor.alarms if alarm.cause == "dead"], [str(one.message) for one in told]


def test_recurrent_weights_without_a_gradient_raise_one_alarm_that_says_what_to_do():
    alarms, told = trained(Detached())
    assert [alarm.step for alarm in alarms] == [4]
    assert not alarms[0].acute
    assert any("the recurrence does not learn" in text and "detach()" in text for text in told)


@pytest.mark.parametrize("case", ["frozen", "alive"])
def test_frozen_weights_and_those_that_learn_raise_no_alarm_of_a_dead_recurrence(case):
    model = Detached()
    model.alive = case == "alive"
    if case == "frozen":
        model.rnn.requires_grad_(False)
    assert trained(model) == ([], [])


def test_a_loss_without_any_gradient_is_no_dead_recurrence():
    alarms, _ = trained(Detached(), scale=0.0)
    assert alarms == []
