"""study_task: what memory data need, what they do not tell, and models started from it."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast import study_task
from holdfast.decay import TaskStart, UndecidedError
from holdfast.errors import ArgumentError, HoldfastError, ShapeError
from holdfast.nn import recurrences


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filtered(x, kernel):
    kernel = torch.as_tensor(kernel, dtype=x.dtype)
    padded = nn.functional.pad(x.mT, (len(kernel) - 1, 0))
    return nn.functional.conv1d(padded, kernel.flip(0).reshape(1, 1, -1)).mT


def exponential(rate=0.2, noise=0.01):
    x = normal(40, 120, 1)
    y = filtered(x, np.exp(-rate * np.arange(60.0)))
    return x, y + noise * normal(*y.shape, seed=1)


@pytest.fixture(scope="module")
def study():
    return study_task(*exponential())


def test_an_exponential_kernel_is_told_with_its_law_and_one_mode(study):
    assert study.status == "decided" and study.reason == ""
    # e^(-0.4 k) of the variance is behind lag k: 99% at k = log(100) / 0.4 = 11.5
    assert study.steps == pytest.approx(11.5, abs=1.5)
    assert study.steps_interval[0] <= study.steps <= study.steps_interval[1]
    assert study.fit.law == "exponential"
    assert study.fit.rate == pytest.approx(0.2, rel=0.05)
    assert study.modes.order == 1
    assert study.slowest == pytest.approx(0.2, rel=0.03)  # noise of 1% over 30 lags
    assert study.direct is True
    # eq. 76: |c| beta / ((r - beta) r) = eps L1, c = 1 and L1 = 1 / (1 - e^-r)
    beta = study.radius
    moved = beta / ((study.slowest - beta) * study.slowest)
    assert moved == pytest.approx(study.eps / (1 - np.exp(-0.2)), rel=0.05)
    truth = np.exp(-0.2 * study.curve.time)
    assert np.mean((study.low <= truth) & (truth <= study.high)) > 0.85  # 95% of 61, whose errors hang together
    assert "needs the last" in study.summary()
    json.dumps(study.to_dict(), allow_nan=False)


def test_a_power_law_needs_slow_modes_and_is_no_task_for_direct_weights(study):
    x = normal(30, 200, 1)
    y = filtered(x, (1 + np.arange(200.0)) ** -1.2)
    found = study_task(x, y + 1e-3 * normal(*y.shape, seed=1))
    assert found.status == "decided" and found.reached
    assert found.modes.order >= 2
    assert found.slowest < 0.06  # a decade and a half of lags is clear of the noise
    curve = holdfast.MemoryCurve(time=np.arange(2000.0), values=(1 + np.arange(2000.0)) ** -1.2)
    assert replace(found, fit=holdfast.fit_decay(curve)).direct is False


def test_a_delay_has_no_few_modes_and_starts_from_its_length():
    x = normal(20, 80, 1)
    study = study_task(x, x.roll(15, 1))
    assert (study.steps, study.steps_interval) == (15, (15, 15))
    assert not study.reached and study.slowest is None and study.radius is None
    assert study.time_constants.tolist() == [1.0, 15.0]


def test_targets_that_are_the_inputs_need_no_memory_and_are_named():
    x = normal(40, 60, 1)
    copied, noisy = study_task(x, x), study_task(x, x + 0.3 * normal(40, 60, 1, seed=1))
    assert copied.memoryless and "targets x[:, 1:]" in copied.summary()
    assert noisy.memoryless and "shift" not in noisy.summary()
    assert not study_task(x, x.roll(1, 1)).memoryless
    report = holdfast.diagnose(nn.LSTM(1, 1, batch_first=True), data=(x.float(), x.float()))
    assert "needs no memory: inputs of the same step explain 100%" in " ".join(str(report).split())


def test_one_answer_is_read_at_the_end_of_each_padded_row():
    x, lengths = normal(300, 30, 2), torch.randint(10, 31, (300,), generator=torch.Generator().manual_seed(2))
    rows = torch.arange(300)
    y = x[rows, lengths - 4, :1]
    for t in range(30):
        x[lengths <= t, t] = 1e3  # what lies behind the end is not read
    study = study_task(x, y, lengths=lengths)
    assert (study.steps, study.complete) == (3, True)
    assert study.explained > 0.99
    blind = study_task(x, y)
    assert blind.explained < 0.5


def test_steps_past_the_end_are_no_answers():
    x = normal(30, 40, 1)
    y = x.roll(2, 1)
    lengths = torch.full((30,), 25)
    y[:, 25:] = 1e6
    study = study_task(x, y, lengths=lengths)
    assert (study.steps, study.lags) == (2, 12)
    assert study.explained > 0.99


def test_tokens_and_labels_are_columns_of_their_own():
    tokens = torch.randint(0, 5, (60, 40), generator=torch.Generator().manual_seed(0))
    study = study_task(tokens, tokens.roll(3, 1))
    assert study.classes and study.unit == "share of wrong classes"
    assert (study.steps, study.error) == (3, 0.0)
    some = tokens.roll(3, 1).clone()
    some[:, ::2] = -100  # not asked for
    assert study_task(tokens, some).steps == 3
    last = study_task(tokens, tokens[:, -6])
    assert last.steps == 5
    many = torch.randint(0, 200, (60, 40), generator=torch.Generator().manual_seed(0))
    assert any("most frequent are distinguished" in note for note in study_task(many, many.roll(1, 1)).notes)


def test_one_long_row_is_judged_on_the_end_of_its_time():
    x = normal(1, 2000, 1)
    study = study_task(x, x.roll(7, 1) + 0.1 * normal(1, 2000, 1, seed=1))
    assert study.steps == 7
    assert 0.98 < study.explained < 1
    assert study.weights[7, 0, 0] == pytest.approx(1, abs=4 * study.errors[7, 0, 0])
    assert study.errors[7, 0, 0] == pytest.approx(0.1 / np.sqrt(study.answers), rel=0.5)  # of white noise, 48 blocks


UNDECIDED = {
    "next to nothing": lambda: (normal(30, 40, 2), normal(30, 40, 1, seed=1)),
    "too few answers": lambda: (normal(3, 8, 1), normal(3, 1)),
    "do not vary": lambda: (normal(30, 40, 1), torch.ones(30, 40, 1)),
    "the horizon is too short": lambda: (x := normal(40, 60, 1), filtered(x, [*[0.0] * 20, *[1.0] * 20])),
}


@pytest.mark.parametrize("reason", UNDECIDED)
def test_what_data_do_not_tell_is_said_and_nothing_is_recommended(reason):
    study = study_task(*UNDECIDED[reason]())
    assert study.status == "undecided"
    assert reason in study.reason
    assert study.modes is None and study.direct is None
    assert study.summary().startswith("undecided")
    model = nn.LSTM(1, 4)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UndecidedError, match="do not show what memory"):
        study.initialize(model)
    with pytest.raises(UndecidedError):
        study.layer(1, 4)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((normal(4), normal(4)), {}, ShapeError, "expected inputs"),
        ((normal(4, 5, 1), normal(3, 5, 1)), {}, ShapeError, "one target for each row"),
        ((normal(4, 5, 1), normal(4, 6, 1)), {}, ShapeError, "5 steps"),
        ((normal(4, 1, 1), normal(4, 1, 1)), {}, ArgumentError, "at least 2 steps"),
        ((normal(4, 5, 1) / 0, normal(4, 5, 1)), {}, ArgumentError, "finite"),
        ((normal(4, 5, 1), "y"), {}, ArgumentError, "a tensor or an array"),
        ((normal(4, 5, 1), normal(4, 5, 1)), {"lengths": [5, 5, 5, 6]}, ArgumentError, "from 1 to 5"),
        ((normal(4, 5, 1), normal(4, 5, 1)), {"lags": 0}, ArgumentError, "lags"),
        ((normal(4, 5, 1), normal(4, 5, 1)), {"eps": 1.5}, ArgumentError, "between 0 and 1"),
        ((normal(4, 5, 9), normal(4, 5, 1)), {"products": True}, ArgumentError, "at most 8"),
    ],
)
def test_bad_data_are_refused_in_words(arguments, options, error, words):
    with pytest.raises(error, match=words):
        study_task(*arguments, **options)


GATED = {
    "LSTM": lambda: nn.LSTM(2, 24),
    "two layers of LSTM": lambda: nn.LSTM(2, 24, num_layers=2),
    "LSTM both ways": lambda: nn.LSTM(2, 24, bidirectional=True),
    "projected LSTM": lambda: nn.LSTM(2, 24, proj_size=4),
    "LSTM cell": lambda: nn.LSTMCell(2, 24),
    "GRU": lambda: nn.GRU(2, 24),
    "two layers of GRU both ways": lambda: nn.GRU(2, 24, num_layers=2, bidirectional=True),
}


def sum_study(study, constants):
    """The same study with other modes."""
    rates = 1 / np.array(constants)
    return replace(study, modes=holdfast.ExponentialSum(rates, np.ones_like(rates)), eps=0.01)


@pytest.mark.parametrize("name", GATED)
def test_gates_follow_the_time_constants_of_the_task(name, study):
    torch.manual_seed(0)
    model = GATED[name]()
    before = copy.deepcopy(model.state_dict())
    start = sum_study(study, [2.0, 10.0, 80.0]).initialize(model)
    views = recurrences(model)
    assert list(start.changed) == [view.path for view in views]
    for view in views:
        old, new = start.changed[view.path]
        np.testing.assert_allclose(new, view.time_constants())
        wanted = np.concatenate([np.geomspace(2, 10, 13)[:-1], np.geomspace(10, 80, 12)])
        # float32: a sigmoid that keeps all but 1/80 has a relative rounding of 80 * 6e-8 in its time constant
        np.testing.assert_allclose(np.quantile(new, [0, 0.5, 1]), np.quantile(wanted, [0, 0.5, 1]), rtol=0.15)
        assert new.min() == pytest.approx(2, rel=1e-4) and new.max() == pytest.approx(80, rel=1e-4)
        assert old.max() < 5
        lam = view.eigenvalues().abs()
        measured = -1 / torch.log(lam[lam > 0])
        # the state moves its own gates where it rests: within a factor of 2 for the slowest of an untrained model
        assert 40 < float(measured.max()) < 160
    gates = {f"bias_hh{view.weights[0].name.removeprefix('weight_hh')}" for view in views}
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]) == (key not in gates), key
    start.undo()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_frozen_weights_stay_and_shared_ones_are_set_once(study):
    frozen = nn.LSTM(2, 8)
    frozen.bias_hh_l0.requires_grad_(False)
    before = frozen.bias_hh_l0.clone()
    assert study.initialize(frozen).changed
    assert torch.equal(before, frozen.bias_hh_l0)  # the other bias takes the change
    assert recurrences(frozen)[0].time_constants().max() == pytest.approx(study.time_constants.max(), rel=1e-4)
    frozen.requires_grad_(False)
    with pytest.raises(ArgumentError, match="frozen"):
        study.initialize(frozen)
    layer = holdfast.nn.LRU(2, 4)
    layer.w.requires_grad_(False)
    both = nn.ModuleList([layer, holdfast.nn.LRU(2, 4)])
    start = study.initialize(both)
    assert list(start.changed) == ["1"] and "0: its weights are frozen" in start.notes
    first, second = holdfast.nn.DiagonalSSM(2, 4), holdfast.nn.DiagonalSSM(2, 4)
    second.w = first.w
    shared = study.initialize(nn.ModuleList([first, second]))
    assert list(shared.changed) == ["0"]
    assert "1: it shares its weights with a recurrence before it" in shared.notes


@pytest.mark.parametrize("form", ["normal", "complete", "contraction"])
def test_undo_takes_back_what_a_dense_weight_became(form, study):
    torch.manual_seed(0)
    layer = holdfast.nn.LinearRNN(1, 6, parameterization="exp" if form == "normal" else form).double()
    before = layer.recurrence().detach().clone()
    start = study.initialize(layer)
    assert not torch.allclose(layer.recurrence(), before)
    start.undo()
    assert torch.equal(layer.recurrence(), before)


def test_a_model_without_modes_is_refused_and_left_as_it_is(study):
    for model in (nn.Linear(2, 2), nn.RNN(2, 4), nn.LSTM(2, 4, bias=False)):
        with pytest.raises(HoldfastError, match=r"a recurrence that holdfast recognizes|no start can be set"):
            study.initialize(model)


@pytest.mark.parametrize("kind", ["DiagonalSSM", "LRU", "S4D", "SelectiveSSM"])
def test_a_layer_is_built_with_the_modes(kind, study):
    layer = sum_study(study, [3.0, 50.0]).layer(3, 8, kind)
    constants = recurrences(layer)[0].time_constants()
    assert constants.min() == pytest.approx(3, rel=1e-4)
    assert constants.max() == pytest.approx(50, rel=1e-4)
    with pytest.raises(HoldfastError, match="DiagonalSSM"):
        study.layer(3, 8, "DiagonalSMS")


def test_a_start_says_what_it_did(study):
    start = study.initialize(nn.GRU(1, 8))
    assert isinstance(start, TaskStart)
    assert "weight_hh_l0" in repr(start) and "->" in repr(start)
