import math

import numpy as np
import pytest
import torch
from models import Clock, Integrator, random_linear
from torch import nn

from holdfast import nn as holdfast_nn
from holdfast.errors import ArgumentError
from holdfast.memory import ModelError, check_properties
from holdfast.memory._properties import PROPERTY_NAMES


def fir(x):
    return x + 0.5 * nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]


def growing_gain(x):
    return x * torch.arange(1, x.shape[1] + 1).view(1, -1, 1)


def slow(x):
    """The kernel (1 + k)^-0.7: its sum grows like k^0.3, its end is not seen in 200 steps."""
    kernel = (1 + torch.arange(x.shape[1], dtype=x.dtype)) ** -0.7
    return torch.stack([(x[:, : t + 1, 0] * kernel[: t + 1].flip(0)).sum(1) for t in range(x.shape[1])], 1).unsqueeze(
        -1
    )


# linear, continuous, bounded, time-homogeneous, causal, regular
CASES = {
    "linear recurrence": (lambda: random_linear(1), "yes yes yes yes yes yes"),
    "gru": (lambda: nn.GRU(1, 4, batch_first=True), "no yes yes yes yes yes"),
    "bidirectional": (lambda: nn.LSTM(1, 4, batch_first=True, bidirectional=True), "no yes yes yes no yes"),
    "integrator": (Integrator, "yes yes no yes yes no"),
    "finite filter": (lambda: fir, "yes yes yes yes yes yes"),
    "square": (lambda: torch.square, "no yes no yes yes yes"),
    "sign": (lambda: torch.sign, "no no no yes yes no"),
    "floor": (lambda: torch.floor, "no no no yes yes no"),
    "square root": (lambda: lambda x: x.abs().sqrt(), "no yes no yes yes yes"),
    "growing gain": (lambda: growing_gain, "yes yes no no yes yes"),
    "clock": (Clock, "yes yes yes yes yes yes"),
    "slow layer": (lambda: holdfast_nn.S4D(1, 64, dt_min=0.01, dt_max=0.01), "yes yes undecided yes yes undecided"),
    "unstable": (lambda: random_linear(1, slowest=1.3), "yes yes no yes yes no"),
    "slow kernel": (lambda: slow, "yes yes undecided yes yes undecided"),
}


@pytest.mark.parametrize("name", CASES)
def test_properties_of_known_functionals(name):
    torch.manual_seed(0)
    make, expected = CASES[name]
    found = check_properties(make(), horizon=200 if name == "slow kernel" else 60)
    assert {p: getattr(found, p).answer for p in PROPERTY_NAMES} == dict(
        zip(PROPERTY_NAMES, expected.split(), strict=True)
    )


def test_counterexamples_refute_what_they_are_for():
    found = check_properties(torch.sign, horizon=50)
    x, other = (torch.from_numpy(found.continuous.counterexample[key]) for key in ("x", "other"))
    assert float((x - other).abs().max()) < 0.01
    assert float((torch.sign(x) - torch.sign(other)).abs().max()) >= 1
    assert not found.linear
    weights = found.linear.counterexample["weights"]
    a, b = (torch.from_numpy(found.linear.counterexample[key]) for key in ("x", "other"))
    together = torch.sign(weights[0] * a + weights[1] * b)
    assert float((together - weights[0] * torch.sign(a) - weights[1] * torch.sign(b)).abs().max()) > 0.1
    reversed_model = nn.LSTM(1, 4, batch_first=True, bidirectional=True)
    found = check_properties(reversed_model, horizon=40).causal
    example, step = found.counterexample, int(found.numbers["step"])
    np.testing.assert_array_equal(example["x"][:step], example["other"][:step])
    assert (example["x"][step:] != example["other"][step:]).all()


def test_properties_leave_the_model_alone_and_print():
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5))
    found = check_properties(model, 2, 40)
    assert model.training
    assert model[1].training
    assert found.to_dict()["causal"]["answer"] == "yes"
    assert not found.linear.counterexample  # a bias is subtracted with H(0)


def test_what_cannot_be_checked_is_an_error():
    with pytest.raises(ModelError, match="NaN"):
        check_properties(lambda x: x * math.nan, horizon=20)
    with pytest.raises(ModelError, match="dropout"):
        check_properties(lambda x: nn.functional.dropout(x, 0.5, training=True), horizon=20)
    with pytest.raises(ArgumentError, match="16"):
        check_properties(torch.sign, horizon=3)
