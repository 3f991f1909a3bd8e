"""linrec-fig9: its states, its whitening, what it says of made-up errors, and a tiny run."""

import numpy as np
import pytest
import torch

from holdfast.data import load_task
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.linrec import fig9

CONFIG = {"modes": 4, "r_min": 0.99, "seed": 0, "points": 5, "state": fig9.CLOCK}


def test_states_are_the_recurrence_and_the_clock_counts():
    u = torch.randn(2, 6, 1)
    found = fig9.recurrence(CONFIG)(u)
    lam = reconstruct.ring_eigenvalues(3, 0.99, seed=0)
    x = torch.zeros(2, 3, dtype=torch.complex128)
    generator = torch.Generator().manual_seed(0)
    B = torch.view_as_complex(torch.randn(3, 2, generator=generator, dtype=torch.float64)) / 2**0.5
    for k in range(6):
        x = lam * x + B * u[:, k]
    torch.testing.assert_close(found[:, -1, :6], torch.view_as_real(x).flatten(1).float())
    assert bool((found[:, :, 6].diff() > 0).all())


def test_sampled_states_belong_to_their_outputs_and_are_whitened():
    task = load_task("lotka-volterra", length=64, train=40, valid=2)
    # the state is the output here: whatever steps are drawn, both must agree
    x, y = fig9.sampled(task, lambda u: u.expand(-1, -1, 2), CONFIG)
    assert x.shape == y.shape == (200, 2)
    states, _ = fig9.sampled(task, fig9.recurrence(CONFIG), {**CONFIG, "points": 64})
    white = fig9._whitening(states)(states)
    covariance = white.T @ white / len(white)
    # the floor of 1e-4 takes that much from the weakest direction that counts
    assert float(covariance.diagonal().max()) == pytest.approx(1.0, abs=0.01)
    assert float((covariance - torch.diag(covariance.diagonal())).abs().max()) < 0.01


def _unit(state, mlp, linear=1.0, finished=True):
    shown = {k: np.zeros((1, 3, 2)) for k in ("shown.truth", "shown.mlp")}
    arrays = {
        "error.mlp": np.array([mlp, mlp]), "error.linear": np.array([linear, linear]), "diverged": np.array(not finished),
        "steps": np.arange(2), "loss": np.ones(2), "by_step": np.ones((4, 2)), **shown,
    }  # fmt: skip
    return Unit({"system": "lotka-volterra", "state": state, "seed": 0}, arrays)


def test_the_error_has_to_be_small_and_half_of_a_linear_readout():
    config = {"points": 1, "train": 1, "length": 1, "valid": 1, "modes": 1, "systems": ["lotka-volterra"]}

    def status(*units):
        return {claim.name: claim.status for claim in fig9.conclude(config, units).claims}

    assert status(_unit(fig9.RING, 0.009), _unit(fig9.CLOCK, 0.02)) == {fig9.RING: "met", fig9.CLOCK: "not met"}
    assert status(_unit(fig9.RING, 0.009, 0.015), _unit(fig9.CLOCK, 0.009, 0.02)) == {
        fig9.RING: "not met",
        fig9.CLOCK: "met",
    }
    assert status(_unit(fig9.RING, 0.001, finished=False), _unit(fig9.CLOCK, 0.001))[fig9.RING] == "not met"


def test_a_tiny_run_gives_two_claims_for_each_system(claims):
    pytest.importorskip("lightning_fabric")
    found = claims("linrec-fig9", modes=4, width=8, length=64, train=6, valid=3, points=16, steps=4, batch=8, seeds=1)
    assert [claim.status for claim in found.values()] == ["not met"] * 4
    assert {*found} == {"ring", "ring and clock", "driven pendulum, ring", "driven pendulum, ring and clock"}


@pytest.mark.parametrize("system", ["lorenz", "pendulum"])
def test_systems_stay_finite_and_differ_between_inputs(system):
    task = fig9.system_task({"system": system, "length": 512, "train": 40, "valid": 2})
    y = task.batch("train", torch.arange(40)).targets
    assert y.isfinite().all() and task.length == 512
    # the inputs matter: at the end outputs differ by a good part of their size over time
    assert float(y[:, -1].std(0).min()) > 0.2 * float(y.flatten(0, 1).std(0).min())
    halved = fig9.SYSTEMS[system](np.zeros((1024, 1)))[-1], fig9.SYSTEMS[system](np.zeros((2048, 1)))[-1]
    # Euler steps are of first order: halving them changes little
    np.testing.assert_allclose(*halved, rtol=0.1, atol=0.1)
