"""method="minimax": against published best errors, against equi-oscillation, and its own limits."""

import itertools

import numpy as np
import pytest

from holdfast import laws
from holdfast.approximate import fit_exponential_sum
from holdfast.approximate._minimax import best_sums, posed
from holdfast.approximate._target import as_target
from holdfast.errors import ArgumentError

# Best errors for 1/x on [1, R] by k exponentials: W. Hackbusch's tables (www.mis.mpg.de/scicomp/EXP_SUM/1_x, described in
# Comput. Vis. Sci. 20 (2019) 1-11), as the library laplace-minimax of B. Helmich-Paris distributes them. Theory: Braess
# and Hackbusch, IMA J. Numer. Anal. 25 (2005) 685-697.
PUBLISHED = {
    1e1: {4: 5.577e-05, 5: 4.243e-06, 6: 3.173e-07, 7: 2.344e-08, 8: 1.716e-09, 9: 1.248e-10, 10: 9.021e-12, 12: 4.654e-14},
    1e2: {4: 1.066e-03, 6: 4.760e-05, 8: 2.016e-06, 10: 8.303e-08, 13: 6.716e-10, 16: 5.298e-12, 20: 8.114e-15},
    1e3: {5: 6.385e-04, 8: 2.321e-05, 11: 7.605e-07, 14: 2.403e-08, 17: 7.426e-10, 20: 2.261e-11},
    1e4: {8: 5.271e-05, 11: 3.844e-06, 14: 2.648e-07, 17: 1.780e-08, 20: 1.179e-09},
    1e5: {10: 1.312e-05, 13: 1.646e-06, 16: 1.850e-07, 20: 9.700e-09},
    1e6: {15: 6.280e-07, 17: 1.867e-07, 20: 2.911e-08},
}  # fmt: skip
needs_extended = pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="float64 ends near errors of 1e-13")


@pytest.fixture(scope="module")
def slow_power():
    """Best sums of 1, ..., 32 modes for (1+t)^-1.3 on [0, 1e4]."""
    return best_sums(posed(as_target(laws.PowerLaw(1.3), horizon=1e4)), 32)


def extremes(law, rates, weights, horizon):
    """The largest errors between sign changes, in extended precision on 6,000 times, by no code of the package."""
    # as dense near 0 as the fastest rate, 15, asks for
    t = np.expm1(np.linspace(0, np.log1p(np.longdouble(20 * horizon)), 6_000)) / 20
    error = (1 + t) ** -np.longdouble(law.exponent)
    for rate, weight in zip(rates, weights, strict=True):
        error -= weight * np.exp(-rate * t)
    starts = np.flatnonzero(np.diff(np.sign(error), prepend=0))
    return np.maximum.reduceat(np.abs(error), starts)


@needs_extended
@pytest.mark.parametrize("ratio", PUBLISHED)
def test_best_errors_of_one_over_x_are_the_published_ones(ratio):
    found = best_sums(posed(as_target(laws.PowerLaw(1.0), horizon=ratio - 1)), max(PUBLISHED[ratio]))
    for k, known in PUBLISHED[ratio].items():
        # the tables have four digits; the largest error exceeds the level by at most the ripple
        assert found[k - 1].level == pytest.approx(known, rel=6e-4 + found[k - 1].ripple), k
        assert found[k - 1].ripple < 5e-3


@needs_extended
def test_errors_fall_with_every_order_and_equi_oscillate_within_a_percent(slow_power):
    levels = [at.level for at in slow_power]
    assert len(levels) == 32 and all(after < before for before, after in itertools.pairwise(levels))
    assert levels[23] < 1e-6
    for at in slow_power[3:]:
        found = extremes(laws.PowerLaw(1.3), at.rates, at.weights, 1e4)
        # 2 m + 1 alternating errors certify the best sum (de la Vallee Poussin)
        assert len(found) == 2 * at.order + 1
        assert found.max() < 1.01 * found.min(), at.order


def test_the_public_fit_is_the_best_sum_with_its_certificate(slow_power):
    found = fit_exponential_sum(laws.PowerLaw(1.3), order=12, method="minimax", horizon=1e4)
    assert found.status == "ok" and found.order == 12 and found.coefficients.min() > 0
    assert found.sup_error == pytest.approx(slow_power[11].level, rel=1e-3) and found.ripple < 1e-3
    assert found.tail == "not known" and found.horizon == 1e4 and found.l1_error == found.l1_inside
    assert found.held_by_horizon == 1e4
    # 4 modes are as good on [0, inf): their error is largest before the horizon
    assert fit_exponential_sum(laws.PowerLaw(1.3), 4, "minimax", 1e4).held_by_horizon is None
    other = fit_exponential_sum(lambda t: (1 + t) ** -1.3, 12, "minimax", 1e4)
    assert other.sup_error == pytest.approx(found.sup_error, rel=1e-3)


@pytest.mark.parametrize(
    "law",
    [laws.Exponential(0.5), laws.ExponentialMixture((1e-3, 10.0), (0.5, 0.5)),
     laws.ExponentialMixture((0.1, 1.0, 4.0), (0.5, 0.3, 0.2))],
    ids=["one", "two", "three"],
)  # fmt: skip
def test_a_sum_is_found_again_and_more_modes_are_not_invented(law):
    modes = len(getattr(law, "rates", [0.5]))
    found = fit_exponential_sum(law, 6, "minimax", 1e3)
    assert found.order == modes and found.status == "reduced" and "exact to rounding" in found.notes[0]
    assert found.sup_error < 2e-15 and found.held_by_horizon is None


@pytest.mark.parametrize("law", [laws.StretchedExponential(1.0, 0.5), laws.ReciprocalSum(1, terms=200)])
def test_other_completely_monotone_kernels_are_certified_too(law):
    found = best_sums(posed(as_target(law, horizon=1e3)), 6)
    assert len(found) == 6 and all(at.ripple < 1e-3 and at.weights.min() > 0 for at in found)


def test_orders_below_rounding_are_cut_and_said():
    found = fit_exponential_sum(laws.PowerLaw(1.0), 20, "minimax", 9.0)
    assert 10 < found.order < 16 and found.status == "reduced" and "below rounding" in found.notes[0]
    assert found.sup_error < 1e-12


@pytest.mark.parametrize(
    ("rho", "options", "text"),
    [
        (laws.OscillatingExponential(0.3, 2.0), {}, "completely monotone"),
        (laws.Finite(3.0), {}, "completely monotone"),
        (lambda t: -np.exp(-t), {}, "is -1 at t = 0"),
        (0.9 ** np.arange(50), {}, "got samples"),
        (laws.PowerLaw(1.3), {"rates": [1.0, 2.0]}, "finds the rates itself"),
        (laws.PowerLaw(1.3), {"norm": "l1"}, "sup"),
    ],
)
def test_what_has_no_alternation_is_refused_or_said(rho, options, text):
    with pytest.raises(ArgumentError, match=text):
        fit_exponential_sum(rho, 4, "minimax", 100.0, **options)
