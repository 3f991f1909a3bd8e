import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import laws
from holdfast.decay import UndecidedError, asymptotic_law, envelope, fit_decay
from holdfast.errors import ArgumentError
from holdfast.memory import MemoryCurve, closed_form, memory_function

T = np.arange(1001.0)


def fit(values, time=T, **options):
    return fit_decay(MemoryCurve(time=time, values=np.abs(values)), **options)


def noise(size):
    return size * np.random.default_rng(0).standard_normal(len(T))


def test_envelope_is_the_largest_value_still_to_come():
    curve = MemoryCurve(time=np.arange(5.0), values=np.array([1.0, 3.0, 0.5, 2.0, 0.1]))
    assert envelope(curve).tolist() == [3.0, 3.0, 2.0, 2.0, 0.1]


@pytest.mark.parametrize("rate", [0.005, 0.05, 0.5, 3.0])
def test_exponential_rate_and_horizon(rate):
    found = fit(laws.Exponential(rate)(T))
    assert found.law == "exponential"
    # noise-free: what is left is rounding of the smallest values, divided by the window
    assert found.rate == pytest.approx(rate, rel=1e-6)
    assert found.interval[0] <= rate <= found.interval[1]
    exact = math.log(100) / rate
    # read off the grid of steps
    assert exact <= found.horizon(0.01) <= exact + 1
    assert found.horizon(1e-9) == pytest.approx(math.log(1e9) / rate, rel=0.01, abs=1)


@pytest.mark.parametrize("exponent", [0.3, 1.5, 3.0])
def test_power_law_exponent_and_horizon(exponent):
    found = fit(laws.PowerLaw(exponent)(T))
    assert found.law == "polynomial"
    assert found.exponent == pytest.approx(exponent, rel=1e-6)
    beyond = 10 ** (-4 * exponent)  # reached at t = 9999, ten times the horizon
    assert found.horizon(beyond) == pytest.approx(10**4 - 1, rel=1e-4)


def test_power_laws_of_the_papers_are_polynomial():
    t = np.arange(10_001.0)
    for law, exponent in ((laws.ReciprocalSum(1), 1.0), (laws.ReciprocalSum(2), 0.5)):
        found = fit(law(t), t)
        assert found.law == "polynomial"
        # they come near the power law only as t grows, and the window begins at t = 10
        assert found.exponent == pytest.approx(exponent, rel=1e-4)


def test_a_sum_of_exponentials_is_undecided_until_its_slowest_rate_shows():
    rates = np.geomspace(1e-4, 4, 16)
    weights = rates**1.5 * np.exp(-rates)

    def sum_up_to(horizon):
        t = np.unique(np.round(np.linspace(0, horizon, 2001)))
        return fit(np.exp(-np.outer(t, rates)) @ weights, t)

    assert sum_up_to(2000).law == "undecided"
    assert sum_up_to(20_000).law == "undecided"
    late = sum_up_to(200_000)
    assert late.law == "exponential"
    assert late.interval[0] <= 1e-4 <= late.interval[1]


def test_a_power_law_over_less_than_two_decades_is_undecided_and_named():
    t = np.arange(61.0)
    found = fit((1 + t) ** -1.5, t)
    assert found.law == "undecided"
    assert "power law of exponent 1.5" in found.explanation
    assert "61-fold" in found.explanation


def test_known_eigenvalues_settle_what_the_window_cannot():
    lam = torch.tensor([0.9999, 0.9, 0.3], dtype=torch.float64)
    kernel = closed_form.diagonal(lam, torch.ones(3).double(), torch.ones(3).double(), range(200), time="discrete")
    found = fit_decay(kernel.curve(), eigenvalues=kernel.eigenvalues)
    assert found.status == "undecided"
    assert found.asymptotic.law == "exponential"
    assert found.asymptotic.rate == pytest.approx(-math.log(0.9999), rel=1e-9)
    assert "by its eigenvalues it is exponential" in found.explanation
    assert found.to_dict()["asymptotic"]["law"] == "exponential"


