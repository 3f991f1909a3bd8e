"""The open questions: their measures against closed forms, and tiny runs."""

import numpy as np
import pytest
import torch

from holdfast_papers import experiments, reconstruct
from holdfast_papers.experiments import registry
from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.open import precision, transformer, volterra

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


def _measured(share, loss, seed, model, task):
    steps = 64
    curve = np.where(np.arange(steps) >= 48, share, 1.0)
    config = {"task": task, "model": model, "seed": seed, "text": "shakespeare"}
    return Unit(config, {"memory": curve * (1 + 0.01 * seed), "losses": np.array([2.0, loss])})


@pytest.mark.parametrize(
    ("share", "loss", "wanted"),
    [(0.1, 0.5, "met"), (0.9, 0.5, "not met"), (0.5, 0.5, "undecided"), (0.1, 0.6, "undecided")],
)
def test_the_transformer_needs_the_larger_share_at_equal_loss(share, loss, wanted):
    """The transformer keeps half; the recurrent models `share`, with seeds a little apart."""
    units = [
        _measured((0.5 if model == transformer.TRANSFORMER else share) * (1 + 0.01 * (seed % 2)), 0.5 if seed else loss,
                  seed, model, task)
        for task in transformer.TASKS for model in transformer.NAMES for seed in range(3)
    ]  # fmt: skip
    config = transformer.EXPERIMENT.config("standard")
    assert {claim.status for claim in transformer.conclude(config, units).claims} == {wanted}


def test_readers_are_causal_and_memory_ends_where_a_model_forgets(claims):
    task = transformer.task_of({"task": "recall", "recall_length": 12, "vocabulary": 8})
    for kind in transformer.NAMES:
        torch.manual_seed(0)
        model = transformer.Reader(kind, 8, 8, 1, 12).eval()
        x = torch.randn(1, 12, 8)
        changed = x.clone()
        changed[:, 9:] += 1
        with torch.no_grad():
            # float32, another order of sums
            torch.testing.assert_close(model(x)[:, :9], model(changed)[:, :9], rtol=1e-5, atol=1e-6)
        curve = transformer.memory(model, task, 4)
        assert curve.shape == (12,) and (curve > 0).any()
    found = claims("open-transformer", steps=0)
    assert {claim.status for claim in found.values()} == {"undecided"}
