"""How fast a memory can be learned: reach against its closed forms, and the rate that a memory takes."""

import math

import pytest
import torch
from torch import nn

import holdfast
from holdfast import parameterizations
from holdfast.errors import ArgumentError
from holdfast.nn import LRU, S4D, DiagonalSSM, LinearRNN
from holdfast.stability import reach, recurrent_rate
from holdfast.stability._reach import MAX_CHANGE, PROGRESS

STEPS, LR = 1000, 1e-3
MOVED = LR * STEPS / 2  # of a cosine schedule


def diagonal(name, rates=(0.1, 0.3)):
    eigenvalues = -torch.tensor(rates, dtype=torch.float64)
    return DiagonalSSM(1, len(rates), parameterization=name, time="continuous", eigenvalues=eigenvalues).double()


def test_exp_reaches_an_exponential_of_the_movement():
    (one,) = reach(diagonal("exp"), LR, STEPS)
    assert one.now == pytest.approx(10)
    # r0 = 0.1, tau = tau0 e^(eta S)
    assert one.reached == pytest.approx(one.now * math.exp(MOVED), rel=1e-9)
    assert one.provable == pytest.approx(one.now * math.exp(0.1 / math.sqrt(0.001) * MOVED), rel=1e-9)


def test_best_reaches_a_square_of_the_movement():
    layer = diagonal("best")
    f, w = layer.boundary_form, layer.w.detach()
    (one,) = reach(layer, LR, STEPS)
    moved = w + MOVED * torch.where(w >= 0, 1.0, -1.0)
    assert one.reached == pytest.approx(float((1 / f(moved).abs()).max()), rel=1e-9)


@pytest.mark.parametrize("name", ["exp", "softplus", "best", "inverse"])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_rate_at_progress_one_reaches_exactly_the_memory_asked_for(name, schedule):
    layer = diagonal(name)
    rate = recurrent_rate(layer, steps=STEPS, memory=50.0, schedule=schedule)
    assert rate.rate == pytest.approx(PROGRESS * rate.low)
    (one,) = reach(layer, rate.low, STEPS, schedule=schedule)
    assert one.reached == pytest.approx(50.0, rel=1e-6)


@pytest.mark.parametrize("name", ["exp", "best", "direct"])
def test_a_short_run_may_change_the_time_constant_by_the_cap_in_a_step_and_no_more(name):
    layer = diagonal(name)
    rate = recurrent_rate(layer, steps=10, memory=50.0)
    (one,) = reach(layer, rate.low, 10)
    # the way to the memory is rate.low S with S = 5, and ln(memory / tau) of it are walked at the cap
    assert rate.rate == pytest.approx(MAX_CHANGE * 5 * rate.low / math.log(50.0 / one.now), rel=1e-6)
    assert "at most" in rate.reason


def test_a_direct_weight_crosses_the_boundary():
    (one,) = reach(diagonal("direct"), LR, STEPS)
    assert one.reached == math.inf


def test_the_gate_of_an_lstm_moves_by_both_of_its_biases():
    torch.manual_seed(0)
    lstm = nn.LSTM(1, 4, batch_first=True).double()
    with torch.no_grad():
        for name, weight in lstm.named_parameters():
            weight.zero_() if "bias" not in name else weight.fill_(0.0)
    (one,) = reach(lstm, LR, STEPS)
    # without other weights c decays by f = sigmoid(b_ih + b_hh), each of which moves by eta S
    f = 1 / (1 + math.exp(-2 * MOVED))
    assert one.now == pytest.approx(-1 / math.log(0.5))
    assert one.reached == pytest.approx(-1 / math.log(f), rel=1e-6)


def test_a_longer_memory_than_asked_for_gives_a_floor_and_never_a_frozen_weight():
    rate = recurrent_rate(diagonal("exp"), steps=STEPS, memory=5.0)
    # d log tau / d w = 1 for exp, so that a tenth over the run is 0.1 / S
    assert rate.rate == pytest.approx(0.1 / (STEPS / 2), rel=1e-2)
    assert rate.low == 0.0
    assert "no less than" in rate.reason


@pytest.mark.parametrize(
    "make",
    [
        lambda: LRU(2, 8),
        lambda: S4D(2, 8),
        lambda: LinearRNN(2, 4, structure="dense"),
        lambda: LinearRNN(2, 4, structure="dense", parameterization="complete"),
        lambda: nn.GRU(2, 4, num_layers=2, batch_first=True),
        lambda: holdfast.nn.SelectiveSSM(2, 4),
        lambda: holdfast.nn.SequenceModel(2, 4, depth=2, state_size=4),
    ],
    ids=["lru", "s4d", "dense", "complete", "gru", "selective", "stack"],
)
def test_more_steps_reach_no_shorter_memory_and_the_model_stays_as_it_is(make):
    torch.manual_seed(0)
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    short, long = (reach(model, 1e-3, steps) for steps in (10, 400))
    assert len(short) == len(holdfast.recurrences(model))
    for a, b in zip(short, long, strict=True):
        assert a.now <= a.reached * (1 + 1e-6) <= b.reached * (1 + 1e-6)
        assert b.reached <= b.provable * (1 + 1e-6)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_plain_gradient_descent_moves_by_the_gradient():
    adam = recurrent_rate(diagonal("exp"), steps=STEPS, memory=50.0)
    sgd = recurrent_rate(diagonal("exp"), steps=STEPS, memory=50.0, optimizer="sgd", gradient=0.01)
    assert sgd.rate == pytest.approx(100 * adam.rate)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: recurrent_rate(diagonal("exp"), steps=0, memory=10.0), "steps"),
        (lambda: recurrent_rate(diagonal("exp"), steps=10, memory=0.5), "memory: expected at least 1 step"),
        (lambda: recurrent_rate(nn.Linear(1, 1), steps=10, memory=5.0), "no recurrence that is known"),
        (lambda: recurrent_rate(diagonal("exp"), steps=10, memory=50.0, optimizer="sgd"), "gradient="),
        (lambda: reach(diagonal("exp"), 0.1, 10, schedule=[1.0]), "expected 10 shares"),
        (
            lambda: recurrent_rate(
                DiagonalSSM(1, 2, parameterization=parameterizations.get("clip", edge=0.05), time="continuous"),
                steps=10, memory=1e6,
            ),
            "cannot remember",
        ),
    ],
)  # fmt: skip
def test_mistakes_say_what_can_be_done(call, text):
    with pytest.raises(ArgumentError, match=text):
        call()
