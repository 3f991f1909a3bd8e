"""Bits from the stability radius, checked by rounding."""

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import ArgumentError
from holdfast.stability import Search


def x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "model",
    [lambda: nn.RNN(1, 6, batch_first=True), lambda: holdfast.nn.DiagonalSSM(1, 6), lambda: holdfast.nn.LRU(1, 4)],
)
def test_rounding_to_the_bits_of_the_radius_keeps_the_error_below_the_level(model):
    torch.manual_seed(0)
    model = model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = holdfast.stability.bit_budget(model, x(2, 30, 1), bits=range(2, 13), search=Search("adversarial", draws=8))
    assert found.needed is not None and found.enough is not None
    # the radius is for every way of rounding, the nearest is one of them
    assert (found.rounded <= found.worst * (1 + 1e-5)).all()
    assert found.enough <= found.needed
    assert found.rounded[list(found.bits).index(found.needed)] <= found.level
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_bit_more_halves_the_step_and_in_the_end_the_error():
    torch.manual_seed(0)
    found = holdfast.stability.bit_budget(
        nn.RNN(1, 6, batch_first=True), x(2, 20, 1), bits=[8, 9, 10], search=Search("random", draws=4)
    )
    np.testing.assert_allclose(found.half_steps[:-1] / found.half_steps[1:], 2, rtol=0.01)
    np.testing.assert_allclose(found.worst[:-1] / found.worst[1:], 2, rtol=0.15)


def test_a_weight_on_the_grid_needs_no_rounding():
    model = nn.RNN(1, 2, batch_first=True)
    with torch.no_grad():  # 2 bits hold -1, 0 and 1 times the largest
        model.weight_hh_l0.copy_(torch.tensor([[0.5, 0.0], [-0.5, 0.5]]))
    found = holdfast.stability.bit_budget(
        model, x(1, 10, 1), bits=[2, 3], scope=["weight_hh_l0"], search=Search("adversarial", draws=2)
    )
    assert found.rounded[0] == 0 and found.enough == 2


def test_a_memory_near_the_boundary_needs_more_bits_than_a_short_one():
    def needed(eigenvalue):
        model = nn.RNN(1, 1, batch_first=True, bias=False)
        with torch.no_grad():
            model.weight_hh_l0.fill_(eigenvalue)
            model.weight_ih_l0.fill_(0.001)  # tanh is linear here
        return holdfast.stability.bit_budget(model, torch.ones(1, 400, 1), search=Search("adversarial", draws=4)).needed

    # y = u/(1 - w): moving w by d moves y by d/(1 - w) of itself, so 1% from the edge takes log2(50) = 5.6 bits more
    assert needed(0.99) - needed(0.5) in (5, 6)


def test_bits_that_are_no_bits_are_refused():
    with pytest.raises(ArgumentError, match="bits must be increasing numbers from 2"):
        holdfast.stability.bit_budget(nn.RNN(1, 2), x(3, 2, 1), bits=[1, 2])
