"""fit_exponential_sum: exact answers where they are known, rates of convergence, bounded and unbounded weights."""

import math

import numpy as np
import pytest
import torch

from holdfast import laws
from holdfast.approximate import METHODS, convergence, fit_exponential_sum
from holdfast.approximate import _linear as linear
from holdfast.errors import ArgumentError, DtypeError, ShapeError, UnknownNameError

MIXTURE = laws.ExponentialMixture((0.1, 1.0, 4.0), (0.5, 0.3, 0.2))
SIGNED = laws.ExponentialMixture((0.1, 1.0, 4.0), (0.5, -0.3, 0.9))


@pytest.mark.parametrize("method", ["nonnegative", "least_squares", "nonlinear"])
def test_weights_are_exact_where_the_rates_are_the_laws_own(method):
    found = fit_exponential_sum(MIXTURE, 3, method, rates=[0.1, 1.0, 4.0])
    # condition of the three modes, about 30, times the solver's relative tolerance after rescaling
    np.testing.assert_allclose(np.sort(found.coefficients), [0.2, 0.3, 0.5], atol=1e-8)
    assert found.l1_error < 1e-7 and found.sup_error < 1e-7


def test_quadrature_gives_a_sum_back_as_it_is():
    found = fit_exponential_sum(SIGNED, 3, "quadrature")
    assert found.rates.tolist() == list(SIGNED.rates) and found.coefficients.tolist() == list(SIGNED.coefficients)
    assert found.l1_error < 1e-14


@pytest.mark.parametrize("law", [MIXTURE, SIGNED], ids=["positive", "signed"])
def test_free_rates_are_found(law):
    found = fit_exponential_sum(law, 3, "nonlinear", horizon=200.0)
    assert found.l1_error < 1e-6 * law.norm
    np.testing.assert_allclose(np.sort(found.rates), law.rates, rtol=1e-3)


@pytest.mark.parametrize("rate", [0.01, 0.5, 20.0])
def test_one_exponential_is_found_by_one_mode(rate):
    found = fit_exponential_sum(laws.Exponential(rate), 1, "nonlinear", horizon=1000 / rate)
    assert found.rates[0] == pytest.approx(rate, rel=1e-6)
    assert found.coefficients[0] == pytest.approx(1, rel=1e-6)


def test_matrix_pencil_finds_complex_modes_of_samples():
    k = np.arange(200)
    rho = 0.97**k * np.cos(0.4 * k + 0.3) + 0.5 * 0.8**k
    found = fit_exponential_sum(rho, 3, "matrix_pencil")
    expected = np.array([-math.log(0.97) + 0.4j, -math.log(0.97) - 0.4j, -math.log(0.8)])
    assert all(np.abs(found.rates - rate).min() < 1e-10 for rate in expected)
    assert found.sup_error < 1e-12 and found.order == 3 and found.is_complex


def test_matrix_pencil_samples_a_law_at_dt():
    law = laws.OscillatingExponential(0.3, 2.0, -1.0)
    found = fit_exponential_sum(law, 2, "matrix_pencil", 50.0, dt=0.1)
    assert found.l1_error < 1e-10 and np.abs(found.rates.imag).max() == pytest.approx(2.0, rel=1e-10)


def test_modes_that_coincide_are_told_apart():
    """t e^-t is the limit of a difference of two exponentials: no two modes are exact, two near ones nearly."""
    t = np.arange(100) * 0.2
    found = fit_exponential_sum(t * np.exp(-t), 2, "matrix_pencil", dt=0.2)
    assert found.sup_error < 1e-6


def test_an_oscillating_kernel_with_real_positive_weights_says_what_it_cannot_do():
    found = fit_exponential_sum(laws.OscillatingExponential(0.3, 2.0), 8, "nonnegative", 50.0)
    assert any("negative" in note for note in found.notes)
    assert np.isfinite(found.l1_error)


POWERS = [1.1, pytest.param(3.0, marks=pytest.mark.slow)]


@pytest.mark.parametrize("p", POWERS)
def test_quadrature_converges_exponentially_in_the_root_of_the_order(p):
    """Sup error like exp(-pi sqrt(p m)) or faster; L1 error like exp(-pi sqrt((p-1) m))."""
    orders = (4, 8, 16, 32)
    sup = convergence(laws.PowerLaw(p), orders, "quadrature", math.inf, norm="sup")
    assert sup.root("sup") > 0.8 * math.pi * math.sqrt(p)
    assert sup.sup[-1] < 1e-6
    l1 = convergence(laws.PowerLaw(p), orders, "quadrature", math.inf)
    assert l1.root("l1") > 0.8 * math.pi * math.sqrt(p - 1)
    for found in (*sup.sums, *l1.sums):
        assert found.coefficients.min() > 0
        # their sum is s(0), which is rho(0) = 1 within the sup error
        assert abs(found.coefficients.sum() - 1) <= found.sup_error + 1e-14


