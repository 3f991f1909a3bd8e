"""The learning-rate range test, and what else is measured before a run."""

import numpy as np
import pytest
import torch
from small_training import new_model, new_task
from torch import nn

from holdfast.errors import ArgumentError
from holdfast.nn import DiagonalSSM
from holdfast.training import TrainingConfig, range_test
from holdfast.training._estimate import estimate
from holdfast.training._range_test import DirectShadow


@pytest.fixture(scope="module")
def tested():
    model = new_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = range_test(model, new_task(), low=1e-4, high=10.0, steps=40, batch=16)
    return model, before, found


def test_each_ramp_raises_one_rate_and_leaves_the_model_as_it_was(tested):
    model, before, found = tested
    assert set(found.curves) == {"recurrent", "other"}
    for curve in found.curves.values():
        assert np.allclose(np.diff(np.log(curve.rates)), np.log(1e5) / 39)
        assert np.isfinite(curve.loss).all()
        assert (curve.ratio > 0).all()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def test_the_suggestion_lies_below_the_rate_that_breaks_training(tested):
    _, _, found = tested
    other = found.curves["other"]
    assert other.suggestion == pytest.approx(other.rates[np.argmin(other.smoothed)] / 10)
    assert found.suggestion["lr"] < (other.ended or 10.0)
    assert any("direct eigenvalues would leave" in line for line in found.lines())
    assert found.plot().get_xlabel() == "learning rate"
    assert found.to_dict()["suggestion"] == found.suggestion


def test_direct_weights_leave_when_adam_has_moved_them_by_their_margin():
    torch.manual_seed(0)
    model = DiagonalSSM(1, 1, eigenvalues=torch.tensor([-0.5]), parameterization="exp").double()
    shadow = DirectShadow(model)
    for step in range(20):
        # a constant gradient that pulls lam up: Adam then moves it by the rate at each step
        model.w.grad = -model.parameterization.derivative(model.w.detach())
        shadow.step(0.11, step)
    assert shadow.left == 4  # -0.5 + 5 x 0.11 > 0 after the fifth step


def test_a_model_without_recurrent_weights_has_one_ramp():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    found = range_test(model, new_task(), steps=5, batch=8)
    assert set(found.curves) == {"other"}
    assert found.direct_step is None
    with pytest.raises(ArgumentError, match="low < high"):
        range_test(model, new_task(), low=1.0, high=0.1)


def test_an_estimate_counts_parameters_and_the_memory_of_a_step():
    model, task = new_model(dropout=0.0), new_task()
    found = estimate(model, task, TrainingConfig(batch=16, epochs=2))
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.weights == 16 * found.parameters  # float32: the weight, its gradient and two averages
    assert (found.steps, found.tokens) == (6, 192)
    # at least the input of each of the five parts between encoder and decoder, (16, 12, 8) in float32
    assert found.activations > 5 * 16 * 12 * 8 * 4
    double = estimate(model, task, TrainingConfig(batch=32, epochs=2))
    assert 1.8 < double.activations / found.activations <= 2
