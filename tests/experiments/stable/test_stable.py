"""What the experiments of StableSSM say at the quick preset, and their own parts."""

import math

import pytest
import torch

from holdfast import laws, parameterizations
from holdfast.experiments import _sums
from holdfast.experiments.stable import appf, fig1, thm31, thm34


def test_table_1_equals_autograd_and_best_alone_is_constant(claims):
    found = claims("stable-fig2")
    assert found["table 1"].status == found["best is constant, b = 1"].status == "met"
    assert found["best is constant, b = 0.5"].status == "not met"
    assert found["best is constant, b = 0.5"].numbers["largest / smallest, continuous"] == pytest.approx(1.0)


def test_moduli_bound_what_is_measured_and_direct_has_none(claims):
    found = claims("stable-def32", points=3)
    assert [claim.status for claim in found.values()] == ["met"] * 3 + ["not met"]
    assert found["discrete best, b = 0.5"].numbers["searched at beta = 0.001"] == math.inf


def test_direct_is_unstable_softplus_and_s4_are_stable(claims, met):
    found = claims("stable-fig1")
    assert met(found, *fig1.MODELS)
    assert found["all weights"].status == found["better stability"].status == "not met"


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


def test_measured_memory_stays_below_the_bound_and_a_power_law_has_none(claims, met):
    assert met(claims("stable-thm31", models=2, ends=9))


def test_the_least_weights_of_a_mode_are_the_mode_itself():
    """e^-t on [0, 5] within a quarter of itself: 3/4 of the mode at the slowest rate allowed, which is its own."""
    assert thm31._least_weights(laws.Exponential(1.0), 1.0, 5.0) == pytest.approx(math.sqrt(0.75), rel=1e-6)


def test_an_mlp_is_two_state_space_layers(claims, met):
    assert met(claims("stable-fig7"))


def test_perturbation_errors_stay_below_the_bound_of_the_theorem(claims, met):
    found = claims("stable-thm33", points=3)
    assert met(found, "bound", "bounded sums", "direct")
    assert found["any approximation"].status == "not met"


def test_gradients_of_every_loss_stay_below_their_bounds(claims, met):
    found = claims("stable-thm34", models=2, training=2)
    assert met(found, *thm34.LOSSES)
    assert found["as printed"].status == "not met"
    assert found["as printed"].numbers["largest gradient / bound, softplus"] <= 1 + thm34.ROUNDING


def test_gradient_steps_converge_where_the_gradient_is_lipschitz_to_the_weight(claims, met):
    assert met(claims("stable-appf", starts=3, steps=1000))


def test_the_gradient_of_one_mode_is_that_of_its_loss_and_half_the_gradient_scale_for_slow_modes():
    f = parameterizations.get("exp")
    w = torch.tensor([-12.0, -3.0, 0.5], dtype=torch.float64, requires_grad=True)
    a, b = -f(w), appf.TARGET
    (expected,) = torch.autograd.grad((1 / (2 * a) + 1 / (2 * b) - 2 / (a + b)).sum(), w)
    torch.testing.assert_close(appf._gradient(f, w.detach()), expected, rtol=1e-12, atol=0)
    # a = e^-12 against b = 0.1: 4 (a / (a + b))^2 is 2e-8
    assert float(expected[0].abs() / f.gradient_scale(w.detach())[0]) == pytest.approx(0.5, rel=1e-7)
