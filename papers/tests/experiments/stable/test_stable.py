"""What the experiments of StableSSM say at the quick preset, and their own parts."""

import math

import pytest
import torch

from holdfast import laws, parameterizations
from holdfast.nn._s4d import initial_modes
from holdfast_papers.experiments.stable import appf, fig1, thm31, thm34
from holdfast_papers.experiments.stable._hippo import RelativeFrequencies, hippo_layer


def test_table_1_equals_autograd_and_best_alone_is_constant(claims):
    found = claims("stable-fig2")
    assert found["table 1"].status == found["best is constant, b = 1"].status == "met"
    assert found["best is constant, b = 0.5"].status == "not met"
    assert found["best is constant, b = 0.5"].numbers["largest / smallest, continuous"] == pytest.approx(1.0)


def test_moduli_bound_what_is_measured_and_direct_has_none(claims):
    found = claims("stable-def32", points=3)
    assert [claim.status for claim in found.values()] == ["met"] * 3 + ["not met"]
    assert found["discrete best, b = 0.5"].numbers["searched at beta = 0.001"] == math.inf


@pytest.mark.slow
def test_one_width_decides_nothing_and_s4_is_judged_by_what_moves(claims):
    found = claims(
        "stable-fig1", slow_widths=[16], draws=5, s4_widths=[24, 32, 40, 48], exact_doublings=9, exact_per_doubling=1
    )
    assert found["direct"].status == found["softplus"].status == "undecided"
    assert found["direct"].numbers["widths that approximate"] == 1
    for name in ("paper's measure, s4", "paper's measure, s4, relative frequencies"):
        assert found[name].numbers["widths that approximate"] == 4
    assert found["better stability"].numbers["radius of S4, decay rates alone / softplus"] > 0


def test_the_two_models_are_one_functional_before_they_are_perturbed():
    x = fig1._inputs(50, 3)
    y = fig1._targets(x)
    law = laws.PowerLaw(1.1)
    k = torch.arange(1.0, 51.0, dtype=torch.float64)
    # a constant gives the integral of rho up to the end of the step; FFT rounding of sums near 3
    torch.testing.assert_close(y[0, :, 0], law.integral(torch.zeros_like(k), k), rtol=0, atol=1e-13)
    with torch.no_grad():
        direct, softplus = (fig1._model(name, 6, 50, fig1.RECURRENT)(x)[0] for name in fig1.EXACT)
    torch.testing.assert_close(softplus, direct, rtol=0, atol=1e-12)


def test_s4_has_the_modes_of_hippo_follows_the_kernel_and_moves_its_frequencies_by_a_share():
    layer = hippo_layer(fig1._kernel(100), 32, 0.01)
    torch.testing.assert_close(layer.eigenvalues()[0], initial_modes("legs", 16))
    x = torch.zeros(1, 100, 1, dtype=torch.float64)
    x[0, 0] = 1
    with torch.no_grad():
        response = layer(x)[0][0, :, 0]
        # 9% of the L1 norm by ridge regression; a width takes part up to 12.5%
        assert float((response - fig1._kernel(100)).abs().sum() / fig1._kernel(100).sum()) < 0.1
        relative = RelativeFrequencies(layer)
        torch.testing.assert_close(relative(x)[0, :, 0], response)
        relative.shift.fill_(0.1)
        moved = relative(x)
        layer.frequency.mul_(1.1)
        torch.testing.assert_close(moved, layer(x)[0])


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
