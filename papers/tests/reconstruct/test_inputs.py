"""Inputs rebuilt from states: the papers' figures in numbers, both forms, sparse bases, blocks, timestamps."""

import cmath
import math

import pytest
import torch

from holdfast.errors import ArgumentError, RangeError, ShapeError
from holdfast_papers import reconstruct

LENGTH, FUNCTIONS = 4096, 32


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def haar_error(modes, r_min, form, seed=0):
    """Relative error for 8 random inputs made of the 32 coarsest Haar wavelets."""
    psi = reconstruct.haar_basis(LENGTH, FUNCTIONS)
    u = normal(8, FUNCTIONS, seed=1) @ psi.mT
    lam = reconstruct.ring_eigenvalues(modes, r_min, seed=seed)
    found = reconstruct.sparse_inputs(reconstruct.encode(u, lam), lam, psi, form=form)
    return found.error(u)


@pytest.mark.parametrize("seed", range(3))
def test_haar_sparse_inputs_come_back_from_64_modes_near_the_circle(seed):
    assert haar_error(64, 0.99, "complex", seed) < 1e-8


@pytest.mark.parametrize("seed", range(3))
def test_haar_sparse_inputs_need_256_modes_on_a_wider_ring(seed):
    assert haar_error(64, 0.95, "complex", seed) > 1e-2
    assert haar_error(256, 0.95, "complex", seed) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_stacked_real_form_needs_half_the_modes(seed):
    assert haar_error(32, 0.99, "real", seed) < 1e-6
    assert haar_error(16, 0.99, "complex", seed) > 1e-2  # 16 equations for 32 unknowns


