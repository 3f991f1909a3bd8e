"""Counter-based random numbers: known values, and as random as samples need to be."""

import math

import numpy as np
import torch

from holdfast.data import _draws as draws

INDICES = torch.arange(400)


def test_the_mixing_is_that_of_splitmix64():
    # first outputs of SplitMix64 for seed 1234567, from its reference implementation
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    state = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * draws._GOLDEN
    assert draws._mix(state).tolist() == known


def test_numbers_depend_on_seed_name_and_index_and_not_on_the_batch():
    one = draws.bits(0, "a", INDICES, 8)
    assert np.array_equal(one[[5, 3]], draws.bits(0, "a", torch.tensor([5, 3]), 8))
    assert np.array_equal(one[:, :4], draws.bits(0, "a", INDICES, 4))
    for other in (draws.bits(1, "a", INDICES, 8), draws.bits(0, "b", INDICES, 8)):
        assert not np.isin(other, one).any()
    assert len(np.unique(one)) == one.size


def test_normal_numbers_have_the_moments_of_a_normal_law():
    x = draws.normal(0, "x", INDICES, 1000)
    count = x.numel()
    # within five standard errors of 0, 1, 0 and 3; those of the powers are sqrt(Var(x^p) / n) = sqrt(1, 2, 15, 96 / n)
    for power, value, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float(x.pow(power).mean()) - value) < 5 * math.sqrt(variance / count)
    neighbours = (x[:, 1:] * x[:, :-1]).mean(), (x[1:] * x[:-1]).mean()
    assert all(abs(float(c)) < 5 / math.sqrt(count) for c in neighbours)


def test_whole_numbers_are_uniform_below_their_limit():
    drawn = draws.below(7, 0, "x", INDICES, 1000)
    counts = drawn.flatten().bincount()
    expected = drawn.numel() / 7
    # chi-square with 6 degrees of freedom exceeds 27.9 once in ten thousand
    assert len(counts) == 7 and float(((counts - expected) ** 2 / expected).sum()) < 27.9


def test_shuffling_is_a_permutation_that_the_seed_fixes():
    order = draws.shuffled(1000, 0, "x")
    assert torch.equal(order.sort().values, torch.arange(1000))
    assert torch.equal(order, draws.shuffled(1000, 0, "x")) and not torch.equal(order, draws.shuffled(1000, 1, "x"))
    # the same on every machine: which images are held out may never change
    assert order[:5].tolist() == [324, 950, 332, 509, 373]
