"""Families of exponential sums, as several experiments share them."""

import numpy as np

from holdfast.experiments import _sums
from holdfast.stability import PerturbationCurve


def test_a_rise_is_found_where_a_wider_model_is_worse_and_only_up_to_the_given_radius():
    radii = np.array([0.1, 1.0])
    curves = {4: PerturbationCurve(radii, np.array([2.0, 2.0])), 8: PerturbationCurve(radii, np.array([1.0, 6.0]))}
    assert _sums.rises(curves, 0.5) == 0.5
    assert _sums.rises(curves, 1.0) == 3.0
