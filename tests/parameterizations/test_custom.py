import math

import pytest
import torch

from holdfast import parameterizations
from holdfast.errors import ArgumentError, RangeError
from holdfast.parameterizations import Custom


def test_a_plain_function_behaves_like_the_built_in_it_repeats():
    mine, built_in = Custom(lambda w: -torch.exp(w)), parameterizations.get("exp")
    w = torch.linspace(-3, 3, 13, dtype=torch.float64)
    torch.testing.assert_close(mine(w), built_in(w))
    torch.testing.assert_close(mine.derivative(w), built_in.derivative(w))
    torch.testing.assert_close(mine.gradient_scale(w), built_in.gradient_scale(w))
    torch.testing.assert_close(mine.inverse(mine(w)), w, rtol=1e-12, atol=1e-12)
    assert mine.modulus(0.2) == pytest.approx(math.expm1(0.2), rel=1e-9)


def test_an_even_function_is_inverted_on_the_positive_side():
    mine = Custom(lambda w: -1 / (w**2 + 0.5), low=-2.0, high=0.0)
    lam = torch.tensor([-2.0, -1.0, -0.01], dtype=torch.float64)
    found = mine.inverse(lam)
    assert bool((found >= 0).all())
    torch.testing.assert_close(mine(found), lam, rtol=1e-10, atol=0)


def test_a_function_that_falls_too_fast_has_no_modulus():
    # f(v)/f(w) = exp(w^2 - v^2) is unbounded within any distance
    assert Custom(lambda w: -torch.exp(-(w**2) / 400)).modulus(0.1) == math.inf


def test_discrete_functions_use_the_sum_over_steps():
    mine = Custom(lambda w: 1 / (1 + torch.exp(w)), time="discrete")
    assert mine.modulus(0.5) == pytest.approx(math.expm1(0.5), rel=1e-3)


def test_a_constant_function_has_derivative_zero():
    mine = Custom(lambda w: -torch.ones_like(w))
    assert float(mine.derivative(torch.tensor(2.0))) == 0.0


@pytest.mark.usefixtures("user_mistakes")
def test_values_that_f_never_takes_are_refused():
    with pytest.raises(RangeError, match=r"no weight w with f\(w\) equal to \[0\.5\]"):
        Custom(lambda w: -torch.exp(w)).inverse(torch.tensor([0.5]))
    with pytest.raises(ArgumentError, match="unknown time 'sometimes'"):
        Custom(torch.tanh, time="sometimes")
