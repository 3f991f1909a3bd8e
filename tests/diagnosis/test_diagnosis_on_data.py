"""A diagnosis along the user's data: side by side with rest, whatever the data are, and trained models as such."""

import json
import math

import numpy as np
import pytest
import torch
from models_at_hand import make
from torch import nn

import holdfast
from holdfast.decay._result import Reach
from holdfast.diagnosis import _diagnose
from holdfast.diagnosis._forgetting import Forgetting
from holdfast.diagnosis._learning import look_at_learning, signs_of_training
from holdfast.diagnosis._on_data import checked_inputs, difference, measure_on_data
from holdfast.diagnosis._reading import read_model
from holdfast.diagnosis._samples import data_samples
from holdfast.diagnosis._weights import look_at_edge, look_at_survival
from holdfast.errors import ArgumentError
from holdfast.memory import DataMemory


def quiet(*_):
    """Shows nothing."""


def of_steps(steps, last=100):
    """A memory on data that is gone after so many steps, at every place."""
    sizes = np.where(np.arange(last + 1) < steps, 1.0, 1e-3)[None].repeat(4, 0)
    return DataMemory(np.arange(last + 1.0), sizes, np.zeros(4), np.zeros((4, 2), dtype=np.int64))


def at_rest(steps, last=256):
    """The memory of one input at rest; None where it is not stated at the end."""
    curve = holdfast.MemoryCurve(time=np.arange(last + 1.0), values=np.exp(-0.02 * np.arange(last + 1.0)))
    return Forgetting("impulse", "ahead", curve, holdfast.fit_decay(curve), Reach(steps, steps is not None), 1.0)


@pytest.mark.parametrize(
    ("rest", "steps", "said"),
    [
        (10.0, 29, None),
        (10.0, 31, "3.1 times as long as at rest"),
        (10.0, 500, "more than 10 times as long as at rest"),
        (94.0, 31, "3 times as long at rest"),
        (math.inf, 31, "forever at rest"),
        (math.inf, 500, None),
        (None, 32, "more than 8 times as long at rest"),
        (None, 90, None),
    ],
)
def test_a_factor_of_three_is_said_and_what_to_trust(rest, steps, said):
    text = difference([at_rest(rest)], of_steps(steps))
    assert (text is None) == (said is None)
    assert text is None or (said in text and "trust" in text)


DATA = {
    "gru": lambda: torch.randn(4, 80, 1),
    "time first": lambda: torch.randn(4, 80, 2),
    "both ways": lambda: torch.randn(4, 80, 1),
    "lru": lambda: torch.randn(4, 80, 1),
    "tokens": lambda: torch.randint(20, (4, 80)),
    "stateful": lambda: torch.randn(4, 80, 1),
    "headed": lambda: torch.randn(4, 80, 3),
}


@pytest.mark.parametrize("name", DATA)
def test_models_of_every_form_are_measured_on_data(name):
    model = make(name)
    x = checked_inputs(model, DATA[name]())
    found = measure_on_data(model, x, None, 0, quiet)
    assert len(found.shares)
    reading = read_model(model, None, 0)
    edge = look_at_edge(reading, 16, 0, data=reading.along(x, 2, 60))
    assert edge.fastest_growing is not None and edge.fastest_growing.along.exponent < 0
    survival = look_at_survival(reading, 16, 0, reading.along(x, 2, 20))
    assert survival.on_data and survival.bits is not None


@pytest.mark.slow
def test_rest_and_data_stand_side_by_side_and_a_part_that_fails_does_not_lose_the_rest(monkeypatch, tmp_path):
    def failing(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(_diagnose, "look_at_survival", failing)
    torch.manual_seed(0)
    report = holdfast.diagnose(nn.GRU(1, 4, batch_first=True), inputs=torch.randn(4, 60, 1), horizon=64)
    text = " ".join(str(report).split())
    assert "at rest: " in text and "on your data: " in text and "along your data: " in text
    assert report.survival is None and any("out of luck" in line for line in report.unseen)
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["memory_on_data"]["steps"] == report.on_data.steps
    again = holdfast.Diagnosis.load(report.save(tmp_path / "report.json"))
    assert again.on_data.steps == report.on_data.steps and str(again) == str(report)
    assert [layer.label for layer in report.figure().panels[0].layers].count("an exchanged input of the data") == 1


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.full((2, 9, 1), math.nan), "NaN"),
        (torch.zeros(2, 9, 1), "must not all be equal"),
        (torch.zeros(9), "expected numbers"),
    ],
)
def test_data_are_checked_before_anything_is_measured(x, said):
    with pytest.raises(ArgumentError, match=said):
        holdfast.diagnose(nn.GRU(1, 4, batch_first=True), inputs=x)


def test_a_model_that_meets_its_targets_is_said_to():
    torch.manual_seed(0)
    model, x = nn.GRU(1, 4, batch_first=True), torch.randn(16, 30, 1)
    with torch.no_grad():
        y = model(x)[0]
    reading = read_model(model, None, 0)
    learning = look_at_learning(reading, model, data_samples(model, reading, (x, y)))
    assert learning.met is not None and learning.safe is None
    report = holdfast.Diagnosis("m", "a GRU", learning=learning)
    assert "meets its targets already" in str(report)


def test_a_trained_model_is_known_by_entries_beyond_the_bounds_of_a_fresh_one():
    torch.manual_seed(0)
    model = nn.GRU(1, 16, batch_first=True)
    assert signs_of_training(model, None) is None
    with torch.no_grad():
        model.weight_hh_l0[0, 0] = 0.4  # untrained ones lie within 1 / sqrt(16)
    assert "an untrained one up to 0.25" in signs_of_training(model, None)


def test_of_a_trained_model_without_data_nothing_is_claimed_of_training_and_nothing_is_changed():
    torch.manual_seed(0)
    model = nn.GRU(1, 4, batch_first=True)
    with torch.no_grad():
        model.weight_hh_l0.mul_(1.8)
    report = holdfast.diagnose(model, horizon=64)
    assert report.trained and report.learning is None and report.advice == ()
    text = " ".join(str(report).split())
    assert "a stand-in task would not show its learning rate" in text
    assert "nothing was tried" in text
