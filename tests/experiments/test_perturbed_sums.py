"""Experiments on perturbed sums of exponentials, bounds and rates: what they say at the quick preset, and their own parts."""

import numpy as np
import pytest
import torch

from holdfast import experiments, laws
from holdfast.experiments import _sums
from holdfast.experiments.iat import appc, thma3
from holdfast.experiments.stable import fig1
from holdfast.stability import PerturbationCurve


def claims(id, **changes):
    result = experiments.run(id, "quick", **changes)
    assert all(claim.explanation for claim in result.claims if claim.status != "met")
    assert all(figure.caption for figure in result.page.figures)
    return {claim.name: claim for claim in result.claims}


def statuses(id, **changes):
    return {name: claim.status for name, claim in claims(id, **changes).items()}


def test_exponential_memory_is_stable_polynomial_memory_is_not_and_least_squares_has_large_weights():
    found = claims("iat-fig1", sampled_widths=[2, 6, 14])
    assert found["exponential"].status == found["polynomial"].status == "met"
    assert found["least squares"].status == "not met"
    assert found["least squares"].numbers["largest weight, (t+1)^-1.1"] > 1e6
    # the slowest rate is 1/m^2, and the radius is it or the last one tested before it, half as large at most
    assert 0.5 / 16**2 <= found["polynomial"].numbers["(t+1)^-1.1: radius at m = 16"] <= 1 / 16**2


def test_exp_and_softplus_are_stable_on_polynomial_memory_where_the_recurrence_alone_moves():
    found = statuses("iat-fig4")
    assert {found[name] for name in ("exp", "softplus", "continuous", "sampled")} == {"met"}
    assert found["read-out too"] == "not met"


def test_rescaling_is_stable_on_its_own_target_alone():
    assert set(statuses("iat-appc", widths=[4, 8, 16]).values()) == {"met"}


def test_the_rescaled_network_holds_the_first_terms_of_the_target():
    t = torch.tensor([0.0, 1.0, 30.0], dtype=torch.float64).reshape(1, -1, 1)
    for power in (1, 2):
        expected = laws.ReciprocalSum(power, terms=8)(t)
        for rescaled in (True, False):
            # a sum of eight numbers below 1
            torch.testing.assert_close(appc.Rescaled(8, power, rescaled)(t), expected, rtol=0, atol=1e-15)
    assert appc.Rescaled(8, 1, True).w.tolist() == [-1.0] * 8


def test_the_order_of_convergence_is_at_least_the_smoothness():
    assert set(statuses("iat-thma3").values()) == {"met"}


def test_the_projection_on_exponentials_equals_its_closed_form():
    beta = 0.5
    # rho = s^2: against c s the best c is 1/2, and the integral of |s - 1/2| over (0, 1) is 1/4; s^2 itself is a mode
    rho = laws.Exponential(2 * beta)
    # Gauss points on panels: the kink at s = 1/2 lies between two panels
    assert thma3._projected(rho, beta, 1, 3200) == pytest.approx(0.25 / beta, rel=1e-12)
    assert thma3._projected(rho, beta, 2, 3200) == pytest.approx(0.0, abs=1e-13)


def test_direct_is_unstable_softplus_and_s4_are_stable():
    found = statuses("stable-fig1")
    assert {found[name] for name in fig1.MODELS} == {"met"}
    assert found["all weights"] == found["better stability"] == "not met"


def test_the_three_models_are_one_functional_before_they_are_perturbed():
    x = fig1._inputs(50, 3)
    y = fig1._targets(x)
    law = laws.PowerLaw(1.1)
    k = torch.arange(1.0, 51.0, dtype=torch.float64)
    # a constant gives the integral of rho up to the end of the step; FFT rounding of sums near 3
    torch.testing.assert_close(y[0, :, 0], law.integral(torch.zeros_like(k), k), rtol=0, atol=1e-13)
    found = _sums.bounded_sum(law, 6)
    with torch.no_grad():
        outputs = [fig1._model(name, found)(x)[0] for name in fig1.MODELS]
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], rtol=0, atol=1e-12)


def test_measured_memory_stays_below_the_bound_and_a_power_law_has_none():
    assert set(statuses("stable-thm31", models=2, ends=9).values()) == {"met"}


def test_an_mlp_is_two_state_space_layers():
    assert set(statuses("stable-fig7").values()) == {"met"}


def test_a_gru_decays_locally_where_its_linearisation_is_hurwitz():
    assert claims("iat-appj")["hurwitz"].status == "met"


def test_a_rise_is_found_where_a_wider_model_is_worse_and_only_up_to_the_given_radius():
    radii = np.array([0.1, 1.0])
    curves = {4: PerturbationCurve(radii, np.array([2.0, 2.0])), 8: PerturbationCurve(radii, np.array([1.0, 6.0]))}
    assert _sums.rises(curves, 0.5) == 0.5
    assert _sums.rises(curves, 1.0) == 3.0
