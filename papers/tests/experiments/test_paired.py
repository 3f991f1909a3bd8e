"""Differences over seeds decide claims of order and equality."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from holdfast_papers.experiments._paired import equal, larger, paired, smaller, together

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
