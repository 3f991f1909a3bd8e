"""The contraction form: which matrices it holds, how D is found, and what is refused or projected."""

import math

import numpy as np
import pytest
import torch

from holdfast.errors import ArgumentError, RangeError, UnknownNameError
from holdfast.parameterizations import Contraction, EulerContraction, Hurwitz, Schur, get_matrix, spectral_margin
from holdfast.parameterizations._contraction import find_scaling, numerical_radius
from holdfast.parameterizations._matrix import AbstractMatrixParameterization

SWITCHING = torch.tensor(
    [[1.2, 2.0], [-0.5, -0.5]]
)  # radius 0.63, and 1.2 once a ReLU has switched the second unit off


def rotated(n, size, spread, seed):
    """D^-1 K D with K a multiple of a rotation: only D itself, up to a factor, shows that it is diagonally stable."""
    generator = np.random.default_rng(seed)
    Q = np.linalg.qr(generator.normal(size=(n, n)))[0]
    d = generator.uniform(-spread, spread, n)
    return size * Q * np.exp(d[None, :] - d[:, None])


@pytest.mark.parametrize("n", [2, 3, 8, 32])
@pytest.mark.parametrize("measure", ["norm", "radius"])
def test_the_search_finds_the_only_scaling_that_there_is(n, measure):
    for seed in range(3):
        _, least = find_scaling(rotated(n, 0.97, 4.0, seed), measure)
        # the smooth bound that is minimized lies up to 1% above
        assert least < 0.97 * 1.01


def test_numerical_radius_of_known_matrices():
    assert numerical_radius(np.array([[0.0, 2.0], [0.0, 0.0]])) == pytest.approx(1, rel=1e-5)
    assert numerical_radius(np.diag([0.5, -0.7])) == pytest.approx(0.7, rel=1e-5)
    assert numerical_radius(np.array([[0.0, 0.9], [-0.9, 0.0]])) == pytest.approx(0.9, rel=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 40])
@pytest.mark.parametrize("form", ["contraction", "euler"])
def test_diagonally_stable_matrices_are_taken_over_unchanged(form, n):
    W = torch.from_numpy(rotated(n, 0.9, 2.0, 0))
    if form == "euler":
        W = (W - torch.eye(n, dtype=W.dtype)) / 0.05
    f = get_matrix("contraction", time="discrete") if form == "contraction" else EulerContraction(0.05)
    again = f(*f.right_inverse(W))
    # a few hundred roundings of entries of size 1000
    assert float((again - W).abs().max()) < 1e-12 * float(W.abs().max())


@pytest.mark.parametrize(("n", "seeds"), [(8, 9), (32, 9), (128, 1)])
def test_every_freshly_made_torch_rnn_is_taken_over_unchanged(n, seeds):
    for seed in range(seeds):
        torch.manual_seed(seed)
        W = torch.nn.RNN(1, n).weight_hh_l0.detach()
        f = Contraction()
        torch.testing.assert_close(f(*f.right_inverse(W)), W, rtol=0, atol=1e-6)


@pytest.mark.parametrize("f", [Contraction(), EulerContraction(0.1)], ids=lambda f: f.key)
def test_gradients_pass_gradcheck(f):
    W = torch.from_numpy(rotated(3, 0.8, 0.5, 1))
    W = W if f.time == "discrete" else (W - torch.eye(3)) / 0.1
    assert torch.autograd.gradcheck(f, [w.clone().requires_grad_() for w in f.right_inverse(W)])


def test_euler_steps_bring_the_energy_down_up_to_the_step_that_the_form_was_made_for():
    """z+ = z + dt W tanh(z): V = sum D^2 log cosh z falls at every step, from anywhere."""
    f = EulerContraction(0.2)
    free = [torch.randn(6, 6, dtype=torch.float64), torch.randn(6, dtype=torch.float64)]
    W, D = f(*free), torch.exp(free[1])
    for dt in (0.2, 0.1, 0.01):
        z = 10 * torch.randn(200, 6, dtype=torch.float64)
        before = (D**2 * torch.log(torch.cosh(z))).sum(-1)
        for _ in range(50):
            z = z + dt * torch.tanh(z) @ W.mT
            after = (D**2 * torch.log(torch.cosh(z))).sum(-1)
            assert bool((after < before).all())
            before = after


