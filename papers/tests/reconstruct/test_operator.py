"""The Vandermonde operator against exact powers, the recurrence itself, and a layer."""

import decimal

import numpy as np
import pytest
import torch

from holdfast import nn
from holdfast.errors import ArgumentError, ShapeError
from holdfast_papers import reconstruct


def exact_power(z, k):
    """z^k in 60 decimal digits, by repeated squaring, rounded once."""
    with decimal.localcontext() as context:
        context.prec = 60
        result = (decimal.Decimal(1), decimal.Decimal(0))
        base = (decimal.Decimal(z.real), decimal.Decimal(z.imag))
        while k:
            if k & 1:
                result = (result[0] * base[0] - result[1] * base[1], result[0] * base[1] + result[1] * base[0])
            base = (base[0] * base[0] - base[1] * base[1], 2 * base[0] * base[1])
            k >>= 1
        return complex(float(result[0]), float(result[1]))


def recurrence(u, lam):
    """x+ = lam x + u, step by step."""
    x = torch.zeros(*u.shape[:-1], len(lam), dtype=torch.complex128)
    for k in range(u.shape[-1]):
        x = lam * x + u[..., k : k + 1]
    return x


@pytest.mark.parametrize("r_min", [0.5, 0.99, 0.9999])
def test_powers_are_exact_to_rounding_up_to_ten_thousand(r_min):
    lam = reconstruct.ring_eigenvalues(4, r_min)
    V = reconstruct.vandermonde(lam, 10_001)
    for row, z in zip(V, lam.tolist(), strict=True):
        for k in (0, 1, 2, 77, 1000, 9999, 10_000):
            true = exact_power(z, k)
            # long double carries 64 bits: 10,000 times its rounding is 5e-16, and a few roundings of float64 follow;
            # below 1e-300 numbers are denormal
            assert abs(complex(row[10_000 - k]) - true) <= 2e-15 * abs(true) + 1e-300


def test_powers_of_zero_and_of_tiny_eigenvalues_are_finite():
    V = reconstruct.vandermonde(torch.tensor([0, 1e-200, 1e-5j], dtype=torch.complex128), 2000)
    assert torch.isfinite(V.abs()).all()
    assert V[0].tolist() == [0] * 1999 + [1]
    assert V[:, -1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("length", [1, 2, 63, 65])
def test_encoding_is_the_recurrence(length):
    lam = reconstruct.ring_eigenvalues(9, 0.5)
    u = torch.randn(3, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # sums of `length` products, each rounded
    torch.testing.assert_close(reconstruct.encode(u, lam), recurrence(u, lam), rtol=1e-13, atol=1e-13)


def test_encoding_is_the_state_of_an_lru_layer():
    lam = reconstruct.ring_eigenvalues(6, 0.9, 0.99)
    layer = nn.LRU(1, 6, normalize=False, eigenvalues=lam).double()
    layer.set_eigenvalues_(lam)
    with torch.no_grad():
        layer.B.copy_(torch.cat([torch.ones(6, 1), torch.zeros(6, 1)]))
    u = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, state = layer(u.unsqueeze(-1))
    found = torch.complex(*state.detach().chunk(2, dim=-1))
    # exp(-e^w) of the layer's weight rounds lam by 1e-16, 50 steps of it
    torch.testing.assert_close(found, reconstruct.encode(u, lam), rtol=1e-12, atol=1e-12)


def test_block_form_puts_one_matrix_a_dimension_on_the_diagonal():
    lam = torch.stack([reconstruct.ring_eigenvalues(4, 0.9, seed=s) for s in range(3)])
    V = reconstruct.vandermonde(lam, 5)
    assert V.shape == (12, 15)
    for j in range(3):
        block = V[4 * j : 4 * j + 4, 5 * j : 5 * j + 5]
        assert torch.equal(block, reconstruct.vandermonde(lam[j], 5))
    assert int((V != 0).sum()) == 3 * 4 * 5
    u = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    flat = u.mT.reshape(2, 15).to(torch.complex128)  # eq. 10: all times of one dimension, then of the next
    torch.testing.assert_close(reconstruct.encode(u, lam), flat @ V.mT, rtol=1e-14, atol=1e-14)


def test_ring_is_uniform_in_area_and_repeats_by_seed():
    lam = reconstruct.ring_eigenvalues(20_000, 0.6, 0.9)
    share = (lam.abs() ** 2 - 0.36) / (0.81 - 0.36)
    # uniform on [0, 1]: the largest gap of the distribution function is below 1.63 / sqrt(n) with 99% certainty
    gap = (share.sort().values - (torch.arange(20_000) + 0.5) / 20_000).abs().max()
    assert float(gap) < 1.63 / 20_000**0.5
    assert torch.equal(lam, reconstruct.ring_eigenvalues(20_000, 0.6, 0.9, seed=0))
    assert not torch.equal(lam[:10], reconstruct.ring_eigenvalues(10, 0.6, 0.9, seed=1))


def test_making_eigenvalues_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    reconstruct.ring_eigenvalues(10, 0.9)
    generator = torch.Generator().manual_seed(3)
    first = reconstruct.ring_eigenvalues(10, 0.9, seed=generator)
    assert not torch.equal(first, reconstruct.ring_eigenvalues(10, 0.9, seed=generator))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("size", [1, 2, 4, 7, 784])
def test_roots_of_unity_are_roots_and_conjugates_match(size):
    roots = reconstruct.roots_of_unity(size)
    np.testing.assert_allclose(roots.abs(), 1, rtol=3e-16)
    # argument k times 2 pi: size roundings of the angle
    torch.testing.assert_close(roots**size, torch.ones(size, dtype=torch.complex128), rtol=0, atol=1e-15 * size + 1e-15)
    lower = roots[1:].flip(0).conj().resolve_conj()
    assert torch.equal(roots[1:][: size // 2], lower[: size // 2])


@pytest.mark.parametrize(
    ("lam", "length", "text"),
    [
        ([1.1 + 0j], 3, "unit circle"),
        ([complex("nan")], 3, "unit circle"),
        ([0.5 + 0j], 0, "length"),
        ([0.5 + 0j], 2.5, "length"),
        ([[[0.5 + 0j]]], 3, "shape"),
        ([0.5 + 0j] * 4096, 10**6, "2 GB"),
    ],
)
def test_bad_eigenvalues_and_lengths_are_refused(lam, length, text, user_mistakes):
    with pytest.raises(ArgumentError, match=text):
        reconstruct.vandermonde(torch.tensor(lam), length)


def test_bad_rings_and_inputs_are_refused(user_mistakes):
    for arguments in ((0, 0.5), (4, 0.9, 0.5), (4, -0.1), (4, 0.5, 1.1)):
        with pytest.raises(ArgumentError):
            reconstruct.ring_eigenvalues(*arguments)
    with pytest.raises(ArgumentError):
        reconstruct.roots_of_unity(0)
    lam = torch.stack([reconstruct.ring_eigenvalues(4, 0.9)] * 3)
    with pytest.raises(ShapeError, match="3 dimensions"):
        reconstruct.encode(torch.zeros(2, 5, 2, dtype=torch.float64), lam)
