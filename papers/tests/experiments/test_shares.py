"""Shares and slopes decide a claim by their whole interval."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest, linregress, t

from holdfast_papers.experiments._shares import exponent, share


def test_a_share_has_the_interval_of_clopper_and_pearson():
    found = share([True] * 14 + [False] * 2)
    wanted = binomtest(14, 16).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-9)
    assert found.numbers("cells") == {"share": 0.875, "lower end": found.low, "upper end": found.high, "cells": 16.0}


def test_a_share_is_met_only_by_its_whole_interval_and_not_met_by_itself():
    near = share([True] * 78 + [False] * 3)  # 96%, interval 90% to 99%
    assert near.part > 0.95 and near.at_least(0.95) is None
    assert near.at_least(0.85) is True and near.at_most(0.85) is False
    assert share([True] * 44 + [False] * 12).at_least(0.8) is False  # 79%, interval 66% to 88%
    none = share([False] * 45)
    assert (none.low, none.at_most(0.2), none.at_least(0.8)) == (0.0, True, False)
    assert share([]).at_least(0.5) is None and share([]).at_most(0.5) is None
    assert share([True] * 5).high == 1.0


def test_an_exponent_has_students_interval_and_two_points_decide_nothing():
    x = np.array([2.0, 4.0, 8.0, 16.0])
    y = 3 * x**-1.5 * np.exp([0.1, -0.05, 0.02, -0.07])
    found, wanted = exponent(x, y), linregress(np.log(x), np.log(y))
    half = t.ppf(0.975, 2) * wanted.stderr
    assert found.value == pytest.approx(wanted.slope, rel=1e-12)
    assert (found.low, found.high) == pytest.approx((wanted.slope - half, wanted.slope + half), rel=1e-9)
    assert found.below(-1.0) is True and found.above(-1.0) is False and found.above(-1.5) is None
    two = exponent(x[:2], y[:2])
    assert two.low == -math.inf and two.below(10.0) is None
