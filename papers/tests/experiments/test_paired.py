"""Differences over seeds decide claims of order and equality."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel

from holdfast_papers.experiments._paired import equal, larger, paired, smaller, steps, together, unpaired

A, B = [1.0, 1.2, 0.9, 1.1], [1.5, 1.9, 1.3, 1.8]


def test_the_interval_is_that_of_students_paired_test():
    found = paired(A, B)
    test = ttest_rel(A, B)
    low, high = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    assert found.mean == pytest.approx(np.mean(A) - np.mean(B))
    # at three seeds the interval is 4.30 standard errors wide on each side
    three = paired([1.0, 2.0, 4.0], [0.0, 0.0, 0.0])
    assert (three.high - three.mean) / (np.std([1, 2, 4], ddof=1) / math.sqrt(3)) == pytest.approx(4.3027, abs=1e-4)


def test_equal_arms_and_few_seeds_decide_nothing():
    assert paired([1.0] * 5, [1.0] * 5).below() is None
    assert smaller({"a": [1.0] * 5, "b": [1.0] * 5}, "a", ["b"]).holds is None
    assert smaller({"a": [1.0, 1.0], "b": [9.0, 9.0]}, "a", ["b"]).holds is None
    assert together([]) is None


def test_an_order_is_met_not_met_or_open_by_the_side_of_the_interval():
    arms = {"a": A, "b": B, "c": [1.0, 1.3, 0.8, 1.2]}
    assert smaller(arms, "a", ["b"]).holds is True
    assert smaller(arms, "b", ["a"]).holds is False
    assert smaller(arms, "a", ["b", "c"]).holds is None
    assert smaller(arms, "a", ["b"], by=1.0).holds is False
    assert smaller(arms, "a", ["b"]).unless("no model learns.").holds is None
    assert smaller(arms, "a", ["b"]).unless("").holds is True
    turned = larger(arms, "b", ["a"])
    assert turned.holds is True
    assert turned.numbers["b less a"] == pytest.approx(np.mean(B) - np.mean(A))
    assert turned.numbers["b less a, lower end"] > 0


def test_factors_are_told_as_ratios():
    claim = smaller({"a": [1.0, 2.0, 4.0], "b": [10.0, 20.0, 40.0]}, "a", ["b"], factor=True)
    assert claim.holds is True
    assert claim.numbers["a / b"] == pytest.approx(0.1)


def test_runs_that_diverged_count_against_their_arm_and_never_for_it():
    inf = math.inf
    assert paired([1.0, 2.0, 3.0], [inf] * 3).below() is True
    assert paired([inf] * 3, [1.0, 2.0, 3.0]).below() is False
    assert paired([inf] * 3, [inf] * 3).below() is None
    mixed = paired([1.0, 1.0, 1.0], [2.0, 2.1, inf])
    assert mixed.mean == pytest.approx(-np.mean([1.0, 1.1, 1.1])) and mixed.below() is True
    # one run of ours diverged: the interval cannot lie on its good side
    assert paired([1.0, 1.0, inf], [2.0, 2.1, 2.2]).below() is not True


def test_an_equality_needs_the_whole_interval_inside_the_margin():
    near = {"a": [0.90, 0.91, 0.92], "b": [0.901, 0.912, 0.919]}
    assert equal(near, 0.01).holds is True
    assert equal(near, 0.001).holds is None
    assert equal({"a": [0.9, 0.91, 0.92], "b": [0.8, 0.81, 0.82]}, 0.01).holds is False


def test_every_step_has_to_fall_by_its_own_interval():
    high, low = [4.0, 4.2, 3.9, 4.1], [2.0, 2.3, 1.9, 2.0]
    assert steps([(high, low)]).holds is True
    assert steps([(high, low), (low, high)]).holds is False
    # equal levels, which a slack of a few percent would pass, leave it open
    level = steps([(high, low), (low, [2.01, 2.29, 1.91, 1.99])], factor=True)
    assert level.holds is None
    assert [level.numbers[k] for k in ("steps", "steps that fall", "steps that rise", "steps left open")] == [
        2,
        1,
        0,
        1,
    ]
    assert level.numbers["weakest step, after / before"] == pytest.approx(1.0, abs=0.01)
    assert "0 of 2 steps rise and 1 are undecided" in level.why
    assert steps([]).holds is None
    # an infinite condition number that becomes finite in every draw falls
    assert steps([([math.inf] * 4, low)]).holds is True


def test_arms_that_nothing_pairs_have_welchs_interval():
    found = unpaired(np.exp(A), np.exp([*B, 2.0]), factor=True)
    low, high = ttest_ind(A, [*B, 2.0], equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    assert unpaired(A, [1.0]).below() is None