def test_roots_of_unity_give_back_784_inputs_exactly():
    u = torch.rand(20, 784, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lam = reconstruct.roots_of_unity(784)
    found = reconstruct.inputs(reconstruct.encode(u, lam), lam, 784)
    assert float((found.values - u).abs().max()) < 1e-10
    assert found.condition == pytest.approx(1, abs=1e-10)  # a unitary matrix times sqrt(N)
    assert (found.rank, found.unknowns, found.status) == (784, 784, "ok")


def test_too_few_roots_of_unity_alias():
    """With N < length, inputs N steps apart are only known by their sum."""
    u = normal(12)
    lam = reconstruct.roots_of_unity(8)
    found = reconstruct.inputs(reconstruct.encode(u, lam), lam, 12)
    assert found.status == "rank deficient" and found.rank == 8 and math.isinf(found.condition)
    # the smallest inputs that fit share each sum in halves
    shared = (u[:4] + u[8:]) / 2
    torch.testing.assert_close(found.values[:4], shared, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.values[8:], shared, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.values[4:8], u[4:8], rtol=0, atol=1e-13)


def test_error_grows_into_the_past_inside_the_disk_and_falls_with_r_min():
    u = torch.rand(10, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    errors = {}
    for r_min in (0.0, 0.9, 0.99):
        lam = reconstruct.ring_eigenvalues(400, r_min)
        found = reconstruct.inputs(reconstruct.encode(u, lam), lam, 200)
        errors[r_min] = found.error(u)
        if r_min == 0.0:
            by_time = found.error_by_time(u)
            assert by_time.shape == (200,)
            assert float(by_time[-20:].max()) < 1e-6 < 1e-2 < float(by_time[:20].min())
    assert errors[0.0] > 0.1 > 1e-6 > errors[0.9] >= errors[0.99]


def test_condition_is_the_one_of_the_normal_matrix():
    lam = reconstruct.ring_eigenvalues(40, 0.9)
    V = reconstruct.vandermonde(lam, 20)
    solve = reconstruct.decoder(lam, 20)
    assert solve.condition == pytest.approx(float(torch.linalg.cond(V.mH @ V)), rel=1e-6)
    stacked = torch.cat([V.real, V.imag])
    real = reconstruct.decoder(lam, 20, form="real")
    assert real.condition == pytest.approx(float(torch.linalg.cond(stacked.mT @ stacked)), rel=1e-6)
    assert real.condition <= solve.condition  # real inputs see a part of the complex directions only


def test_a_condition_beyond_the_largest_number_is_infinite():
    # singular values 1e160 apart: the square overflows
    encoding = torch.diag(torch.tensor([1.0, 1e-160], dtype=torch.complex128))
    assert reconstruct.make_decoder(encoding, form="complex", cut=None, ridge=0.0).condition == math.inf


def test_both_forms_are_their_definitions():
    lam, u = reconstruct.ring_eigenvalues(30, 0.9), normal(4, 20)
    V, x = reconstruct.vandermonde(lam, 20), reconstruct.encode(u, lam)
    noisy = x + 0.01 * torch.complex(normal(4, 30, seed=2), normal(4, 30, seed=3))
    literal = (noisy @ torch.linalg.pinv(V).mT).real
    # rounding times the condition of V, about 30
    torch.testing.assert_close(reconstruct.inputs(noisy, lam, 20).values, literal, rtol=0, atol=1e-11)
    stacked = torch.linalg.lstsq(torch.cat([V.real, V.imag]), torch.cat([noisy.real, noisy.imag], dim=1).mT).solution.mT
    real = reconstruct.inputs(noisy, lam, 20, form="real")
    torch.testing.assert_close(real.values, stacked, rtol=0, atol=1e-11)
    assert real.error(u) < reconstruct.inputs(noisy, lam, 20).error(u)  # twice the equations average the noise


def test_cut_and_ridge_tame_noise_where_the_plain_inverse_does_not():
    lam, u = reconstruct.ring_eigenvalues(60, 0.8), normal(20, 60)
    x = reconstruct.encode(u, lam)
    noisy = x + 1e-6 * torch.complex(normal(20, 60, seed=2), normal(20, 60, seed=3))
    plain = reconstruct.inputs(noisy, lam, 60).error(u)
    cut = reconstruct.inputs(noisy, lam, 60, cut=1e-4)
    ridge = reconstruct.inputs(noisy, lam, 60, ridge=1e-4)
    assert cut.error(u) < 1 < plain and ridge.error(u) < 1
    assert cut.status == "rank deficient" and cut.rank < 60
    assert ridge.status == "regularised"


def test_ridge_is_tikhonov():
    lam, x = reconstruct.ring_eigenvalues(12, 0.9), torch.complex(normal(12), normal(12, seed=1))
    V = reconstruct.vandermonde(lam, 8)
    mu = 0.1 * torch.linalg.matrix_norm(V, 2)
    direct = torch.linalg.solve(V.mH @ V + mu**2 * torch.eye(8, dtype=torch.float64), V.mH @ x).real
    torch.testing.assert_close(reconstruct.inputs(x, lam, 8, ridge=0.1).values, direct, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["haar", "fourier"])
@pytest.mark.parametrize("length", [1, 2, 64])
def test_named_bases_are_orthonormal_and_complete(name, length):
    basis = {"haar": reconstruct.haar_basis, "fourier": reconstruct.fourier_basis}[name](length)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(length, dtype=torch.float64), rtol=0, atol=1e-13)


def test_haar_basis_holds_piecewise_constant_functions():
    psi = reconstruct.haar_basis(64, 8)
    u = normal(8).repeat_interleave(8)
    torch.testing.assert_close(psi @ (psi.mT @ u), u, rtol=0, atol=1e-13)


def test_a_learned_basis_holds_what_the_examples_share():
    hidden = torch.linalg.qr(normal(200, 5))[0]
    examples = normal(50, 5, seed=1) @ hidden.mT
    psi, missed = reconstruct.learned_basis(examples, 5)
    assert missed < 1e-14
    assert reconstruct.learned_basis(examples, 3)[1] > 0.1
    u = normal(3, 5, seed=2) @ hidden.mT  # not among the examples
    lam = reconstruct.ring_eigenvalues(20, 0.95)
    found = reconstruct.sparse_inputs(reconstruct.encode(u, lam), lam, psi)
    assert found.error(u) < 1e-10
    assert found.coefficients is not None and found.coefficients.shape == (3, 5)


def test_fourier_sparse_inputs_come_back_by_name():
    u = normal(4, 9) @ reconstruct.fourier_basis(512, 9).mT
    lam = reconstruct.ring_eigenvalues(256, 0.99)
    found = reconstruct.sparse_inputs(reconstruct.encode(u, lam), lam, "fourier", length=512, functions=9)
    assert found.error(u) < 1e-10


def test_fewer_modes_than_functions_are_rank_deficient_and_say_so():
    u = normal(2, 32) @ reconstruct.haar_basis(1024, 32).mT
    lam = reconstruct.ring_eigenvalues(20, 0.99)
    found = reconstruct.sparse_inputs(reconstruct.encode(u, lam), lam, "haar", length=1024, functions=32)
    assert found.status == "rank deficient" and found.rank == 20 and found.unknowns == 32
    assert found.error(u) > 0.1


def test_three_dimensional_inputs_come_back_by_blocks():
    lam = torch.stack([reconstruct.ring_eigenvalues(96, 0.99, seed=s) for s in range(3)])
    u = normal(4, 40, 3)
    found = reconstruct.inputs(reconstruct.encode(u, lam), lam, 40)
    assert found.values.shape == u.shape and found.status == "ok"
    assert found.error(u) < 1e-10
    assert found.error_by_time(u, dimensions=True).shape == (40,)


def test_three_dimensional_sparse_inputs_share_their_coefficients():
    """Prop. 7: one coefficient acts on all dimensions, so that M R >= P modes are enough: 3 * 16 for P = 32."""
    psi = torch.linalg.qr(normal(3 * 1024, 32))[0].reshape(3, 1024, 32)
    alpha = normal(4, 32, seed=1)
    u = torch.einsum("mtp,np->ntm", psi, alpha)
    lam = torch.stack([reconstruct.ring_eigenvalues(16, 0.99, seed=s) for s in range(3)])
    found = reconstruct.sparse_inputs(reconstruct.encode(u, lam), lam, psi)
    assert found.coefficients is not None
    torch.testing.assert_close(found.coefficients, alpha, rtol=0, atol=1e-8)
    assert found.error(u) < 1e-8


def test_timestamps_are_exact_to_ten_thousand_steps():
    lam = reconstruct.counting_eigenvalue(10_000)
    state, states = 0.0, []
    for _ in range(10_000):
        state = lam * state + 1
        states.append(state)
    found = reconstruct.timestamp(torch.tensor(states, dtype=torch.float64), lam)
    assert torch.equal(found, torch.arange(1, 10_001))
    assert reconstruct.timestamp(states[99], lam).tolist() == 100
    assert reconstruct.timestamp(0.0, lam).tolist() == 0


def test_maps_at_whole_times_are_extended_continuously():
    """linrec, eq. 26 and 31; as printed the weights are exchanged, and both are 0 at whole t."""
    found = [
        float(reconstruct.interpolated(lambda n: torch.tensor(n**2.0), t)) for t in (0.0, 3.0, 3.25, 4 - 1e-9, 4.0)
    ]
    # 3/4 of 9 and 1/4 of 16; 1e-9 of a step before 4 it is 7e-9 from 16
    assert found == pytest.approx([0, 9, 10.75, 16, 16], abs=1e-8)

    def printed(t):
        return (math.ceil(t) - t) * math.ceil(t) ** 2 + (t - math.floor(t)) * math.floor(t) ** 2

    assert printed(4.0) == 0 and printed(3.25) == 14.25
    asked = []
    reconstruct.interpolated(lambda n: asked.append(n) or torch.zeros(1), 4.0)
    assert asked == [4]  # the last map has no successor
    with pytest.raises(ArgumentError, match="time"):
        reconstruct.interpolated(lambda n: torch.zeros(1), -1.0)


@pytest.mark.parametrize("angle", [0.01, 2.0, math.pi])
def test_a_complex_eigenvalue_counts_by_its_modulus(angle):
    lam = reconstruct.counting_eigenvalue(10_000) * cmath.exp(1j * angle)
    state, states = 0.0, []
    for _ in range(10_000):
        state = lam * state + 1
        states.append(state)
    found = reconstruct.timestamp(torch.tensor(states, dtype=torch.complex128), lam)
    assert torch.equal(found, torch.arange(1, 10_001))
    with pytest.raises(RangeError, match="saturated"):
        reconstruct.timestamp(1 / (1 - lam), lam)


def test_a_timestamp_that_cannot_be_told_is_refused():
    with pytest.raises(RangeError, match="saturated"):
        reconstruct.timestamp(2.0, 0.5)
    with pytest.raises(RangeError, match="within a quarter of one, got a count"):
        reconstruct.timestamp(1.2, 0.5)
    with pytest.raises(RangeError, match=r"in \(0, 1\)"):
        reconstruct.timestamp(1.0, 1.0)


def counting_states(lam, steps):
    state, states = 0.0, []
    for _ in range(steps):
        state = lam * state + 1
        states.append(state)
    return states


@pytest.mark.parametrize(
    "lam", [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.99, 0.997, 1 - 1e-4, -0.3, -0.9, 0.6 + 0.5j, 0.9j, -0.9 + 0.3j]
)
def test_a_count_is_right_or_refused_long_after_the_state_has_saturated(lam):
    """By brute force, every count from 1 to beyond saturation: 5,000 steps of 0.7 x + 1 were read as 101."""
    longest = reconstruct.longest_count(lam)
    states = counting_states(lam, min(longest, 4000) + 400)
    told = len(states) - 400
    dtype = torch.complex128 if isinstance(lam, complex) else torch.float64
    read = reconstruct.timestamp(torch.tensor(states[:told], dtype=dtype), lam)
    assert torch.equal(read, torch.arange(1, told + 1))
    refused = 0
    for k, state in enumerate(states[told:], start=told + 1):
        try:
            assert int(reconstruct.timestamp(state, lam)) == k
        except RangeError:
            refused += 1
    assert refused > 300 or longest > 4000
    if abs(lam) < 0.999:
        with pytest.raises(RangeError, match="saturated"):
            reconstruct.timestamp(counting_states(lam, 50_000)[-1], lam)


def test_the_longest_count_falls_with_the_digits_of_the_state():
    assert reconstruct.longest_count(0.7) > 80
    assert reconstruct.longest_count(0.7, torch.float32) < 40
    state = torch.tensor(counting_states(0.7, 60)[-1], dtype=torch.float32)
    with pytest.raises(RangeError, match="counts to"):
        reconstruct.timestamp(state, 0.7)


def test_a_decoder_is_factorised_once_and_takes_any_batch():
    lam, u = reconstruct.ring_eigenvalues(40, 0.95), normal(2, 3, 20)
    solve = reconstruct.decoder(lam, 20)
    x = reconstruct.encode(u, lam)
    assert solve(x).shape == (2, 3, 20)
    torch.testing.assert_close(solve(x), u, rtol=0, atol=1e-10)
    torch.testing.assert_close(solve(x[0, 0]), u[0, 0], rtol=0, atol=1e-10)
    many = normal(5000, 20)  # more rows than are decoded at a time
    torch.testing.assert_close(solve(reconstruct.encode(many, lam)), many, rtol=0, atol=1e-9)


def test_bad_arguments_are_refused(user_mistakes):
    lam, x = reconstruct.ring_eigenvalues(8, 0.9), torch.zeros(8, dtype=torch.complex128)
    for wrong, error in (
        (lambda: reconstruct.inputs(x[:7], lam, 4), ShapeError),
        (lambda: reconstruct.inputs(x, lam, 4, form="imaginary"), ArgumentError),
        (lambda: reconstruct.inputs(x, lam, 4, ridge=-1.0), ArgumentError),
        (lambda: reconstruct.inputs(x, lam, 4, cut=2.0), ArgumentError),
        (lambda: reconstruct.sparse_inputs(x, lam, "wavelet", length=4, functions=2), ArgumentError),
        (lambda: reconstruct.sparse_inputs(x, lam, "haar", length=12, functions=2), ArgumentError),
        (lambda: reconstruct.sparse_inputs(x, lam, "haar"), ArgumentError),
        (lambda: reconstruct.sparse_inputs(x, lam, torch.eye(4), length=4), ArgumentError),
        (lambda: reconstruct.sparse_inputs(x, lam, torch.zeros(4, 2)), ArgumentError),
        (lambda: reconstruct.haar_basis(8, 9), ArgumentError),
        (lambda: reconstruct.learned_basis(torch.zeros(3, 4), 5), ArgumentError),
        (lambda: reconstruct.inputs(torch.full((8,), float("nan"), dtype=torch.complex128), lam, 4), ArgumentError),
        (lambda: reconstruct.inputs(torch.zeros(2, 8).double(), lam, 4).error(torch.zeros(3, 4)), ShapeError),
    ):
        with pytest.raises(error):
            wrong()
