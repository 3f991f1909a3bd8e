"""Kolmogorov-Arnold networks: the inner function of Braun and Griebel, and five layers whose error falls with the digits."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from holdfast import nn
from holdfast.errors import ArgumentError
from holdfast_papers.constructions import kolmogorov_arnold
from holdfast_papers.constructions.inner_function import beta, inner_values, plateaus, weights
from holdfast_papers.constructions.staircase import Staircase


def waves(x):
    """sin of a sum, moved by the second input: no coordinate can be left out."""
    return 0.5 * np.sin(2 * x[:, 0] + 1) * (1 - x[:, 1])


def product(x):
    return x.prod(axis=1)


def test_the_inner_function_follows_the_recursion_by_hand():
    """Base 4, 2 variables: beta(2) = 3, so that phi(0.01_4) = 4^-3 and the last digit sits half-way to the next."""
    assert [beta(r, 2) for r in (1, 2, 3)] == [1, 3, 7]
    phi = inner_values(4, 2, 2)
    step = Fraction(1, 64)
    expected = [0, step, 2 * step, (2 * step + Fraction(1, 4)) / 2, Fraction(1, 4), Fraction(1, 4) + step]
    assert phi[:6].tolist() == [float(value) for value in expected]
    assert phi[-1] == 1 and len(phi) == 17


@pytest.mark.parametrize(
    ("base", "digits", "variables"), [(4, 1, 2), (4, 2, 2), (4, 3, 2), (6, 2, 2), (4, 1, 3), (6, 1, 3)]
)
def test_the_inner_function_rises_and_separates_all_points(base, digits, variables):
    phi = inner_values(base, digits, variables)
    assert (np.diff(phi) > 0).all()
    coarse = inner_values(base, max(digits - 1, 1), variables)
    assert np.isin(coarse, phi).all()  # more digits refine and do not move
    xi, order = plateaus(base, digits, variables)
    assert len(xi) == len(phi) ** variables and (np.diff(xi) > 0).all()
    lam = weights(base, digits, variables)
    # the order says which point each plateau belongs to: first coordinate slowest
    points = list(itertools.product(phi, repeat=variables))
    np.testing.assert_allclose(xi, np.array([points[i] for i in order]) @ lam, rtol=0, atol=1e-15 * variables)


@pytest.mark.parametrize(("digits", "count"), [(1, 8), (2, 12)])
def test_the_network_is_its_table_to_rounding(digits, count):
    stairs = Staircase.build(waves, 2, digits, 4, count)
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.random((50, 2)), stairs.points_on_steps(50, generator)])
    with torch.no_grad():
        y = stairs.network()(torch.from_numpy(x)[..., None])[0][:, -1, 0].numpy()
    # the steepest sigmoid is 1e8 per unit at these digits: rounding of its argument is 1e-8 of a step
    np.testing.assert_allclose(y, stairs(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("f", "digits"),
    [(waves, (1, 2)), (product, (1, 2)), pytest.param(product, (1, 2, 3), marks=pytest.mark.slow)],
)
def test_error_falls_with_the_digits_for_two_inputs(f, digits):
    made = [kolmogorov_arnold(f, 2, digits=d) for d in digits]
    for coarse, fine in itertools.pairwise(made):
        assert fine.error < 0.5 * coarse.error
    assert made[1].error < 0.1 and made[1].status == "ok"  # 1e-1 is reached
    assert all(m.bound is not None and m.error <= m.bound for m in made)


def test_error_falls_with_the_digits_for_three_inputs():
    coarse, fine = (kolmogorov_arnold(product, 3, digits=d) for d in (1, 2))
    assert fine.error < 0.5 * coarse.error
    assert fine.error < 0.1 and fine.status == "ok"
    assert fine.bound is not None and fine.error <= fine.bound


def test_the_network_is_five_layers_and_states_its_cost():
    made = kolmogorov_arnold(waves, 2, digits=1)
    assert len(made.network.layers) == 5
    count, steps = made.details["terms"], 4
    # phi: a sigmoid a step and copy, then the constants; convolution: modes; outer: a sigmoid between plateaus; the sum
    assert made.width == count * steps + count + count * 3 + count * ((steps + 1) ** 2 - 1) + 1
    layers = [m for m in made.network.modules() if isinstance(m, nn.AbstractRecurrent)]
    assert made.parameters == sum(p.numel() for layer in layers for p in layer.parameters())
    memory = [i for i, layer in enumerate(made.network.layers[:3]) if layer.eigenvalues().any()]
    assert memory == [2]  # only the convolution remembers


def test_the_oldest_input_comes_first():
    made = kolmogorov_arnold(lambda x: x[:, 0], 2, digits=2)
    x = torch.tensor([[[0.1], [0.9]], [[0.9], [0.1]]], dtype=torch.float64)
    with torch.no_grad():
        y = made.network(x)[0][:, -1, 0]
    np.testing.assert_allclose(y, [0.1, 0.9], atol=made.bound)


def test_a_tolerance_that_is_not_reached_says_what_to_raise():
    made = kolmogorov_arnold(waves, 2, digits=1, tolerance=1e-3)
    assert made.status == "tolerance not reached" and "digits" in made.notes[0]


def test_sizes_that_cannot_work_are_refused(user_mistakes):
    for length, options in (
        (1, {}),
        (2, {"digits": 0}),
        (2, {"base": 1}),
        (2, {"terms": 4}),
        (3, {"digits": 3}),
        (4, {"digits": 2, "terms": 9}),
    ):
        with pytest.raises(ArgumentError):
            kolmogorov_arnold(product, length, **options)
    with pytest.raises(ArgumentError, match="one finite number per point"):
        kolmogorov_arnold(lambda x: x, 2)
    with pytest.raises(ArgumentError, match="one finite number per point"):
        kolmogorov_arnold(lambda x: x[:, 0] * np.nan, 2)
