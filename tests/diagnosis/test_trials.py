"""Advice is tried before it is given, on the user's data, and the user's model stays as it is."""

import random

import models_at_hand
import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast.diagnosis import diagnose
from holdfast.diagnosis._advice import advise, why_not
from holdfast.diagnosis._candidates import Evidence
from holdfast.diagnosis._forgetting import measure_memory
from holdfast.diagnosis._learning import signs_of_training
from holdfast.diagnosis._reading import read_model, runnable
from holdfast.diagnosis._remedies import another_layer
from holdfast.diagnosis._samples import data_samples, stand_in_samples
from holdfast.diagnosis._trial import Trials, execute
from holdfast.diagnosis._weights import look_at_edge, look_at_survival
from holdfast.errors import ArgumentError


class Last(nn.Module):
    """One answer per sequence."""

    def __init__(self, outputs, tokens=0):
        super().__init__()
        self.table = nn.Embedding(tokens, 4) if tokens else nn.Identity()
        self.rnn, self.out = nn.LSTM(4 if tokens else 1, 8, batch_first=True), nn.Linear(8, outputs)

    def forward(self, x):
        return self.out(self.rnn(self.table(x))[0][:, -1])


class Each(Last):
    """One answer per step."""

    def forward(self, x):
        return self.out(self.rnn(self.table(x))[0])


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def integers(high, *shape):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(0))


FORMS = {
    "forecast": (lambda: Last(6), normal(20, 30, 1), normal(20, 6), "mean squared error"),
    "forecast as long as the input": (lambda: Last(30), normal(20, 30, 1), normal(20, 30), "mean squared error"),
    "one number": (lambda: Last(1), normal(20, 30, 1), normal(20), "mean squared error"),
    "labels of sequences": (lambda: Last(3), normal(20, 30, 1), integers(3, 20), "cross entropy"),
    "each step": (lambda: Each(2), normal(20, 30, 1), normal(20, 30, 2), "mean squared error"),
    "one number per step": (lambda: Each(1), normal(20, 30), normal(20, 30), "mean squared error"),
    "last of each step": (lambda: Each(2), normal(20, 30, 1), normal(20, 2), "mean squared error"),
    "one long series": (lambda: Each(1), normal(1, 700, 1), normal(1, 700, 1), "mean squared error"),
    "tokens, labels of steps": (lambda: Each(9, 9), integers(9, 20, 30), integers(9, 20, 30), "cross entropy"),
    "tokens, labels of sequences": (lambda: Last(3, 9), integers(9, 20, 30), integers(3, 20), "cross entropy"),
    "time first": (lambda: nn.GRU(1, 6), normal(20, 30, 1), normal(20, 30, 6), "mean squared error"),
}


@pytest.mark.parametrize("name", FORMS)
def test_data_of_every_form_are_trained_on_themselves(name):
    make, x, y, unit = FORMS[name]
    torch.manual_seed(0)
    model = make()
    samples = data_samples(model, read_model(model, None, 0), (x, y))
    assert (samples.unit, samples.words, samples.given) == (unit, "your data", True)
    trials = Trials(model, None, samples, 1e-2, None, None, 64, 0, steps=3)
    assert 0 < trials.unchanged.loss < 10
    assert samples.error(runnable(model)) == pytest.approx(
        samples.trivial_error(), rel=0.8
    )  # untrained, of the same order


def test_data_that_do_not_fit_are_named_and_the_stand_in_is_told():
    torch.manual_seed(0)
    model = Last(3)
    with pytest.raises(ArgumentError, match="outputs that fit the targets"):
        data_samples(model, read_model(model, None, 0), (normal(20, 30, 1), normal(20, 5)))
    report = diagnose(model, data=(normal(20, 30, 1), normal(20, 5)), horizon=64)
    assert any("training on your data" in line for line in report.unseen)
    assert "stand-in" in report.learning.task


def test_learning_rates_are_those_of_the_data_and_the_kernel_stands_beside_the_model():
    torch.manual_seed(0)
    model, x = Last(1), normal(60, 40, 1)
    report = diagnose(model, data=(x, 100 * x[:, -4]), horizon=64)
    assert report.learning.task == "your data"
    assert report.task.error < 1  # a delay is linear
    assert 2e3 < report.task.model_error < 5e4  # the variance of 15 targets, 1e4: untrained
    text = " ".join(str(report).split())
    assert "for the kernel: the kernel is better" in text
    assert "Measured on your data" in text
    assert all(one.trial is not None for one in report.advice)


def trials_of(model, needs=None):
    reading = read_model(model, None, 0)
    samples = stand_in_samples(reading, needs, 0)
    memory, _ = measure_memory(reading, 1024, 0)
    edge = look_at_edge(reading, 16, 0)
    evidence = Evidence(model, memory, edge, None, None, needs)
    return evidence, Trials(model, None, samples, 1e-2, memory[0].steps, edge.worst.margin, 1024, 0)


def test_the_printed_call_is_what_is_tried_and_a_harmful_one_is_dropped():
    model = models_at_hand.make("lstm")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    _, trials = trials_of(model)
    harm = trials.attempt(
        "for p in model.parameters():\n    p.data.zero_()\n    p.requires_grad_(False)\nmodel.bias_hh_l0.requires_grad_()"
    )
    assert "held-out loss" in why_not("memory", harm)
    same = trials.attempt("pass")
    assert same.changed == same.unchanged  # the same batches, the same steps
    assert "held-out loss" in why_not("loss", same)
    assert "memory" in why_not("memory", same)
    assert why_not("caution", same) is None
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())