@pytest.mark.parametrize("p", POWERS)
def test_sup_error_falls_with_the_order_for_every_method(p):
    for method in METHODS:
        options = {"horizon": 1e4}
        if method == "quadrature":
            options = {"horizon": math.inf, "norm": "sup"}
        if method == "matrix_pencil":
            options = {"horizon": 100.0, "dt": 0.1}
        found = convergence(laws.PowerLaw(p), (2, 8), method, **options)
        assert found.sup[-1] < 0.3 * found.sup[0] and found.sup[-1] < 0.1, (method, found.sup)


@pytest.mark.parametrize("p", POWERS)
def test_least_squares_weights_blow_up_and_nonnegative_ones_do_not(p):
    rho = laws.PowerLaw(p)
    for order in (4, 16, 32):
        bounded = fit_exponential_sum(rho, order, "nonnegative")
        assert bounded.coefficients.min() >= 0
        # their sum is s(0), which is rho(0) = 1 within the sup error; 1e-14 is the rounding of a sum of 32
        assert bounded.weight_norms["l1"] <= 1 + bounded.sup_error + 1e-14
    blown = [fit_exponential_sum(rho, order, "least_squares").weight_norms["l2"] for order in (4, 8, 16)]
    assert blown[0] < 10 < blown[1] and blown[2] > 1e4 * blown[1] and blown[2] > 1e6


def test_nonnegative_fits_on_the_given_grid_are_at_least_as_good_as_the_figures_on_record():
    """rho = (1+t)^-1.5, rates geometric on [1/m^2, 4], up to t = 1e4: 0.29, 0.12, 0.050, 0.015."""
    for m, known in ((4, 0.29), (8, 0.12), (16, 0.050), (32, 0.015)):
        found = fit_exponential_sum(laws.PowerLaw(1.5), m, rates=np.geomspace(1 / m**2, 4, m))
        assert found.l1_inside < 1.02 * known  # the figures have two digits
        free = fit_exponential_sum(laws.PowerLaw(1.5), m, horizon=float(m**2))
        assert free.l1_error < 1.1 * found.l1_error  # searched ends of the grid; the search is not exact


def test_nonnegative_weights_are_the_smallest_l1_error_on_their_grid():
    """Against the same problem posed densely and solved by least absolute deviations over random weights."""
    rates = np.array([0.05, 0.3, 2.0])
    found = fit_exponential_sum(laws.PowerLaw(2.0), 3, rates=rates)
    generator = np.random.default_rng(0)
    t = np.linspace(0, 400, 200_001)
    modes, rho = np.exp(-np.multiply.outer(t, rates)), (1 + t) ** -2.0
    own = np.trapezoid(np.abs(rho - modes @ found.coefficients), t)
    for _ in range(30):
        other = np.maximum(found.coefficients * (1 + 0.05 * generator.standard_normal(3)), 0)
        assert own <= np.trapezoid(np.abs(rho - modes @ other), t) * (1 + 1e-3)


def test_jackson_rate_is_at_least_the_smoothness():
    """iat, Thm A.3: y in C^(alpha+1) with exponential decay gives m^-alpha, for modes k beta, k = 1..m."""
    for alpha in (1, 2):
        law = laws.Finite(4.0, alpha + 1.0)  # (1 - t/4)^(alpha+1): y' = rho has alpha continuous derivatives
        found = convergence(law, (4, 6, 8, 12), "least_squares", 100.0, rates=lambda m: 0.5 * np.arange(1, m + 1))
        assert found.algebraic() > alpha


def test_samples_with_any_times_are_fitted():
    generator = np.random.default_rng(0)
    t = np.sort(generator.uniform(0, 60, 400))
    for method in ("nonnegative", "least_squares", "nonlinear"):
        found = fit_exponential_sum(torch.from_numpy(np.asarray(MIXTURE(t))), 8, method, time=t)
        assert found.l1_error < 2e-2 * MIXTURE.norm and found.horizon == pytest.approx(t[-1])