@pytest.mark.parametrize(
    ("lam", "time", "law", "rate"),
    [
        ([-0.5, -2.0], "continuous", "exponential", 0.5),
        ([0.5, -0.8], "discrete", "exponential", -math.log(0.8)),
        ([0.0, -1.0], "continuous", "non-decaying", 0.0),
        ([0.5, -1.0], "discrete", "periodic", 0.0),
        ([1.01], "discrete", "non-decaying", -math.log(1.01)),
        ([0.0, 0.0], "discrete", "finite", math.inf),
    ],
)
def test_asymptotic_law_of_eigenvalues(lam, time, law, rate):
    found = asymptotic_law(torch.tensor(lam, dtype=torch.float64), time)
    assert found.law == law
    assert found.rate == pytest.approx(rate, abs=1e-12)
    half = asymptotic_law(torch.tensor(lam, dtype=torch.float64), time, dt=0.5)
    assert half.rate == pytest.approx(rate if time == "continuous" else 2 * rate, abs=1e-12)
    with pytest.raises(ArgumentError):
        asymptotic_law(torch.zeros(0))


def test_oscillations_are_judged_by_their_peaks():
    found = fit(laws.OscillatingExponential(0.02, 1.3)(T) + noise(1e-9))
    assert found.law == "exponential"
    assert found.interval[0] <= 0.02 <= found.interval[1]
    slow = fit(laws.PowerLaw(1.5)(T) * np.abs(np.cos(1.3 * T)))
    assert slow.law == "polynomial"
    assert slow.exponent == pytest.approx(1.5, rel=0.03)  # peaks are sampled at whole steps


@pytest.mark.parametrize(("below", "law"), [(np.exp(-0.02 * T), "exponential"), (0.4 + 0 * T, "non-decaying")])
def test_a_curve_that_oscillates_at_its_beginning_alone_is_judged_by_what_follows(below, law):
    # three peaks and more until t = 20, fewer than the six that blocks of peaks are made from
    found = fit(below + 2 * np.exp(-0.2 * T) * np.cos(T))
    assert found.law == law
    if law == "exponential":
        assert found.rate == pytest.approx(0.02, rel=1e-3)


def test_an_end_that_rounding_holds_in_place_is_no_level():
    # a state at a rate of 0.05 stops 20 roundings from rest; 4e9 of them are no rounding
    for height, law in ((2e-14, "exponential"), (2e-5, "undecided")):
        values = np.maximum(np.exp(-0.05 * T), np.where(T < 950, height, 0.95 * height))
        assert fit_decay(MemoryCurve(time=T, values=values, floor=np.full(len(T), 5e-15))).law == law


def test_finite_periodic_level_and_growing_curves():
    assert fit(laws.Finite(50.0)(T) + noise(1e-6)).support == pytest.approx(50.0)
    smooth = fit(laws.Finite(300.0, 2.0)(T) + noise(1e-5))
    assert smooth.law == "finite"
    assert smooth.support == pytest.approx(300, rel=0.02)
    assert fit(np.where(T == 0, 1.0, 0.0)).law == "finite"
    wave = fit(np.tile([0.2, 1.0, 0.7, 0.4], 251)[:1001] + noise(1e-5))
    assert (wave.law, wave.period) == ("periodic", 4.0)
    assert wave.horizon(0.01) == math.inf
    level = fit(0.3 + np.exp(-T) + noise(1e-5))
    assert level.law == "non-decaying"
    assert level.horizon(0.01) == math.inf
    assert fit(np.exp(0.01 * T)).law == "non-decaying"
    chaos = [0.3]
    for _ in T[1:]:
        chaos.append(3.9 * chaos[-1] * (1 - chaos[-1]))
    assert fit(np.array(chaos)).law == "non-decaying"


def test_laws_outside_of_the_list_are_undecided():
    for values in (np.exp(-np.sqrt(T / 5)), np.exp(-((T / 20) ** 2)), np.exp(-((T / 3) ** 0.8)), 1 / np.log(T + 2)):
        found = fit(values)
        assert found.law == "undecided"
        assert found.explanation


def test_uneven_times_are_fitted_by_their_times():
    t = np.unique(np.round(np.geomspace(1, 2000, 200)))
    assert fit(np.exp(-0.01 * t), t).rate == pytest.approx(0.01, rel=1e-6)
    assert fit((1 + t) ** -1.5, t).exponent == pytest.approx(1.5, rel=1e-6)
    wave = fit(np.tile([0.2, 1.0, 0.7, 0.4], 50)[: len(t)], t)  # repeats itself in values, not in time
    assert wave.law not in ("periodic", "exponential", "polynomial")


