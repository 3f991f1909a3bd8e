"""assess_stability: radii, slopes and verdicts of curves whose answer is known."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast import ExponentialSum, fit_exponential_sum, laws
from holdfast.errors import ArgumentError
from holdfast.nn import DiagonalSSM
from holdfast.stability import (
    Metric,
    PerturbationCurve,
    assess_stability,
    kernel_perturbation_error,
    perturbation_error,
)
from holdfast.stability.perturbation._curve import Radius, stability_radius

RADII = np.geomspace(1e-5, 1, 51)
WIDTHS = (4, 8, 16, 32)


def family(power, *, centre=lambda m: 0.1, noise=0.0, radii=RADII, widths=WIDTHS, norm=1.0):
    """E_m(beta) = E_m(0) + beta m^-power: at a quarter of the norm 1 exactly at beta = (0.25 - E_m(0)) m^power."""
    generator = np.random.default_rng(0)
    curves = {}
    for m in widths:
        slope = m**-power * math.exp(noise * generator.standard_normal())
        curves[m] = PerturbationCurve(radii, centre(m) + radii * slope, centre=centre(m), target_norm=norm)
    return curves


@pytest.mark.parametrize("power", [-2.0, -1.0, 0.0, 0.3])
def test_slope_and_radii_are_those_of_the_family(power):
    v = assess_stability(family(power, radii=np.geomspace(1e-5, 10, 61)))
    assert v.verdict == ("unstable" if power < 0 else "stable")
    # the curve bends between two radii that are 26% apart, and is interpolated in log beta
    np.testing.assert_allclose(v.radii, [0.15 * m**power for m in WIDTHS], rtol=0.02)
    assert v.slope == pytest.approx(power, abs=0.02)
    assert v.interval[0] <= v.slope <= v.interval[1] < v.interval[0] + 0.1
    assert v.censored == ("",) * 4 and v.approximates == (True,) * 4 and v.failed == []


def test_the_level_is_a_share_of_the_targets_norm_and_not_of_the_models_errors():
    """One poor narrow model moves no radius; it takes no part."""
    curves = family(-1.0, widths=(8, 16, 32, 64))
    poor = family(-1.0, widths=(4,), centre=lambda m: 0.126)
    alone, with_poor = assess_stability(curves), assess_stability(poor | curves)
    np.testing.assert_array_equal(with_poor.radii[1:], alone.radii)
    assert with_poor.slope == alone.slope and with_poor.verdict == "unstable"
    assert with_poor.failed == [4] and "m = 4 by 0.13" in with_poor.explanation
    np.testing.assert_allclose(alone.levels, 0.25)
    # half of the level is exactly allowed
    assert assess_stability(family(0.0, centre=lambda m: 0.125)).verdict == "stable"


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_models_that_give_0_or_half_the_target_are_no_approximation(share):
    curves = family(0.0, centre=lambda m: share)
    v = assess_stability(curves)
    assert v.verdict == "no approximation" and v.failed == list(WIDTHS)
    assert "0 of 4 widths" in v.explanation and f"m = 32 by {share:.2g}" in v.explanation
    assert math.isnan(v.slope) and all(math.isnan(end) for end in v.interval)
    # another level is a choice of the caller, but no level lets the zero model pass
    assert assess_stability(curves, level=0.99).verdict == "no approximation"


def test_curves_carry_the_norm_of_their_target_which_is_the_error_of_a_model_that_gives_0():
    law = laws.PowerLaw(1.5)
    assert kernel_perturbation_error(ExponentialSum(np.ones(1), np.zeros(1)), law, [0.01]).target_norm == law.norm
    half = kernel_perturbation_error(ExponentialSum(np.full(1, 0.2), np.full(1, 0.5)), laws.Exponential(0.2), [1e-3])
    assert half.centre / half.target_norm == pytest.approx(0.5)
    x = torch.randn(2, 20, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = DiagonalSSM(1, 2).double()
    with torch.no_grad():
        model.C.zero_()
    for metric, norm in (("sup", x.abs().max()), ("mean-square", x.square().mean())):
        found = perturbation_error(model, x, x, [1e-3], metric=metric, draws=1)
        assert found.target_norm == pytest.approx(float(norm)) == pytest.approx(found.centre)
    assert perturbation_error(model, x, x, [1e-3], metric=Metric(relative=True), draws=1).target_norm == pytest.approx(
        1.0
    )


def test_a_better_centre_alone_is_not_taken_for_instability():
    """E_m(0) falls like 1/m and E_m(beta) - E_m(0) does not depend on m: radii grow to the level's."""
    v = assess_stability(family(0.0, centre=lambda m: 0.4 / m, radii=np.geomspace(1e-3, 10, 41)))
    assert v.verdict == "stable" and v.slope > 0