@pytest.mark.parametrize(
    "make",
    [
        lambda: holdfast.nn.SequenceModel(1, 6, depth=1, layer="s4d", state_size=8, dt_min=0.1, dt_max=1.0),
        lambda: holdfast.nn.LRU(1, 8, r_min=0.3, r_max=0.7),
        lambda: holdfast.nn.LinearRNN(1, 8),
        lambda: holdfast.nn.LinearRNN(1, 8, time="discrete"),
        lambda: holdfast.nn.ContinuousGRU(1, 8),
    ],
    ids=["s4d", "lru", "linear", "linear discrete", "continuous gru"],
)
def test_an_advice_for_200_steps_ends_at_200_or_more(make):
    torch.manual_seed(0)
    evidence, trials = trials_of(make(), needs=200)
    assert evidence.memory[0].steps < 200
    trials.steps, trials.samples = 3, None  # memory alone
    helpful, dropped, _ = advise(evidence, trials)
    (one,) = [one for one in helpful if "forgets before" in one.trouble]
    assert one.trial.changed.memory >= 200, dropped


@pytest.mark.slow
def test_an_advice_that_does_not_reach_what_was_asked_for_says_so():
    evidence, trials = trials_of(models_at_hand.make("lstm"), needs=200)
    trials.samples = None
    helpful, _, _ = advise(evidence, trials)
    (one,) = [one for one in helpful if "fill_" in one.call]
    assert (one.trial.changed.memory < 200) == ("this does not reach 200 steps" in one.effect)


def test_another_layer_runs_in_the_place_of_torchs():
    for make in (models_at_hand.MODELS["headed"], lambda: nn.GRU(2, 5), lambda: nn.Sequential(nn.GRU(1, 4))):
        torch.manual_seed(0)
        model = make()
        call, effect = another_layer(model)
        assert "its weights are lost" in effect
        x = torch.zeros(3, 7, 3 if "headed" in call or hasattr(model, "head") else getattr(model, "input_size", 1))
        before, after = model(x), execute(call, model)["model"](x)
        before, after = (out[0] if isinstance(out, tuple) else out for out in (before, after))
        assert before.shape == after.shape
    assert another_layer(holdfast.nn.LRU(1, 4)) is None


def test_nothing_that_overwrites_the_weights_of_a_trained_model_is_proposed():
    torch.manual_seed(0)
    model, x = Last(1), normal(80, 20, 1)
    y = x[:, -1]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    report = diagnose(model, data=(x, y), needs=300, horizon=512)
    assert any("counts as trained" in note for note in report.notes)
    assert not any(word in one.call for one in report.advice for word in ("fill_", "orthogonal_", "copy_"))
    without = stand_in_samples(read_model(model, None, 0), None, 0)
    assert signs_of_training(model, without) is not None
    torch.manual_seed(1)
    assert signs_of_training(Last(1), without) is None


def test_the_worst_change_of_a_dense_recurrence_is_smaller_than_the_random_ones_that_it_survives():
    torch.manual_seed(0)
    model = nn.LSTM(1, 16, batch_first=True)
    survival = look_at_survival(read_model(model, None, 0), 32, 0)
    assert survival.worst.share < 0.5 * survival.random.share
    text = " ".join(str(holdfast.Diagnosis("m", "a model", survival=survival)).split())
    assert "at random, or by" in text and "in the worst direction found" in text


def test_a_model_behind_a_function_and_every_random_state_stay_as_they_are():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(1)
    net = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    holders = {"norm": [norm]}
    net.train()

    def run(x, layers=(net,)):
        holders["norm"][0](x.transpose(1, 2))
        return layers[0](x)

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    diagnose(run, input_size=1, horizon=32)
    assert norm.num_batches_tracked == 0
    assert net.training and norm.training
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert (states[2] == np.random.get_state()[1]).all()


class Counting(nn.Module):
    """Counts in a dict, a list and an array, and draws from every generator."""

    def __init__(self):
        super().__init__()
        self.seen, self.lengths, self.total = {"calls": 0, "inner": [0]}, [], np.zeros(1)

    def forward(self, x):
        self.seen["calls"] += 1
        self.seen["inner"][0] += 1
        self.lengths.append(x.shape[1])
        self.total += 1
        random.random()
        np.random.random()
        return x.cumsum(1) * 0.1


def test_lists_dicts_and_arrays_of_a_module_behind_a_function_are_put_back():
    model = Counting()
    states = random.getstate(), np.random.get_state()[1].copy()
    diagnose(lambda x: model(x), input_size=1, horizon=32)
    assert (model.seen, model.lengths, model.total.tolist()) == ({"calls": 0, "inner": [0]}, [], [0.0])
    assert states[0] == random.getstate()
    assert (states[1] == np.random.get_state()[1]).all()
    model(torch.zeros(1, 2, 1))
    holdfast.memory_function(model, input_size=1, horizon=8)
    assert (model.seen["calls"], len(model.lengths)) == (1, 1)


@pytest.mark.parametrize("error", [KeyError("no such key"), AttributeError("no such name"), ZeroDivisionError("by 0")])
def test_an_error_of_the_model_is_a_message_of_ours(error):
    class Failing(nn.Module):
        def forward(self, x):
            raise error

    report = diagnose(Failing(), input_size=1)
    assert type(error).__name__ in report.unseen[0]
