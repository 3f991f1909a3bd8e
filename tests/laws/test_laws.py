import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from cases import LAWS, NOT_INTEGRABLE
from holdfast import laws
from holdfast.errors import ArgumentError, RangeError, UnknownNameError

# Lobatto's rule, which has the ends among its nodes: a kink close to one is seen
P = np.polynomial.legendre.Legendre.basis(9)
NODES = np.concatenate([[-1.0], P.deriv().roots(), [1.0]])
WEIGHTS = 2 / (90 * P(NODES) ** 2)


def lobatto(f, left, right):
    """The integral of f over each panel exact for polynomials up to degree 17."""
    half = (right - left) / 2
    return half * (f((left + half)[:, None] + half[:, None] * NODES) @ WEIGHTS)


def quadrature(f, start, stop):
    """The integral of f, panels halved until both halves agree with the whole: a kink or jump ends in a panel of no width."""
    edges = np.linspace(start, stop, 401)
    left, right = edges[:-1], edges[1:]
    total = 0.0
    for _ in range(40):
        middle = (left + right) / 2
        halves = lobatto(f, left, middle) + lobatto(f, middle, right)
        settled = abs(lobatto(f, left, right) - halves) < 1e-15
        total += halves[settled].sum()
        left, right = (np.concatenate([a[~settled], b[~settled]]) for a, b in ((left, middle), (middle, right)))
    return total


@pytest.mark.parametrize("law", [*LAWS, laws.PowerLaw(0.7), laws.PowerLaw(1.0)], ids=lambda law: law.name)
@pytest.mark.parametrize("start", [0.0, 0.7, 5.0])
def test_integral_equals_quadrature(law, start):
    # sums of 400 panels, each within 1e-15 of its halves
    assert law.integral(start, 60.0) == pytest.approx(quadrature(law, start, 60.0), abs=2e-12)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("start", [0.0, 0.7, 5.0])
def test_tail_norm_equals_quadrature_of_the_absolute_value(law, start):
    measured = quadrature(lambda t: abs(law(t)), start, 60.0) + law.tail_norm(60.0)
    assert law.tail_norm(start) == pytest.approx(measured, abs=2e-12)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_norm_is_the_whole_tail_and_bounds_the_signed_one(law):
    assert law.norm == law.tail_norm(0.0)
    assert law.integrable
    assert abs(law.tail(0.0)) <= law.norm * (1 + 1e-14)


@pytest.mark.parametrize("law", NOT_INTEGRABLE, ids=lambda law: law.name)
def test_a_law_without_a_finite_integral_says_so(law):
    assert law.norm == math.inf
    assert not law.integrable
    assert 0 < law(3.0) < 1


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("t", [0.0, 0.1, 1.0, 10.0, 1e3, 1e4, 1e6])
def test_infinite_reciprocal_sum_equals_two_million_terms(power, t):
    k = np.arange(1, 2_000_001, dtype=np.float64)
    f = np.exp(-t / k**power) / k**2
    # past the last term K the sum is the integral over [K + 1/2, inf), up to K^-4; u = 1/k makes it finite
    rest = quad(lambda u: math.exp(-t * u**power), 0, 1 / (k[-1] + 0.5))[0]
    assert laws.ReciprocalSum(power)(t) == pytest.approx(np.sort(f).sum() + rest, rel=2e-12)


@pytest.mark.parametrize("power", [1, 2])
def test_reciprocal_sums_decay_like_a_power_law(power):
    # 1/t and sqrt(pi/t)/2: the exponents -1 and -1/2 of "Inverse Approximation Theory", App. C
    law = laws.ReciprocalSum(power)
    slope = math.log(law(1e6) / law(1e4)) / math.log(1e2)
    assert slope == pytest.approx(-1 / power, abs=1e-6)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_numbers_arrays_and_tensors_give_the_same_values_in_kind(law):
    t = np.linspace(0, 7, 12)
    values = law(t)
    assert isinstance(values, np.ndarray)
    assert values.dtype == np.float64
    tensor = law(torch.from_numpy(t))
    assert isinstance(tensor, torch.Tensor)
    assert np.array_equal(values, tensor.numpy())
    assert isinstance(law(float(t[3])), float)
    # a vectorized exponential may differ in the last bit from a scalar one
    assert law(float(t[3])) == pytest.approx(values[3], rel=1e-15)
    assert law(torch.from_numpy(t).float()).dtype == torch.float32


def test_values_and_tails_are_differentiable():
    t = torch.linspace(0.1, 4, 7, dtype=torch.float64, requires_grad=True)
    for law in LAWS[:6]:
        (slope,) = torch.autograd.grad(law.tail(t).sum(), t)
        torch.testing.assert_close(slope, -law(t).detach(), rtol=1e-10, atol=1e-12)


@given(st.floats(0, 1e6), st.floats(1.01, 5))
def test_power_law_integral_is_additive(t, exponent):
    law = laws.PowerLaw(exponent)
    whole = law.integral(0.0, t) + law.integral(t, 2 * t + 1)
    assert whole == pytest.approx(law.integral(0.0, 2 * t + 1), rel=1e-12)


def test_a_box_ends_at_its_support():
    assert laws.Finite(3.0)(2.999) == 1.0
    assert laws.Finite(3.0)(3.0) == 0.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: laws.Exponential(-1.0), "rate must be a finite number above 0, got -1.0"),
        (lambda: laws.PowerLaw(math.nan), "exponent must be"),
        (lambda: laws.ExponentialMixture((1.0,), (1.0, 2.0)), "as many coefficients as rates"),
        (lambda: laws.ExponentialMixture((), ()), "at least one"),
        (lambda: laws.ReciprocalSum(3), "power must be 1 or 2"),
        (lambda: laws.ReciprocalSum(1, 0), "terms must be a whole number above 0"),
        (lambda: laws.Finite(1.0, -1.0), "order must be >= 0"),
        (lambda: laws.get("power"), "'power', which takes exponent: .*missing a required argument"),
        (lambda: laws.get("exponential", 1.0, 2.0), "'exponential', which takes rate: .*too many positional"),
        (lambda: laws.get("power", rate=1.0), "'power', which takes exponent: .*exponent"),
    ],
)
def test_wrong_constants_are_refused(build, message):
    with pytest.raises(ArgumentError, match=message):
        build()


def test_negative_times_are_refused():
    with pytest.raises(RangeError, match=r"times must be >= 0 for a decay law, got a smallest of -1\.0"):
        laws.PowerLaw(1.5)(np.array([0.0, -1.0]))


def test_laws_are_found_by_name_and_unknown_names_list_the_nearest_first():
    assert laws.get("power", 1.5) == laws.PowerLaw(1.5)
    with pytest.raises(UnknownNameError, match=r"unknown decay law 'exponental'. Did you mean 'exponential'\?"):
        laws.get("exponental", 1.0)
