"""Copies of leaky and gated networks: what they compute, and what ascent finds of a sup that is known."""

import numpy as np
import pytest
import torch

from holdfast_papers.experiments.open import _copies, activations, gated


@pytest.mark.parametrize("activation", activations.ACTIVATIONS)
def test_padded_copies_are_the_leaky_networks_alone(activation):
    weights, masks = activations.start(activation, [3, 5], 1)
    x = _copies.sequences(2, 7, 0)
    found = activations.leaky(activation, masks)(weights, x.expand(2, *x.shape))
    about = activations.ACTIVATIONS[activation]
    for k, m in enumerate((3, 5)):
        W, U, b, R = (weights[n][k] for n in ("W", "U", "b", "R"))
        h = torch.full((2, m), float(about.of(torch.tensor(about.rest))))
        for t in range(7):
            h = h + 0.1 * (-h + about.of(h @ W[:m, :m].T + x[:, t] @ U[:m].T + b[:m, 0]))
            # float32: a few roundings per step
            torch.testing.assert_close(found[k, :, t], h @ R[:m] + weights["r"][k], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", activations.ACTIVATIONS)
def test_a_network_starts_at_rest_and_with_the_rates_that_are_asked_for(activation):
    weights, masks = activations.start(activation, [6], 1)
    still = activations.leaky(activation, masks)(weights, torch.zeros(1, 1, 50, 1))
    assert float(still.abs().max()) < 1e-4
    about = activations.ACTIVATIONS[activation]
    rates = 1 - about.slope * torch.linalg.eigvalsh(weights["W"][0])
    assert (float(rates.min()), float(rates.max())) == pytest.approx((1 / 6, activations.FASTEST), rel=1e-3)


@pytest.mark.parametrize("cell", gated.CELLS)
def test_gated_copies_are_torchs_layers(cell):
    weights = gated.start(cell, 4, 2, 1)
    x = _copies.sequences(3, 6, 0)
    found = gated.gated(cell)(weights, x.expand(2, *x.shape))
    for seed in range(2):
        with torch.no_grad():
            h, _ = gated._gated.module(cell, 1, 4, seed)(x)
        torch.testing.assert_close(found[seed], h @ weights["R"][seed] + weights["r"][seed], rtol=1e-4, atol=1e-6)


def test_ascent_finds_the_worst_perturbation_of_a_linear_read_out():
    """y = v'x with |v~ - v| <= beta: the largest error is beta |x| of the longest x."""
    x = torch.tensor([[[3.0], [4.0]], [[1.0], [0.0]]])  # two sequences of two steps
    weights = {"v": torch.tensor([[[0.5], [-1.0]], [[2.0], [0.0]]])}

    def outputs(w, given):
        flat = given[..., 0]  # (copies, sequences, time)
        return torch.einsum("cst,cto->cso", flat, w["v"]).unsqueeze(-1)

    y = outputs(weights, x.expand(2, *x.shape))
    masks = {"v": torch.ones(2, 2, 1)}
    search = _copies.Ascent(outputs, weights, masks, x, y, ["v"], {"starts": 3, "ascent": 15})
    assert search.errors(np.zeros(2)) == pytest.approx([0, 0])
    found = search.errors(np.array([0.1, 2.0]))
    assert found == pytest.approx([0.5, 10.0], rel=2e-3) and (found <= [0.5 + 1e-5, 10 + 1e-4]).all()
    # what is masked does not move
    masks["v"][:, 1] = 0
    kept = _copies.Ascent(outputs, weights, masks, x, y, ["v"], {"starts": 3, "ascent": 15})
    assert kept.errors(np.array([1.0, 1.0])) == pytest.approx([3.0, 3.0], rel=1e-3)


def test_copies_take_their_bisections_together_and_infinite_errors_are_bracketed():
    def error(beta):
        return np.array([2 * beta[0], 5 * beta[1] ** 2, np.inf if beta[2] > 0.01 else 0.0])

    radii, errors = _copies.together(error, np.ones(3), 1e-4, 3.0)
    assert (np.diff(radii) > 0).all() and (errors[:, 1:] >= errors[:, :-1]).all()
    last = [r[e <= 1].max() for r, e in zip(radii, errors, strict=True)]
    first = [r[e > 1].min() for r, e in zip(radii, errors, strict=True)]
    for low, high, wanted in zip(last, first, (0.5, 5**-0.5, 0.01), strict=True):
        assert low <= wanted * (1 + 1e-9) and wanted <= high <= 1.05 * low


def test_the_polar_factor_has_spectral_norm_1_and_the_largest_product_with_the_gradient():
    G = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
    P = _copies.polar(G)
    assert torch.linalg.matrix_norm(P, 2) == pytest.approx(np.ones(4), rel=1e-5)
    nuclear = torch.linalg.matrix_norm(G, "nuc")
    torch.testing.assert_close((P * G).sum((1, 2)), nuclear, rtol=1e-5, atol=1e-5)


def test_tiny_families_have_a_claim_for_each_network_target_and_set_of_weights(claims):
    found = claims("open-activations", activations=["tanh"], steps=3, widths=[2, 3])
    assert set(found) == {
        f"tanh, {target}{more}" for target in _copies.TARGETS for more in ("", ", recurrent weights")
    }  # fmt: skip
    assert {claim.status for claim in claims("open-gated", widths=[2], steps=2).values()} == {"undecided"}


def test_singular_values_that_do_not_converge_are_those_of_float64(monkeypatch):
    own, matrices = torch.linalg.svd, torch.randn(3, 5, 4)

    def stubborn(x, **options):
        if x.dtype == torch.float32:
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return own(x, **options)

    monkeypatch.setattr(torch.linalg, "svd", stubborn)
    U, size, V = _copies.svd(matrices)
    assert U.dtype == size.dtype == V.dtype == torch.float32
    torch.testing.assert_close((U * size.unsqueeze(-2)) @ V, matrices, rtol=1e-5, atol=1e-6)
