"""Radii by bisection of a searched sup."""

import math

import numpy as np
import pytest
import torch

from holdfast.stability.perturbation._curve import stability_radius
from holdfast_papers.experiments.base import Unit, Work
from holdfast_papers.experiments.iat import _students, _sup

CONFIG = {**_sup.SETTINGS, "dt": 0.1, "m": 3, "seed": 0, "draws": 4, "ascent": 3, "least_steps": 40, "sequences": 2}


def _curve_of(found, norm=1.0):
    return _sup._curve(Unit({"m": 1}, _sup._arrays("sup", found, 0.0, norm)), "sup")


@pytest.mark.parametrize("crossing", [2e-4, 0.03, 0.7])
def test_a_crossing_is_found_to_five_percent_also_where_errors_jump_to_infinity(crossing):
    for error in (lambda b: 0.25 * b / crossing, lambda b: 0.01 if b < crossing else math.inf):
        found = _sup.bisected(error, 0.25, 1e-5, 10.0)
        radius = stability_radius(_curve_of(found), 0.25)
        assert radius.value == pytest.approx(crossing, rel=0.05) and radius.upper / radius.value < 1.06
        assert len(found) <= 13


def test_radii_beyond_the_ends_are_told_as_such():
    assert stability_radius(_curve_of(_sup.bisected(lambda b: 0.0, 0.25, 1e-5, 10.0)), 0.25).censored == "at least"
    assert stability_radius(_curve_of(_sup.bisected(lambda b: 1.0, 0.25, 1e-5, 10.0)), 0.25).censored == "at most"


def test_the_horizon_grows_with_the_width():
    assert [_sup.horizon({**_sup.SETTINGS, "m": m}) for m in (4, 16, 32, 64)] == [400, 400, 800, 1600]


def test_a_killed_measurement_goes_on_with_the_points_that_it_had(tmp_path, monkeypatch):
    model = _students.student(CONFIG)
    with torch.no_grad():
        model.C.mul_(0.01)
    x, y = _sup.noise(CONFIG)
    with torch.no_grad():
        y = model(x)[0] + 1e-4 * y
    whole = _sup.measured(model, (x, y), CONFIG, Work(), scope="all")
    calls, real = [], _sup.perturbation_error

    def killed(*args, **how):
        calls.append(args[3])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **how)

    monkeypatch.setattr(_sup, "perturbation_error", killed)
    with pytest.raises(KeyboardInterrupt):
        _sup.measured(model, (x, y), CONFIG, Work(scratch=tmp_path), scope="all")
    again = _sup.measured(model, (x, y), CONFIG, Work(scratch=tmp_path), scope="all")
    assert len(calls) == len(whole["sup_radii"]) + 1
    for name in whole:
        np.testing.assert_array_equal(whole[name], again[name])


def test_a_model_that_does_not_approximate_is_not_searched(monkeypatch):
    monkeypatch.setattr(_sup, "perturbation_error", None)
    x, y = _sup.noise(CONFIG)
    found = _sup.measured(_students.student(CONFIG), (x, 1e-6 * y), CONFIG, Work(), scope="all")
    assert np.isinf(found["sup_errors"]).all() and found["sup_centre"] > 0


def test_the_seed_with_the_median_radius_stands_for_its_width():
    units = [
        Unit({"m": m, "seed": s}, _sup._arrays("sup", _sup.bisected(lambda b, r=r: b / r, 0.25, 1e-5, 10.0), 0.01, 1.0))
        for m in (4, 8, 16, 32)
        for s, r in enumerate((1.0 / m, 1.0, 100.0 / m))
    ]
    found = _sup.verdict([u for u in units if u.config["m"] > 0])
    # medians: 1, 1, 1, 1 (100 / m and 1 / m lie on either side)
    np.testing.assert_allclose(found.radii, 0.25, rtol=0.06)
    assert found.verdict == "stable"
