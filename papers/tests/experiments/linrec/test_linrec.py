"""What the experiments on linear recurrences say, at sizes of seconds, and the helpers that they share."""

import sys

import numpy as np
import pytest
import torch

from holdfast.data import MissingDataError
from holdfast_papers import reconstruct
from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.linrec import _digits, _rebuild, fig5, fig6


@pytest.mark.slow
def test_thin_rings_rebuild_the_whole_image_and_the_disk_its_latest_rows(claims, met):
    found = claims("linrec-fig2", count=20, draws=1)
    assert met(found, "disk", "real form")
    # random eigenvalues leave about a tenth of the image to the literal pseudo-inverse, and nothing to the real form
    assert found["almost perfect"].numbers["the same by the real form"] < 1e-12


@pytest.mark.slow
def test_error_and_condition_fall_with_modes_and_ring(claims, met):
    found = claims("linrec-fig4", count=20)
    assert met(found, "timestamps")
    for name in ("modes", "ring", "condition"):  # three draws leave some steps open
        assert found[name].numbers["steps that rise"] == 0 and found[name].numbers["steps that fall"] > 0


def test_roots_of_unity_are_exact_at_the_length_and_alias_below(claims, met):
    assert met(claims("linrec-fig5", count=10, modes=[256, 784]), "exact", "condition", "artefacts", "aliasing")


def test_conditions_fall_with_modes_functions_and_ring(claims):
    found = claims("linrec-fig6", seeds=6, functions=[4, 8, 16])
    ways = ("N", "P", "r_min")
    for way in ways:  # six draws leave some lines open
        ends = found[f"{way}, haar, from end to end"].numbers
        assert ends["steps that rise"] == 0 and ends["steps that fall"] > ends["steps left open"]
        assert found[f"{way}, haar"].numbers["steps that rise"] == 0
    assert {f"{way}, fourier" for way in ways} <= set(found)


def test_the_wide_ring_needs_256_modes_and_64_are_enough_on_the_thin_one(claims, met):
    wide = claims("linrec-fig7", modes=[128, 256], points=8, seeds=1)
    thin = claims("linrec-fig8", modes=[32, 64], points=8, seeds=1)
    assert met(wide, "modes needed") and met(thin, "modes needed")
    # one draw decides no order
    assert wide["uniformly"].status == thin["uniformly"].status == "undecided"


def test_errors_fall_by_the_interval_of_the_draws_and_rounding_says_nothing():
    high, low, none = [0.9, 0.8, 0.85], [0.2, 0.3, 0.25], [1e-14, 3e-15, 1e-13]
    assert _rebuild.falls([high, low, none]).holds is True
    assert _rebuild.falls([high, low, none, none]).numbers["steps"] == 2
    assert _rebuild.falls([high, low], [low, high]).holds is False
    # a rise of 1%, which a slack of 2% passed, is open
    assert _rebuild.falls([high, [1.01 * v for v in (0.8, 0.9, 0.85)]]).holds is None


def test_timestamps_are_exact_with_a_suited_eigenvalue_only(claims, met):
    found = claims("linrec-time", count=4)
    assert met(found, "timestamp", "inputs", "complex eigenvalue")
    assert found["as printed"].status == found["any modulus"].status == "not met"
    # pi / 0.01: there a complex eigenvalue has turned by half
    assert found["as printed"].numbers["steps read correctly, angle 0.01"] == 314


def test_block_recurrences_give_back_inputs_of_several_dimensions(claims, met):
    found = claims("linrec-prop7", seeds=1, points=4, length=256)
    assert met(found, "sparse inputs", "timestamp", "block form", "all inputs", "modes needed")