def test_fewer_than_four_widths_are_no_verdict():
    for widths in ((8,), (8, 16), (8, 16, 32)):
        v = assess_stability(family(-2.0, widths=widths))
        assert v.verdict == "no approximation" and v.failed == [] and f"{len(widths)} of {len(widths)}" in v.explanation


@pytest.mark.parametrize(
    ("radii", "power", "censored", "verdict"),
    [
        # all radii outside of the grid: nothing is known of the slope
        (np.geomspace(1e-6, 1e-5, 9), -2.0, ("at least",) * 4, "inconclusive"),
        (np.geomspace(0.5, 1, 9), -2.0, ("at most",) * 4, "inconclusive"),
        # wide ones below the grid fall faster still, narrow ones beyond it began higher still
        (np.geomspace(3e-4, 1e-1, 25), -2.0, ("", "", "", "at most"), "unstable"),
        (np.geomspace(1e-5, 5e-3, 25), -2.0, ("at least", "", "", ""), "unstable"),
        (np.geomspace(1e-3, 3, 25), 1.0, ("", "", "", "at least"), "stable"),
    ],
)
def test_radii_outside_of_the_tested_ones_decide_only_what_they_cannot_turn_over(radii, power, censored, verdict):
    v = assess_stability(family(power, radii=radii))
    assert v.censored == censored and v.verdict == verdict
    for kind, words in (("at least", "beyond the largest"), ("at most", "below the smallest")):
        assert (words in v.explanation) == (kind in censored)
    if verdict == "inconclusive":
        assert f"test {'larger' if 'at least' in censored else 'smaller'} ones" in v.explanation


def test_scattered_radii_are_inconclusive():
    v = assess_stability(family(-0.2, noise=1.0))
    assert v.verdict == "inconclusive"
    assert "add widths" in v.explanation


def test_interval_is_students_and_narrows_with_the_confidence():
    noisy = family(-2.0, noise=0.1)
    wide, narrow = (assess_stability(noisy, confidence=c) for c in (0.95, 0.5))
    assert wide.interval[0] < narrow.interval[0] < narrow.slope < narrow.interval[1] < wide.interval[1]
    # least squares by another route
    slope = np.polyfit(np.log(wide.widths), np.log(wide.radii), 1)[0]
    assert wide.slope == pytest.approx(slope, rel=1e-10)


def test_a_horizon_held_fixed_is_no_stability_and_one_that_grows_with_m_is_none_of_its_reasons():
    def verdict(horizon):
        return assess_stability({m: replace(c, held_by_horizon=horizon(m)) for m, c in family(0.0).items()})

    fixed = verdict(lambda m: 1e3)
    assert fixed.verdict == "inconclusive" and fixed.held == (True,) * 4
    assert "the horizon of the fit holds the slowest rate of m = 4, 8, 16, 32" in fixed.explanation
    grows = verdict(lambda m: float(m**2))
    assert grows.verdict == "stable" and grows.held == (False,) * 4


def test_a_curve_says_where_the_horizon_of_its_fit_holds_the_slowest_rate():
    rho = laws.PowerLaw(1.5)
    held = fit_exponential_sum(rho, 8, horizon=1e3)
    assert held.held_by_horizon == 1e3 and "held by the horizon 1000" in held.notes[-1]
    assert kernel_perturbation_error(held, rho, [1e-3]).held_by_horizon == 1e3
    # an exponential's rate is its own, and given rates are the caller's
    for free in (
        fit_exponential_sum(laws.Exponential(0.5), 3, horizon=1e3),
        fit_exponential_sum(rho, rates=[1e-5, 1.0]),
    ):
        assert free.held_by_horizon is None


