"""The open questions: their measures against closed forms, and tiny runs."""

import numpy as np
import pytest
import torch

from holdfast_papers import experiments, reconstruct
from holdfast_papers.experiments import registry
from holdfast_papers.experiments.open import precision, volterra

CONDITION = registry.importlib.import_module("holdfast_papers.experiments.open.lambda").condition


def test_formats_lose_the_modes_that_rounding_takes(claims):
    found = claims("open-precision", points=141)
    assert found["direct, float32"].status == found["direct, bfloat16"].status == found["multiplier"].status == "met"
    # w of best is rounded to 8 bits, and the rate goes like w^-2: at most 2^-7
    assert 0.005 < found["best, bfloat16"].numbers["largest relative error"] < 2**-7
    assert found["exp, bfloat16"].status == "met" and found["best, float32"].numbers["largest relative error"] < 1e-6


@pytest.mark.parametrize("name", precision.NAMES)
def test_weights_stand_for_their_rates(name):
    from holdfast.parameterizations import get

    rates = torch.logspace(-1, -8, 50, dtype=torch.float64)
    margin = get(name, time="discrete").margin(precision._weights(name, rates))
    # direct loses what 1 - lam cancels in float64, 1e-16 / 1e-8
    torch.testing.assert_close(margin, rates, rtol=1e-7 if name == "direct" else 1e-12, atol=0)


def test_slow_roots_of_unity_make_fourier_inputs_orthogonal_and_a_ring_does_not(claims):
    psi = reconstruct.fourier_basis(32, 5)
    k = torch.tensor([0, 1, -1, 2, -2], dtype=torch.float64)
    assert float(CONDITION(torch.exp(2j * torch.pi * k / 32), psi)) == pytest.approx(1, abs=1e-10)
    lam = reconstruct.ring_eigenvalues(8, 0.9, seed=0)
    omega = reconstruct.vandermonde(lam, 32) @ psi.to(torch.complex128)
    assert float(CONDITION(lam, psi)) == pytest.approx(float(torch.linalg.cond(omega)) ** 2, rel=1e-8)
    found = claims("open-lambda", length=32, functions=4, modes=[8], steps=20)
    assert found["fourier"].status == "met"


def test_the_norm_of_a_product_lies_between_its_bounds():
    weights = np.ones(3)
    a, b = np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.0, -1.0])
    corners = np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T
    exact = np.abs((corners @ a) * (corners @ b)).max()  # convex in each direction: the corners hold the sup
    lower, upper = volterra.product_norm(a, b, weights)
    assert lower <= exact * (1 + 1e-12) and exact <= upper * (1 + 1e-12) and lower == pytest.approx(exact)
    # of the same sign everywhere nothing cancels: both bounds are the product of the norms
    same = volterra.product_norm(np.abs(a), np.abs(b), weights)
    assert same == pytest.approx((3.5 * 2.3, 3.5 * 2.3), rel=1.5e-2)


def test_an_unstable_mode_is_an_infinite_error_and_stable_weights_have_none():
    for name, infinite in (("direct", True), ("exp", False)):
        config = {"target": "0.9^t", "parameterization": name, "m": 3, "draws": 1, "least": 1e-3, "most": 3.0}
        arrays = volterra.run(config, experiments.base.Work())
        assert np.isinf(arrays["sup_errors"]).any() == infinite
        assert arrays["sup_centre"] < 0.25 * arrays["sup_norm"] == pytest.approx(0.25 / 0.105360516**2, rel=1e-3)
