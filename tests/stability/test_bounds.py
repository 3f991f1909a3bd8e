"""What StableSSM proves of errors (Thm 3.3) and gradients (Thm 3.4), against what is measured."""

import numpy as np
import pytest
import torch

from holdfast import laws, parameterizations
from holdfast.approximate import ExponentialSum, fit_exponential_sum
from holdfast.errors import ArgumentError, ShapeError
from holdfast.stability import gradient_bound, kernel_error_bound, kernel_perturbation_error
from holdfast.stability.perturbation._kernel_error import l1_distance, target_of

RADII = [0.01, 0.1, 0.5]


@pytest.mark.parametrize("name", ["exp", "softplus", "best"])
def test_the_error_of_a_perturbed_sum_stays_below_the_bound(name):
    rho = laws.PowerLaw(1.5)
    found = fit_exponential_sum(rho, 6, "nonnegative", rates=np.geomspace(1 / 36, 4, 6))
    curve = kernel_perturbation_error(found, rho, RADII, parameterization=name)
    bound = kernel_error_bound(found, RADII, parameterization=name, centre=curve.at_zero)
    assert (curve.errors <= bound).all()


def test_the_bound_is_attained_by_one_exp_mode_that_is_its_own_target():
    mode = ExponentialSum(rates=np.array([0.3]), coefficients=np.array([2.0]))
    curve = kernel_perturbation_error(mode, mode.law(), RADII, parameterization="exp")
    bound = kernel_error_bound(mode, RADII, parameterization="exp", centre=0.0)
    # g = e^beta - 1, the sum is 2 / 0.3; the exact error is placed to 1e-8 of the norm
    np.testing.assert_allclose(curve.errors, bound, rtol=1e-6)


def test_direct_weights_have_no_bound():
    mode = ExponentialSum(rates=np.array([0.3]), coefficients=np.array([2.0]))
    assert np.isinf(kernel_error_bound(mode, RADII, parameterization="direct", centre=0.0)).all()


@pytest.mark.parametrize("name", ["direct", "exp", "softplus", "best"])
def test_the_gradient_of_the_sup_norm_stays_below_its_bound_and_one_mode_attains_it(name):
    f = parameterizations.get(name)
    lam = -torch.tensor([0.05, 0.4, 1.5], dtype=torch.float64)
    w, c = f.inverse(lam).clone().requires_grad_(), torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64)
    target = target_of(laws.PowerLaw(1.5), -lam.numpy(), None)
    (gradient,) = torch.autograd.grad(l1_distance(target, f(w)[None], c[None])[0], w)
    bound = gradient_bound(c, w.detach(), parameterization=name)
    assert (gradient.abs() <= bound * (1 + 1e-9)).all()
    # a mode far above a target that is almost 0: the difference has one sign, and the bound is the gradient
    alone = w[:1].detach().requires_grad_()
    tiny = target_of(laws.Exponential(50.0), np.array([0.05]), None)
    (attained,) = torch.autograd.grad(l1_distance(tiny, f(alone)[None], 10 * c[None, :1])[0], alone)
    assert float(attained.abs()) == pytest.approx(
        float(gradient_bound(10 * c[:1], alone.detach(), parameterization=name)), rel=1e-3
    )


def test_in_discrete_time_the_printed_bound_fails_for_negative_eigenvalues_and_ours_holds():
    w = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    f = parameterizations.get("tanh", time="discrete")
    powers = f(w) ** torch.arange(400, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(powers.abs().sum(), w)
    bound = gradient_bound(torch.ones(1).double(), w.detach(), parameterization="tanh", time="discrete")
    printed = f.gradient_scale(w.detach(), form="printed")
    assert float(printed) < float(gradient.abs()) <= float(bound) * (1 + 1e-9)


def test_mistakes_are_named(user_mistakes):
    mode = ExponentialSum(rates=np.array([0.3]), coefficients=np.array([2.0]))
    with pytest.raises(ArgumentError, match="centre"):
        kernel_error_bound(mode, RADII, centre=-1.0)
    with pytest.raises(ShapeError, match="one coefficient per weight"):
        gradient_bound(torch.ones(2).double(), torch.ones(1).double(), parameterization="exp")
