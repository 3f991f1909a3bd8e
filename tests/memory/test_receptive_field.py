"""The effective receptive field against closed forms."""

import math

import numpy as np
import pytest
from torch import nn

import holdfast


class Average(nn.Module):
    """The mean of the last ten inputs, or of those around the step where it looks ahead."""

    def __init__(self, ahead=0):
        super().__init__()
        self.ahead = ahead

    def forward(self, x):
        padded = nn.functional.pad(x, (0, 0, 9 - self.ahead, self.ahead))
        return padded.unfold(1, 10, 1).mean(-1)


def test_a_moving_average_has_equal_influence_within_its_window():
    found = holdfast.memory.receptive_field(Average(), horizon=30)
    np.testing.assert_allclose(found.influence[:10], 0.1, rtol=1e-6)
    assert (found.influence[10:] == 0).all()
    assert [found.size(share) for share in (0.5, 0.95, 1.0)] == [5, 10, 10]


def test_a_model_that_looks_ahead_is_seen_to():
    found = holdfast.memory.receptive_field(Average(ahead=3), horizon=20, ahead=5)
    assert set(found.offsets[found.influence > 0]) == set(range(-3, 7))


def test_a_decaying_average_has_the_field_of_its_geometric_series():
    layer = holdfast.nn.LinearRNN(1, 1, structure="diagonal")
    decay = float(layer.eigenvalues().detach().real.reshape(-1)[0])
    found = holdfast.memory.receptive_field(layer, horizon=400, double=True)
    ratio = found.influence[1:] / found.influence[:-1]
    step = math.exp(decay) if decay < 0 else decay
    np.testing.assert_allclose(ratio[:50], step, rtol=1e-5)
    if step**400 < 1e-3:  # 1 - step^n >= 0.95 first at n
        assert found.size(0.95) == math.ceil(math.log(0.05) / math.log(step))


def test_several_outputs_and_inputs_give_the_frobenius_norm():
    linear = nn.Linear(3, 4)
    found = holdfast.memory.receptive_field(linear, input_size=3, horizon=2, inputs=4000)
    # signs v with |v' J|^2 averaged over 4,000 draws: within a few percent of |J|_F^2
    assert found.influence[0] == pytest.approx(float(linear.weight.detach().norm()), rel=0.03)
    assert found.size() == 1


def test_a_model_that_ignores_its_input_has_no_field():
    found = holdfast.memory.receptive_field(lambda x: 0 * x, horizon=5)
    assert found.size() == 0 and "no input" in found.summary()
    with pytest.raises(holdfast.HoldfastError, match="outputs with a gradient"):
        holdfast.memory.receptive_field(lambda x: x.detach(), horizon=5)