@pytest.mark.usefixtures("user_mistakes")
class TestRefused:
    def test_a_matrix_that_a_relu_can_make_grow_is_refused_and_projected(self):
        assert spectral_margin(SWITCHING, "discrete") > 0.36
        f = Contraction()
        with pytest.raises(RangeError, match=r"numerical radius below 1 \(least found 1\.\d+\).*allow_change=True"):
            f.right_inverse(SWITCHING)
        W = f(*f.right_inverse(f.project(SWITCHING)))
        torch.testing.assert_close(W / W[0, 0], SWITCHING / SWITCHING[0, 0])  # scaled, by as little as the form needs
        assert 0.95 < float(W[0, 0]) < 1

    @pytest.mark.parametrize("f", [Schur(), Hurwitz(), Contraction(), EulerContraction(0.1)], ids=lambda f: repr(f))
    def test_any_finite_matrix_can_be_projected(self, f):
        for W in (3 * torch.eye(4), torch.randn(4, 4) * 1e4, torch.triu(torch.ones(4, 4)) * 1e3, torch.zeros(4, 4)):
            assert spectral_margin(f(*f.right_inverse(f.project(W))).double(), f.time) > 0
        with pytest.raises(RangeError, match="must be finite"):
            f.project(torch.full((2, 2), float("nan")))

    def test_a_kept_matrix_is_not_changed_by_projection(self):
        W = 0.5 * torch.eye(3)
        assert torch.equal(Schur().project(W), W)

    def test_conditions_beyond_the_dtype_are_refused_in_it_and_kept_in_a_wider_one(self):
        W = torch.tensor([[0.9, 3e4], [0.0, 0.89]], dtype=torch.float64)
        torch.testing.assert_close(Schur()(*Schur().right_inverse(W)), W)
        with pytest.raises(RangeError, match="allow_change=True"):
            Schur().right_inverse(W.float())

    def test_misspelt_times_and_missing_steps_are_named(self):
        with pytest.raises(UnknownNameError, match="time 'x'"):
            spectral_margin(torch.eye(2), "x")
        with pytest.raises(ArgumentError, match="needs dt="):
            get_matrix("contraction", time="continuous")
        with pytest.raises(ArgumentError, match="has no constants"):
            get_matrix("contraction", time="discrete", dt=0.1)
        with pytest.raises(ArgumentError, match="dt must be a finite number above 0"):
            EulerContraction(0.0)


@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1), (1e6, 1, 30), (1, 1e4, 1), (1, 0, 0), (0, 1, 1)],
    ids=["plain", "held", "clamped", "A=0", "K=0"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 5, 33])
def test_the_fused_training_step_is_the_one_that_autograd_writes(n, dtype, sizes):
    generator = torch.Generator().manual_seed(n)
    z, s, d, grad = (torch.randn(size, generator=generator, dtype=dtype) for size in ((n, n), (n, n), (n,), (n, n)))
    free = [(size * w).requires_grad_() for size, w in zip(sizes, (z, s, d), strict=True)]
    f = Contraction()
    plain = AbstractMatrixParameterization._rounded(f, *free)
    W = f(*free)
    assert W.grad_fn.name() == "_FusedBackward"
    torch.testing.assert_close(W, plain, rtol=1e-13 if dtype == torch.float64 else 1e-6, atol=0)
    expected = torch.autograd.grad(plain, free, grad)
    for one, other in zip(torch.autograd.grad(W, free, grad), expected, strict=True):
        assert float((one - other).abs().max()) <= 1e-8 * float(other.abs().max())


def test_a_fused_training_step_with_nan_shows_it_and_gives_no_gradient():
    free = [torch.zeros(3, 3), torch.full((3, 3), torch.nan), torch.zeros(3)]
    W = Contraction()(*(w.requires_grad_() for w in free))
    assert bool(W.isnan().all())
    assert [float(g.abs().max()) for g in torch.autograd.grad(W.sum(), free)] == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinite_free_weights_get_no_gradient_in_a_fused_training_step(dtype):
    generator = torch.Generator().manual_seed(0)
    free = [torch.randn(size, generator=generator, dtype=dtype) for size in ((4, 4), (4, 4), (4,))]
    # S is read by its symmetric part, from which these two vanish
    free[1][0, 2], free[1][2, 0] = math.inf, -math.inf
    grad = torch.randn(4, 4, generator=generator, dtype=dtype)
    f = Contraction()
    W, plain = f(*(w.requires_grad_() for w in free)), AbstractMatrixParameterization._rounded(f, *free)
    assert W.grad_fn.name() == "_FusedBackward"
    assert bool(W.isfinite().all())
    fused, expected = (torch.autograd.grad(one, free, grad) for one in (W, plain))
    for one, other in zip(fused, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6 * float(other.abs().max()))
    assert fused[1][0, 2] == fused[1][2, 0] == 0
    assert fused[1][0, 1] != 0