def test_functions_and_laws_give_the_same_fit():
    law = fit_exponential_sum(laws.PowerLaw(2.0), 6, horizon=1e3)
    function = fit_exponential_sum(lambda t: (1 + t) ** -2.0, 6, horizon=1e3)
    # the law's fit minds the tail after the horizon too, 1e-3 of the norm
    assert function.l1_error == pytest.approx(law.l1_error, abs=3e-3)
    assert (law.tail, function.tail) == ("exact", "not known")


def test_an_order_above_what_the_samples_carry_is_cut_and_said():
    found = fit_exponential_sum([1.0, 0.5, 0.25, 0.13, 0.06], 16)
    assert found.order == 2 and found.status == "reduced" and "at most 2 modes" in found.notes[0]
    pencil = fit_exponential_sum(0.9 ** np.arange(50), 10, "matrix_pencil")
    assert pencil.order == 1 and pencil.status == "reduced" and pencil.rank == 1
    assert "carry 1 modes" in pencil.notes[0]


def test_dependent_modes_have_a_status_with_their_rank():
    found = fit_exponential_sum(laws.Exponential(1.0), 40, "least_squares", horizon=100.0)
    assert found.status == "rank deficient" and found.rank is not None and found.rank < 40
    assert str(found.rank) in found.notes[0]
    assert found.sup_error < 1e-6


# quadrature leaves out the rates below 1 / horizon: 18% of the integral up to there
@pytest.mark.parametrize(("method", "share"), [("nonnegative", 0.02), ("quadrature", 0.2), ("minimax", 0.02)])
def test_a_law_that_is_not_integrable_ends_with_its_horizon(method, share):
    law = laws.PowerLaw(0.7)
    found = fit_exponential_sum(law, 8, method, horizon=1e4)
    assert found.tail == "not known" and found.l1_error == found.l1_inside
    assert found.l1_error < share * float(law.integral(0.0, 1e4))
    with pytest.raises(ArgumentError, match="a law with a finite L1 norm"):
        fit_exponential_sum(law, 8, "quadrature", horizon=math.inf)


def test_a_function_is_judged_up_to_its_horizon_whether_integrable_or_not():
    given = fit_exponential_sum(lambda t: (1 + t) ** -0.7, 8, "minimax", 1e4)
    law = fit_exponential_sum(laws.PowerLaw(0.7), 8, "minimax", 1e4)
    np.testing.assert_allclose(given.rates, law.rates, rtol=1e-6)


def test_nonnegative_weights_in_the_sup_norm_are_the_smallest_on_their_rates():
    rates = np.geomspace(0.02, 4, 6)
    law = laws.PowerLaw(2.0)
    l1, sup = (fit_exponential_sum(law, rates=rates, norm=norm) for norm in ("l1", "sup"))
    assert sup.sup_error < 0.7 * l1.sup_error and sup.l1_error > l1.l1_error and sup.coefficients.min() >= 0
    # no small change of the weights is better: a linear problem has no other minimum
    t = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 4000)])
    modes, values = np.exp(-np.multiply.outer(t, rates)), np.asarray(law(t))
    own = np.abs(values - modes @ sup.coefficients).max()
    generator = np.random.default_rng(0)
    for _ in range(200):
        other = np.maximum(sup.coefficients * (1 + 0.03 * generator.standard_normal(6)), 0)
        # the fit looks at 400 times, between which the error rises a little
        assert own < 1.005 * np.abs(values - modes @ other).max()
    # and free rates are better still
    free = fit_exponential_sum(law, 6, norm="sup", horizon=1e3)
    best = fit_exponential_sum(law, 6, "minimax", horizon=1e3)
    assert best.sup_error < free.sup_error < sup.sup_error


def test_a_function_that_is_zero_is_refused():
    with pytest.raises(ArgumentError, match="not 0 everywhere"):
        fit_exponential_sum(lambda t: 0 * t, 4)


@pytest.mark.parametrize("law", [laws.StretchedExponential(0.7, 2.0), laws.Finite(3.0, 2.0)], ids=["Gauss", "finite"])
def test_kernels_that_begin_flat_or_end_are_found_however_far_the_horizon(law):
    """All of the kernel lies in the first 1/300 of the horizon, and its slope at 0 says nothing about its time."""
    assert fit_exponential_sum(law, 6, horizon=1e3).l1_error < 0.3 * law.norm
    assert fit_exponential_sum(law, 6, "nonlinear", 1e3).l1_error < 0.03 * law.norm
    assert fit_exponential_sum(law, 6, "matrix_pencil", 1e3).l1_error < 0.01 * law.norm