def test_a_diverged_error_ends_the_radius_at_the_last_finite_one():
    curve = PerturbationCurve(np.array([0.1, 0.2, 0.4]), np.array([1.0, 1.5, math.inf]), centre=1.0)
    assert stability_radius(curve, 2.0) == Radius(0.2, 0.4)
    assert stability_radius(curve, 1.25).value == pytest.approx(0.1 * 2**0.5)
    at_once = PerturbationCurve(np.array([0.0, 0.2]), np.array([1.0, math.nan]), centre=1.0)
    assert stability_radius(at_once, 2.0) == Radius(0.2, 0.2, "at most")


def test_crossings_are_where_the_wider_model_becomes_the_worse_one():
    radii = np.geomspace(1e-3, 1, 61)
    a = PerturbationCurve(radii=radii, errors=1 + radii, centre=1.0)
    b = PerturbationCurve(radii=radii, errors=0.5 + 11 * radii, centre=0.5)
    (crossing,) = assess_stability({4: a, 8: b}, target_norm=1.0).crossings
    assert (crossing.narrow, crossing.wide) == (4, 8)
    assert crossing.radius == pytest.approx(0.05, rel=0.01)  # 1 + x = 0.5 + 11 x


def test_an_unperturbed_model_that_is_not_finite_does_not_approximate():
    broken = PerturbationCurve(radii=RADII, errors=np.full(51, np.inf), centre=math.inf, target_norm=1.0)
    v = assess_stability(family(0.0) | {64: broken})
    assert v.verdict == "stable" and v.failed == [64]


def test_verdict_is_plain_json():
    v = assess_stability(family(-2.0, widths=(8, 16)))
    plain = json.loads(json.dumps(v.to_dict(), allow_nan=False))
    assert plain["verdict"] == "no approximation"
    assert plain["interval"] == [None, None] and plain["slope"] is None
    assert plain["approximates"] == [True, True]


@pytest.mark.parametrize(
    ("curves", "how", "text"),
    [
        ({}, {}, "got none"),
        (family(0.0, norm=None), {}, "pass target_norm="),
        (family(0.0), {"target_norm": 0.0}, "above 0"),
        (family(0.0), {"target_norm": math.inf}, "finite"),
        (family(0.0), {"level": 1.0}, "level < 1"),
        (family(0.0), {"level": 0.0}, "0 < level"),
        (family(0.0), {"confidence": 1.0}, "confidence < 1"),
        ({0: family(0.0)[4], 4: family(0.0)[4]}, {}, "above 0"),
        (family(0.0, radii=np.zeros(1)), {}, "radius above 0"),
    ],
)
def test_mistakes_are_named(curves, how, text):
    with pytest.raises(ArgumentError, match=text):
        assess_stability(curves, **how)


def test_radii_that_snap_to_the_tested_grid_leave_their_brackets_in_the_interval():
    """Models diverge at 0.3 / m: on a grid of doublings the radii lie on a line to 1e-15, and the truth is a bracket."""
    radii = 2.0 ** np.arange(-12, 1)
    curves, truth = {}, {}
    for m in (4, 8, 16, 32):
        truth[m] = 0.3 / m
        errors = np.where(radii < truth[m], 0.1, np.inf)
        curves[m] = PerturbationCurve(radii=radii, errors=errors, centre=0.1)
    v = assess_stability(curves, target_norm=1.0)
    np.testing.assert_array_less(v.radii, [*truth.values()])
    np.testing.assert_array_less([*truth.values()], v.upper)
    # brute force over the ends of all brackets
    slopes = [
        np.polyfit(np.log(v.widths), np.log(np.where(ends, v.upper, v.radii)), 1)[0]
        for ends in itertools.product((False, True), repeat=4)
    ]
    assert v.interval == pytest.approx((min(slopes), max(slopes)), abs=1e-9)
    assert v.slope == pytest.approx(-1) and v.verdict == "unstable"
    assert v.interval[1] - v.interval[0] == pytest.approx(0.8)
