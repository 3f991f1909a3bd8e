"""assess_stability: radii, slopes and verdicts of curves whose answer is known."""

import json
import math

import numpy as np
import pytest

from holdfast.errors import ArgumentError
from holdfast.stability import PerturbationCurve, assess_stability
from holdfast.stability.verdict import stability_radius

RADII = np.geomspace(1e-5, 1, 51)
WIDTHS = (4, 8, 16, 32)


def family(power, *, centre=lambda m: 0.1, noise=0.0, radii=RADII, widths=WIDTHS):
    """E_m(beta) = E_m(0) (1 + beta m^-power / 0.05): twice E_m(0) exactly at beta = 0.05 m^power."""
    generator = np.random.default_rng(0)
    curves = {}
    for m in widths:
        bend = 0.05 * m**power * math.exp(noise * generator.standard_normal())
        curves[m] = PerturbationCurve(radii=radii, errors=centre(m) * (1 + radii / bend), centre=centre(m))
    return curves


@pytest.mark.parametrize("power", [-2.0, -1.0, 0.0, 0.3])
def test_slope_and_radii_are_those_of_the_family(power):
    v = assess_stability(family(power))
    assert v.verdict == ("unstable" if power < 0 else "stable")
    # the curve bends between two radii that are 26% apart, and is interpolated in log beta
    np.testing.assert_allclose(v.radii, [0.05 * m**power for m in WIDTHS], rtol=0.02)
    assert v.slope == pytest.approx(power, abs=0.02)
    assert v.interval[0] <= v.slope <= v.interval[1]
    assert v.interval[1] - v.interval[0] < 0.1
    assert v.censored == ("",) * 4


def test_a_better_centre_alone_is_not_taken_for_instability():
    """E_m(0) falls like 1/m and E_m(beta) - E_m(0) does not depend on m: the common level keeps its radius."""
    radii = np.geomspace(1e-3, 10, 41)
    curves = {m: PerturbationCurve(radii=radii, errors=1 / m + radii, centre=1 / m) for m in WIDTHS}
    v = assess_stability(curves)
    assert v.verdict == "stable"
    assert v.offset == pytest.approx(2 / 4)
    # a level relative to each E_m(0) would say otherwise; that is a choice of the caller
    assert assess_stability(curves, offset=0.0).verdict == "unstable"


def test_radii_beyond_the_tested_ones_are_censored_and_said_so():
    v = assess_stability(family(0.0, radii=np.geomspace(1e-4, 1e-2, 9)))
    assert v.censored == ("at least",) * 4
    assert v.verdict == "stable"
    assert "4 of 4 radii lie beyond the largest" in v.explanation
    below = assess_stability(family(0.0, radii=np.geomspace(0.1, 1, 9)))
    assert below.censored == ("at most",) * 4
    assert below.verdict == "inconclusive"
    assert "test smaller ones" in below.explanation


def test_scattered_radii_are_inconclusive():
    v = assess_stability(family(-0.2, noise=1.0))
    assert v.verdict == "inconclusive"
    assert "add widths" in v.explanation


def test_two_widths_that_shrink_do_not_decide():
    v = assess_stability(family(-2.0, widths=(8, 16)))
    assert v.verdict == "inconclusive"
    assert v.slope == pytest.approx(-2, abs=0.05)
    assert v.interval == (-math.inf, math.inf)


def test_interval_is_students_and_narrows_with_the_confidence():
    noisy = family(-2.0, noise=0.1)
    wide, narrow = (assess_stability(noisy, confidence=c) for c in (0.95, 0.5))
    assert wide.interval[0] < narrow.interval[0] < narrow.slope < narrow.interval[1] < wide.interval[1]
    # least squares by another route
    slope = np.polyfit(np.log(wide.widths), np.log(wide.radii), 1)[0]
    assert wide.slope == pytest.approx(slope, rel=1e-10)


def test_a_diverged_error_ends_the_radius_at_the_last_finite_one():
    curve = PerturbationCurve(np.array([0.1, 0.2, 0.4]), np.array([1.0, 1.5, math.inf]), centre=1.0)
    assert stability_radius(curve, 2.0) == (0.2, "")
    assert stability_radius(curve, 1.25) == (pytest.approx(0.1 * 2**0.5), "")
    at_once = PerturbationCurve(np.array([0.0, 0.2]), np.array([1.0, math.nan]), centre=1.0)
    assert stability_radius(at_once, 2.0) == (0.2, "at most")


def test_crossings_are_where_the_wider_model_becomes_the_worse_one():
    radii = np.geomspace(1e-3, 1, 61)
    a = PerturbationCurve(radii=radii, errors=1 + radii, centre=1.0)
    b = PerturbationCurve(radii=radii, errors=0.5 + 11 * radii, centre=0.5)
    (crossing,) = assess_stability({4: a, 8: b}).crossings
    assert (crossing.narrow, crossing.wide) == (4, 8)
    assert crossing.radius == pytest.approx(0.05, rel=0.01)  # 1 + x = 0.5 + 11 x


def test_an_unperturbed_model_that_is_not_finite_leaves_nothing_to_judge():
    broken = PerturbationCurve(radii=RADII, errors=np.full(51, np.inf), centre=math.inf)
    assert assess_stability(family(0.0) | {64: broken}).verdict == "inconclusive"


def test_verdict_is_plain_json():
    v = assess_stability(family(-2.0, widths=(8, 16)))
    plain = json.loads(json.dumps(v.as_dict(), allow_nan=False))
    assert plain["verdict"] == "inconclusive"
    assert plain["interval"] == [None, None]


@pytest.mark.parametrize(
    ("curves", "how", "text"),
    [
        (family(0.0, widths=(4,)), {}, "at least two widths"),
        (family(0.0), {"factor": 0.5}, "factor >= 1"),
        (family(0.0), {"confidence": 1.0}, "confidence < 1"),
        ({0: family(0.0)[4], 4: family(0.0)[4]}, {}, "above 0"),
    ],
)
def test_mistakes_are_named(curves, how, text):
    with pytest.raises(ArgumentError, match=text):
        assess_stability(curves, **how)