def test_bad_samples_are_refused_with_what_is_wrong():
    good = 0.9 ** np.arange(20)
    broken = good.copy()
    broken[7] = np.nan
    with pytest.raises(ArgumentError, match="first at index 7"):
        fit_exponential_sum(broken, 2)
    with pytest.raises(ArgumentError, match="equally spaced"):
        fit_exponential_sum(good, 2, "matrix_pencil", time=np.arange(20) ** 1.5)
    with pytest.raises(ArgumentError, match="increase"):
        fit_exponential_sum(good, 2, time=np.zeros(20))
    with pytest.raises(ShapeError, match="one time for each sample"):
        fit_exponential_sum(good, 2, time=np.arange(19.0))
    with pytest.raises(ArgumentError, match="got both"):
        fit_exponential_sum(good, 2, time=np.arange(20.0), dt=1.0)
    with pytest.raises(ArgumentError, match="every sample of rho is 0"):
        fit_exponential_sum(np.zeros(5), 2)
    with pytest.raises(ArgumentError, match="near 0"):
        fit_exponential_sum(good, 2, time=1e4 + np.arange(20.0))
    with pytest.raises(ArgumentError, match="takes 4 to"):
        fit_exponential_sum(good[:3], 1, "matrix_pencil")
    with pytest.raises(ArgumentError, match="at least 2 samples"):
        fit_exponential_sum([1.0], 1)
    with pytest.raises(DtypeError, match="real numbers"):
        fit_exponential_sum(np.array([1j, 2j]), 1)
    with pytest.raises(ShapeError, match="must have one dimension"):
        fit_exponential_sum(np.ones((3, 3)), 1)


def test_growing_samples_have_no_decaying_mode():
    with pytest.raises(ArgumentError, match="no decaying mode"):
        fit_exponential_sum(1.1 ** np.arange(30), 1, "matrix_pencil")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"order": 0}, "order"),
        ({"order": 2.5}, "order"),
        ({"horizon": 0.0}, "horizon"),
        ({"horizon": math.inf}, "horizon"),
        ({"norm": "sup", "method": "nonlinear"}, "norm"),
        ({"rates": [1.0, 1.0]}, "equal"),
        ({"rates": [-1.0]}, "above 0"),
        ({"rates": [1.0], "method": "matrix_pencil"}, "finds the rates itself"),
        ({"rates": [1.0, 2.0]}, "leave order out"),
        ({"dt": 0.1}, "leave dt out"),
        ({"time": [0.0, 1.0]}, "only when rho is samples"),
    ],
)
def test_bad_choices_are_refused(options, text, user_mistakes):
    with pytest.raises(ArgumentError, match=text):
        fit_exponential_sum(laws.PowerLaw(1.5), **{"order": 4, **options})


def test_unknown_methods_and_laws_without_an_integral_are_named(user_mistakes):
    with pytest.raises(UnknownNameError, match="nonnegative"):
        fit_exponential_sum(laws.PowerLaw(1.5), 4, "non_negative")
    with pytest.raises(ArgumentError, match="'quadrature' needs a PowerLaw"):
        fit_exponential_sum(laws.StretchedExponential(1.0, 0.5), 4, "quadrature")
    with pytest.raises(ArgumentError, match="order must be at least"):
        fit_exponential_sum(MIXTURE, 2, "quadrature")
    with pytest.raises(ShapeError, match="as many values"):
        fit_exponential_sum(lambda t: t[:-1], 2)
    with pytest.raises(ArgumentError, match=r"must be finite.*at t = 0"):
        fit_exponential_sum(lambda t: np.where(t == 0, np.inf, np.exp(-t)), 2)


def test_order_64_to_a_million_solves_few_small_linear_programs(monkeypatch):
    """The cost of a fit is its linear programs: small ones to place the rates, large ones for the weights."""
    sizes = []
    solve = linear._corrected_l1

    def counted(problem, rates, start, scale):
        sizes.append(len(problem.time))
        return solve(problem, rates, start, scale)

    monkeypatch.setattr(linear, "_corrected_l1", counted)
    found = fit_exponential_sum(laws.PowerLaw(1.5), 64, "nonnegative", 1e6)
    # 55 searches, each of one or two programs of 40 panels with 2 nodes; at most four corrections on 200 panels
    small = [size for size in sizes if size <= 80]
    assert len(small) <= 2 * 55
    assert len(sizes) - len(small) <= 4 and max(sizes) <= 400
    assert found.l1_error < 0.01