def test_too_little_is_undecided():
    short = fit(np.exp(-0.001 * np.arange(51.0)), np.arange(51.0))
    assert short.status == "undecided"
    assert "e-folds only" in short.explanation
    with pytest.raises(UndecidedError, match="measure a longer horizon"):
        short.horizon(0.01)
    fast = fit(np.exp(-5 * T) + noise(1e-4))
    assert fast.status == "undecided"
    assert fit(np.array([1.0]), np.array([0.0])).status == "undecided"
    assert fit(np.array([1.0, 0.5, 0.2]), np.array([0.0, 1.0, 2.0])).status == "undecided"


def test_rounding_of_float32_outputs_is_cut_and_not_read_as_an_end():
    outputs = (1 - np.exp(-0.2 * (T + 1))).astype(np.float32).astype(np.float64)
    found = fit(np.diff(outputs, prepend=0.0))
    assert found.law == "exponential"
    # down to 8 rounding units of 6e-8, 12 e-folds
    assert found.rate == pytest.approx(0.2, rel=1e-3)
    assert found.window[1] < 80


def test_values_below_the_curves_own_floor_do_not_count():
    values = np.exp(-0.1 * T) + 1e-6
    floor = np.full_like(T, 4e-6)
    assert fit_decay(MemoryCurve(time=T, values=values, floor=floor)).law == "exponential"
    assert fit(values).law == "non-decaying"  # without a floor the level is signal


def test_a_curve_that_rounding_hides_is_undecided_and_has_no_horizon():
    hidden = fit_decay(MemoryCurve(time=T, values=np.exp(-0.1 * T) * 1e-9, floor=np.ones_like(T)))
    assert (hidden.law, hidden.status) == ("undecided", "undecided")
    assert "rounding hides it" in hidden.explanation
    with pytest.raises(UndecidedError, match="rounding hides it"):
        hidden.horizon(0.5)
    torch.manual_seed(0)
    unit = torch.nn.GRU(1, 8, batch_first=True)
    lifted = fit_decay(memory_function(lambda x: unit(x)[0] + 1e6, horizon=300))
    assert lifted.status == "undecided"
    assert "double=True" in lifted.explanation


@pytest.mark.parametrize("probe", ["heaviside", "impulse", "reversed"])
def test_a_delay_that_ends_behind_the_horizon_is_undecided(probe):
    def delayed(x):
        return torch.cat([torch.zeros_like(x[:, :500]), x], 1)[:, : x.shape[1]]

    late = fit_decay(memory_function(delayed, horizon=300, probe=probe))
    assert late.status == "undecided"
    assert "behind the horizon" in late.explanation
    with pytest.raises(UndecidedError, match="behind the horizon"):
        late.horizon(0.5)


def test_zeros_for_more_steps_than_modes_are_zero_for_good():
    zeros = MemoryCurve(time=T, values=np.zeros_like(T))
    known = fit_decay(zeros, eigenvalues=torch.tensor([0.5, 0.2]))
    assert (known.law, known.status) == ("zero", "decided")
    assert known.horizon(0.5) == 0.0
    assert fit_decay(zeros, eigenvalues=torch.full((len(T),), 0.5)).status == "undecided"


def test_plain_numbers_are_told_to_become_a_curve(user_mistakes):
    for function in (fit_decay, envelope):
        with pytest.raises(
            ArgumentError, match=r"curve must be a MemoryCurve .*MemoryCurve\(time=.* got a float64 array"
        ):
            function(np.ones(3))


def test_infinite_curves_are_undecided_or_growing():
    jump = fit(np.where(T < 5, 1.0, np.inf))
    assert jump.status == "undecided"
    assert "infinite from t = 5" in jump.explanation
    with pytest.raises(UndecidedError, match="expected a finite curve"):
        jump.horizon(0.5)
    assert fit(np.where(T < 500, np.exp(0.1 * T), np.inf)).law == "non-decaying"


@settings(max_examples=15)
@given(scale=st.floats(1e-100, 1e100), dt=st.floats(1e-3, 1e3), rate=st.floats(0.02, 1.0))
def test_verdict_does_not_depend_on_the_units(scale, dt, rate):
    found = fit(scale * np.exp(-rate * T), T * dt)
    assert found.law == "exponential"
    assert found.rate == pytest.approx(rate / dt, rel=1e-5)


def test_fraction_must_be_a_fraction():
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        fit(np.exp(-T)).horizon(1.0)
