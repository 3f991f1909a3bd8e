"""The rate of a stack is the smallest of its layers' and the input's (ssm, Prop. 3.11 to Thm 3.13, corrected)."""

import math

import numpy as np
import pytest
import torch

from holdfast import nn
from holdfast.decay import stack_rate
from holdfast.errors import ArgumentError
from holdfast.nn._from_weights import diagonal_layer
from holdfast_papers.constructions import Chain


def layer(*rates):
    return diagonal_layer(np.exp(-np.array(rates)), np.ones((len(rates), 1)), np.ones((1, len(rates))))


@pytest.mark.parametrize("c0", [0.05, 0.5])
def test_an_output_settles_at_the_smaller_of_the_inputs_rate_and_the_layers_own(c0):
    model = layer(0.1, 1.0)
    t = torch.arange(400, dtype=torch.float64)
    with torch.no_grad():
        y = model((1 + torch.exp(-c0 * t)).reshape(1, -1, 1))[0][0, :, 0]
    limit = 1 / (1 - math.exp(-0.1)) + 1 / (1 - math.exp(-1.0))
    distance = (y - limit).abs()
    # both other modes are below 1e-3 of the leading one after 150 steps
    assert math.log(distance[150] / distance[200]) / 50 == pytest.approx(min(c0, 0.1), rel=1e-3)
    assert stack_rate(model, input_rate=c0) == pytest.approx(min(c0, 0.1))


def test_a_stack_has_the_smallest_rate_of_its_layers():
    assert stack_rate(Chain(layer(0.3, 2.0), layer(0.1), layer(0.7))) == pytest.approx(0.1)
    assert stack_rate(nn.SequenceModel(1, 4, depth=2, state_size=4)) > 0


def test_an_eigenvalue_of_modulus_one_never_forgets():
    """Thm 3.13 asks for eigenvalues "bounded by I"; one that is 1 has rate 0, whatever the others are."""
    model = Chain(layer(0.3), diagonal_layer([1.0], [[1.0]], [[1.0]]))
    assert stack_rate(model) == 0.0
    x = torch.zeros(1, 200, 1, dtype=torch.float64)
    x[0, 0] = 1
    with torch.no_grad():
        y = model(x)[0][0, :, 0]
    assert float(y[-1]) == pytest.approx(float(y[100]), rel=1e-9)


def test_models_without_a_linear_state_are_refused():
    with pytest.raises(ArgumentError, match="ContinuousRNN"):
        stack_rate(nn.ContinuousRNN(1, 3))
    with pytest.raises(ArgumentError, match="linear recurrence only, got a Linear with none"):
        stack_rate(torch.nn.Linear(1, 1))
    with pytest.raises(ArgumentError, match="input_rate"):
        stack_rate(layer(0.1), input_rate=-1.0)
