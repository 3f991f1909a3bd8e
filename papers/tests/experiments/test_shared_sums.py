"""Families of exponential sums, as several experiments share them."""

from types import SimpleNamespace

import numpy as np

from holdfast.stability import PerturbationCurve
from holdfast_papers.experiments import _sums


def test_a_rise_is_found_where_a_wider_model_is_worse_and_only_up_to_the_given_radius():
    radii = np.array([0.1, 1.0])
    curves = {4: PerturbationCurve(radii, np.array([2.0, 2.0])), 8: PerturbationCurve(radii, np.array([1.0, 6.0]))}
    assert _sums.rises(curves, 0.5) == 0.5
    assert _sums.rises(curves, 1.0) == 3.0


def test_a_claim_is_open_unless_every_verdict_is_expected_or_one_is_the_opposite():
    stable, unstable, open_, none = (
        SimpleNamespace(verdict=v) for v in ("stable", "unstable", "inconclusive", "no approximation")
    )
    assert _sums.decided((stable, "stable"), (unstable, "unstable")) is True
    assert _sums.decided((stable, "unstable"), (none, "stable")) is False
    assert _sums.decided((stable, "stable"), (open_, "stable")) is None
    assert _sums.decided((none, "stable")) is None


def test_rates_over_ten_decades_approximate_the_slow_power_law_from_16_modes_on():
    name = "(t+1)^-1.1"
    law = _sums.TARGETS[name]
    shares = [_sums.bounded_sum(law, m, _sums.SLOWEST[name]).l1_error / law.norm for m in (12, 16)]
    assert shares[1] <= 0.125 < shares[0]
