"""What the experiments of "Inverse Approximation Theory" say at the quick preset, and their own parts."""

import numpy as np
import pytest
import torch

from holdfast import laws
from holdfast_papers.experiments.iat import appc, thma3


@pytest.mark.slow
def test_decay_rates_agree_between_probes(claims):
    found = claims("iat-fig10", repeats=3)
    assert set(found) == {f"rates, {name}" for name in ("RNN", "GRU", "LSTM", "S4")}
    for claim in found.values():  # three networks may leave the interval wider than the margin
        assert claim.status != "not met" and 0.8 < claim.numbers["heaviside / impulse"] < 1.25


def test_grus_decay_locally_where_their_linearisation_is_hurwitz(claims):
    found = claims("iat-appj")
    assert found["hurwitz"].status == "met" and 0 < found["hurwitz"].numbers["share Hurwitz"] < 1


def test_some_tanh_networks_never_forget_and_the_corners_are_saddles(conclude):
    result = conclude("iat-fig11", grid=7)
    found = {claim.name: claim for claim in result.claims}
    assert found["random"].status == found["two-dimensional"].status == found["periodic"].status == "met"
    assert found["attractors"].status == "not met" and "saddles" in found["attractors"].explanation
    # linearized by hand at (1, 1): -2 v_i (W v)_i = -4 and 14
    assert found["attractors"].numbers["eigenvalue 2 at (1, 1)"] == pytest.approx(14.0, abs=1e-12)
    orbit = next(la for la in result.page.figures[1].panels[0].layers if la.label == "periodic orbit")
    assert np.abs(orbit.x).max() < 1 and np.abs(orbit.y).max() < 1


# of the quick preset, less of each; (t+1)^-1.1, which needs wide models and the longest units, has one width and no verdict
LESS = {
    "exact_smallest": 1e-3, "exact_doublings": 9, "exact_per_doubling": 1, "widths": [6, 8, 11, 15], "slow_widths": [16],
    "draws": 2, "sampled_widths": [2, 4, 6, 14],
}  # fmt: skip


def test_exponential_memory_is_stable_polynomial_memory_is_not_and_least_squares_has_large_weights(claims, met):
    found = claims("iat-fig1", **LESS)
    assert met(found, "exponential", "polynomial, all weights")
    power = found["polynomial"].numbers
    assert power["(t+1)^-1.5: slope, upper end"] < -0.2 and power["(t+1)^-1.1: widths that approximate"] == 1
    # at 1 / m^2 the slowest mode stops decaying; its time constant has doubled at half of that
    assert 0.5 / 15**2 <= power["(t+1)^-1.5: radius at m = 15"] <= 1 / 15**2
    assert found["polynomial"].status == "undecided" and "no approximation" in found["polynomial"].explanation
    assert (
        found["least squares"].status == "undecided"
        and "does not state the rates" in found["least squares"].explanation
    )
    assert found["least squares"].numbers["largest weight, (t+1)^-1.1"] > 1e6


@pytest.mark.slow
def test_exp_and_softplus_are_stable_on_polynomial_memory_where_the_recurrence_alone_moves(claims, met):
    found = claims("iat-fig4", **LESS)
    assert met(found, "continuous")
    for name in ("exp", "softplus"):
        assert found[name].numbers["(t+1)^-1.5: slope, lower end"] > -0.2
        assert found[f"{name}, all weights"].status == "not met"
    assert "perturbed alone they give radii of" in found["paper's measure"].explanation


def test_rescaling_is_stable_on_its_own_target_alone(claims, met):
    assert met(claims("iat-appc"))


def test_the_rescaled_network_holds_the_first_terms_of_the_target():
    t = torch.tensor([0.0, 1.0, 30.0], dtype=torch.float64).reshape(1, -1, 1)
    for power in (1, 2):
        expected = laws.ReciprocalSum(power, terms=8)(t)
        for rescaled in (True, False):
            # a sum of eight numbers below 1
            torch.testing.assert_close(appc.Rescaled(8, power, rescaled)(t), expected, rtol=0, atol=1e-15)
    assert appc.Rescaled(8, 1, True).w.tolist() == [-1.0] * 8


def test_the_order_of_convergence_is_at_least_the_smoothness(claims, met):
    assert met(claims("iat-thma3"))


def test_the_projection_on_exponentials_equals_its_closed_form():
    beta = 0.5
    # rho = s^2: against c s the best c is 1/2, and the integral of |s - 1/2| over (0, 1) is 1/4; s^2 itself is a mode
    rho = laws.Exponential(2 * beta)
    # Gauss points on panels: the kink at s = 1/2 lies between two panels
    assert thma3._projected(rho, beta, 1, 3200) == pytest.approx(0.25 / beta, rel=1e-12)
    assert thma3._projected(rho, beta, 2, 3200) == pytest.approx(0.0, abs=1e-13)


def test_decaying_uniformly_decaying_and_fading_memory_are_three_things(claims, met):
    found = claims("iat-def32", span=40.0)
    assert met(found, "uniform", "long memory, uniformly", "continuity", "decaying, not fading", "fading, not decaying")
    assert found["remark 3.3"].status == "not met"


def test_the_sobolev_norm_gives_the_same_answer_as_the_sup_norm(claims, met):
    found = claims("iat-def37", points=24)
    assert met(found, "larger", "direct, sup", "direct, sobolev")
    # 24 radii bracket those of best too coarsely to exclude a slope of -0.2
    assert all(found[f"best, {norm}"].status != "not met" for norm in ("sup", "sobolev"))


def test_tanh_and_hardtanh_are_activations_of_the_theorem(claims, met):
    found = claims("iat-def38")
    assert met(found, "tanh", "hardtanh") and found["others"].status == "not met"


def test_the_identity_answers_a_power_law_and_has_no_memory(claims, met):
    assert met(claims("iat-apph"))