def test_aliases_are_means_over_inputs_a_period_apart():
    u = torch.randn(3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lam = reconstruct.roots_of_unity(4)
    found = reconstruct.inputs(reconstruct.encode(u, lam), lam, 10).values.numpy()
    np.testing.assert_allclose(fig5._aliased(u.numpy(), 4), found, atol=1e-13)  # sums of ten numbers


def test_a_fixed_classifier_reads_the_digits_and_not_noise():
    pytest.importorskip("sklearn", reason="scikit-learn's digits stand in for MNIST")
    reader = _digits.Reader.of("digits", 50)
    images = _digits.sequences("digits", 50)
    assert reader.share_read(images) > 0.9
    noise = torch.rand(50, 784, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert reader.share_read(noise) < 0.4


def test_reach_counts_the_latest_pixels_below_half_their_size():
    by_time = np.array([0.1, 0.9, 0.2, 0.3])
    assert _rebuild.reach({"by_time": by_time, "size": np.array(1.0)}) == 2
    assert _rebuild.reach({"by_time": by_time / 4, "size": np.array(1.0)}) == 4


def test_lines_of_conditions_run_in_the_order_in_which_they_should_fall():
    draws = np.arange(24.0).reshape(2, 2, 2, 3)  # (ring, seed, N, P)
    draws[:, :, 0, 2] = np.nan  # more functions than modes
    by_functions = fig6._rows(draws, 3, turned=True)
    # ring 0, N = 0: P = 1, then P = 0, each for both seeds
    np.testing.assert_array_equal(by_functions[0], [[1.0, 7.0], [0.0, 6.0]])
    by_ring = fig6._rows(draws, 0, turned=False)
    np.testing.assert_array_equal(by_ring[0], [[0.0, 6.0], [12.0, 18.0]])
    assert not fig6._one_finite(np.full(3, np.inf), np.full(3, np.inf))
    assert len(fig6._known(np.array([[np.inf, np.inf], [np.inf, 1.0]]))) == 1


def test_digits_stand_in_for_mnist_where_it_need_not_be_downloaded(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn's digits stand in for MNIST")
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    assert _digits.source({"download": False}) == "digits"
    assert _digits.source({"download": True}) == "mnist"
    images = _digits.sequences("digits", 5)
    assert images.shape == (5, 784) and float(images.max()) == 1.0
    assert not images.reshape(-1, 28, 28)[:, :2].any()
    assert "stand in" in _digits.notes([Unit({"images": "digits"}, {})])[0].text


def test_without_either_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDataError, match="pip install scikit-learn"):
        _digits.sequences("digits", 5)


def test_the_extension_to_real_times_is_continuous_and_the_printed_one_is_not(claims, met):
    found = claims("linrec-lemma8", length=16)
    assert met(found, "continuous", "exact", "causal")
    assert found["as printed"].status == "not met" and found["as printed"].numbers["value at whole t"] == 0


def test_real_eigenvalues_are_ill_conditioned_and_roots_of_unity_are_not(claims, met):
    assert met(claims("linrec-real"))


def test_a_learned_basis_beats_a_fourier_basis_and_comes_near_the_best(claims):
    from holdfast_papers.experiments.base import Unit
    from holdfast_papers.experiments.linrec import psi

    found = claims("linrec-psi", functions=[16], seeds=3, train=300, test=20)
    assert found["smaller"].numbers["learned / fourier, P = 16"] < 1
    config = {"functions": [4]}

    def made(learned, missed):
        arrays = {"error.learned": learned, "error.fourier": 0.5, "missed.learned": missed, "missed.fourier": 0.5}
        arrays |= {"condition.learned": 10.0, "condition.fourier": 10.0}
        units = [
            Unit({"functions": 4, "seed": s, "images": "mnist"}, {k: np.array(v) for k, v in arrays.items()})
            for s in range(3)
        ]
        return [claim.status for claim in psi.conclude(config, units).claims]

    assert made(0.1, 0.05) == ["met", "met"] and made(0.5, 0.1) == ["undecided", "not met"]
    assert made(0.9, 0.5) == ["not met", "met"]
