import math

import mpmath
import numpy as np
import pytest
import torch

from holdfast import nn
from holdfast.errors import ArgumentError, ShapeError
from holdfast.kernels.s4d._reference import s4d_reference
from holdfast.memory import InputSearch, Probe, closed_form, memory_function

STEPS = range(40)


def weights(*shape, seed=0, complex=False):
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.complex128 if complex else torch.float64
    return torch.randn(*shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_diagonal_equals_dense_of_the_same_matrix(time):
    lam, B, C = -torch.rand(4).double(), weights(4, 3), weights(2, 4, seed=1)
    one = closed_form.diagonal(lam, B, C, STEPS, time=time)
    other = closed_form.dense(torch.diag(lam), B, C, STEPS, time=time)
    torch.testing.assert_close(one.rho, other.rho, rtol=1e-12, atol=1e-13)
    assert set(np.round(other.eigenvalues.real.numpy(), 12)) == set(np.round(lam.numpy(), 12))


def test_complex_diagonal_equals_the_real_rotation_that_it_stands_for():
    a, w = -0.2, 0.7
    W = torch.tensor([[a, w], [-w, a]]).double()
    rotation = closed_form.dense(W, torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 0.0]).double(), STEPS)
    pair = closed_form.diagonal(torch.tensor([complex(a, w)]), torch.ones(1).cdouble(), torch.ones(1).cdouble(), STEPS)
    # the eigenvalue was given in complex64: 1e-7 of t |lam|
    torch.testing.assert_close(pair.rho, rotation.rho, rtol=1e-5, atol=1e-8)


def test_dense_handles_a_matrix_without_eigenvectors():
    W = torch.tensor([[-1.0, 1.0], [0.0, -1.0]]).double()
    rho = closed_form.dense(
        W, torch.tensor([0.0, 1.0]).double(), torch.tensor([1.0, 0.0]).double(), [0.0, 0.5, 3.0]
    ).rho
    t = torch.tensor([0.0, 0.5, 3.0]).double()
    torch.testing.assert_close(rho[:, 0, 0], t * torch.exp(-t), rtol=1e-13, atol=1e-15)


def test_mean_over_a_step_equals_quadrature():
    lam = torch.tensor([-0.5, -1e-9]).double()
    step = 0.25
    mean = closed_form.diagonal(lam, torch.ones(2).double(), torch.ones(2).double(), [0.0, 1.0], step=step).rho
    fine = torch.linspace(0, step, 20_001).double()
    for k, t in enumerate((0.0, 1.0)):
        values = closed_form.diagonal(lam, torch.ones(2).double(), torch.ones(2).double(), t + fine).rho[:, 0, 0]
        # trapezoidal rule: step^2 / 12 / 20000^2
        assert float(mean[k, 0, 0]) == pytest.approx(float(torch.trapezoid(values, fine)) / step, abs=1e-11)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
@pytest.mark.parametrize("complex", [False, True])
def test_two_layers_equal_the_dense_recurrence_of_both_states(time, complex):
    lam1, lam2 = -torch.rand(3).double(), -torch.rand(2).double()
    lam2[0] = lam1[0]  # equal rates
    C, U1, U2 = weights(2, 3), weights(3, 2, seed=1), weights(2, 3, seed=2)
    if complex:
        lam1, lam2 = (torch.complex(lam, 0.3 * lam) for lam in (lam1, lam2))
        C, U1, U2 = weights(2, 3, complex=True), weights(3, 2, seed=1, complex=True), weights(2, 3, seed=2).cdouble()
    found = closed_form.two_layer(lam1, lam2, C, U1, U2, STEPS, time=time)
    # in discrete time h1_k reads h2_k, the new state: h1 = lam1 h1 + U1 (lam2 h2 + U2 x)
    corner = U1 if time == "continuous" else U1 * lam2
    W = torch.cat([torch.cat([torch.diag(lam1), corner], 1), torch.cat([torch.zeros(2, 3), torch.diag(lam2)], 1)])
    U = torch.cat([torch.zeros(3, 3).to(U2) if time == "continuous" else U1 @ U2, U2])
    read = torch.cat([C, torch.zeros(2, 2).to(C)], 1)
    expected = []
    state = U
    for t in STEPS:
        if time == "continuous":
            state = torch.linalg.matrix_exp(t * W) @ U
        expected.append((read @ state).real if complex else read @ state)
        state = W @ state if time == "discrete" else state
    torch.testing.assert_close(found.rho, torch.stack(expected), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-12, 1e-8, 1e-4, 0.1, 5.0])
def test_two_layer_memory_keeps_its_digits_for_near_rates(gap):
    t = [0.0, 0.1, 1.0, 20.0, 300.0]
    a, b = torch.tensor([-0.5]).double(), torch.tensor([-0.5 - gap]).double()
    one = torch.ones(1, 1).double()
    rho = closed_form.two_layer(a, b, one, one, one, t).rho[:, 0, 0]
    mpmath.mp.dps = 60
    l1, l2 = mpmath.mpf(float(a)), mpmath.mpf(float(b))
    for k, s in enumerate(t):
        limit = s * mpmath.exp(l1 * s)
        expected = limit if l1 == l2 else (mpmath.exp(l2 * s) - mpmath.exp(l1 * s)) / (l2 - l1)
        # e^{-150} carries the rounding of its exponent, 150 eps
        assert float(rho[k]) == pytest.approx(float(expected), rel=1e-13, abs=1e-300)


@pytest.mark.parametrize("discretization", ["zoh", "bilinear"])
def test_s4d_kernel_equals_the_layer_run_on_an_impulse(discretization):
    features, modes, steps = 3, 4, 50
    dt = torch.tensor([0.01, 0.1, 0.5]).double()
    lam_re, lam_im = (
        -0.5 * torch.ones(features, modes).double(),
        math.pi * torch.arange(modes).expand(features, -1).double(),
    )
    c_re, c_im, d = weights(features, modes), weights(features, modes, seed=1), weights(features, seed=2)
    impulse = torch.zeros(1, steps, features).double()
    impulse[:, 0] = 1
    out, _ = s4d_reference(impulse, dt, lam_re, lam_im, c_re, c_im, d, discretization=discretization)
    kernel = closed_form.s4d(
        dt, torch.complex(lam_re, lam_im), torch.complex(c_re, c_im), range(steps), D=d, discretization=discretization
    )
    torch.testing.assert_close(kernel.rho.diagonal(dim1=1, dim2=2), out[0], rtol=1e-11, atol=1e-12)
    assert float(kernel.rho[:, 0, 1].abs().max()) == 0
    torch.testing.assert_close(kernel.memory(), out[0].abs().amax(-1), rtol=1e-11, atol=1e-12)


def test_lru_kernel_equals_its_recurrence():
    lam = 0.9 * torch.exp(1j * torch.linspace(0.1, 2, 4).double())
    B, C, D = weights(4, 2, complex=True), weights(2, 4, seed=1, complex=True), weights(2, seed=2)
    gamma = torch.sqrt(1 - lam.abs() ** 2)
    kernel = closed_form.lru(lam, B, C, STEPS, gamma=gamma, D=D)
    for i in range(2):
        x = torch.zeros(2).cdouble()
        x[i] = 1
        h = gamma * (B @ x)
        for k in STEPS:
            y = (C @ h).real + (D * x.real if k == 0 else 0)
            torch.testing.assert_close(kernel.rho[k, :, i], y, rtol=1e-12, atol=1e-13)
            h = lam * h


def test_memory_is_the_sup_over_sign_vectors():
    kernel = closed_form.dense(weights(4, 4) / 4, weights(4, 3, seed=1), weights(2, 4, seed=2), STEPS)
    x = torch.cartesian_prod(*[torch.tensor([1.0, -1.0]).double()] * 3)
    for norm in (1.0, 2.0, math.inf):
        brute = torch.linalg.vector_norm(kernel.rho @ x.T, norm, dim=1).amax(-1)
        torch.testing.assert_close(kernel.memory(norm), brute, rtol=1e-13, atol=0)
    curve = kernel.curve()
    assert curve.probe == "closed form"
    np.testing.assert_array_equal(curve.values, kernel.memory().numpy())


LAYERS = {
    "diagonal": lambda: nn.DiagonalSSM(2, 3, activation="identity", dt=0.1),
    "diagonal, Euler": lambda: nn.DiagonalSSM(2, 3, activation="identity", dt=0.1, discretization="euler"),
    "diagonal, discrete": lambda: nn.DiagonalSSM(2, 3, activation="identity", time="discrete"),
    "linear, dense": lambda: nn.LinearRNN(2, 4),
    "linear, dense, continuous": lambda: nn.LinearRNN(2, 4, time="continuous", dt=0.2),
    "linear, diagonal": lambda: nn.LinearRNN(2, 4, structure="diagonal", out_features=1),
    "lru": lambda: nn.LRU(2, 4, r_max=0.99),
    "s4d": lambda: nn.S4D(2, 4, dt_min=0.05),
    "s4d, real, bilinear": lambda: nn.S4D(2, 4, initialization="real", discretization="bilinear", dt_min=0.05),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("probe", ["heaviside", "impulse", "reversed"])
def test_layers_measure_what_their_closed_form_says(name, probe):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    kernel = closed_form.of_layer(layer, 120)
    curve = memory_function(layer, input_size=2, horizon=120, probe=Probe(probe, dt=kernel.dt), double=True)
    assert curve.status == "ok"
    np.testing.assert_array_equal(curve.time, kernel.time.numpy())
    # the reversed probe leaves rho(t + burn-in), which settling bounds by 1e-9 of the output; over dt = 0.1
    allowed = 1e-10 if probe != "reversed" else 1e-7
    np.testing.assert_allclose(curve.values, kernel.memory().numpy(), rtol=0, atol=allowed)


def test_direct_weights_in_discrete_time_are_measured_with_their_eigenvalues():
    """There f is the identity, and the eigenvalues are the parameter itself, which requires a gradient."""
    layer = nn.DiagonalSSM(1, 3, parameterization="direct", time="discrete")
    curve = memory_function(layer, horizon=4)
    np.testing.assert_allclose(curve.eigenvalues, layer.w.detach().double().numpy(), rtol=0, atol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_the_eigenvalues_of_a_step_govern_the_kernel(name):
    torch.manual_seed(0)
    layer = LAYERS[name]()
    kernel = closed_form.of_layer(layer, 2)
    lam = closed_form.step_eigenvalues(layer)
    order = [torch.view_as_real(z.to(torch.complex128)).sort(0).values for z in (lam, kernel.eigenvalues)]
    torch.testing.assert_close(*order, rtol=1e-12, atol=1e-12)
    curve = kernel.curve()
    assert curve.dt == kernel.dt
    assert len(curve.eigenvalues) == len(lam)
    assert closed_form.step_eigenvalues(torch.nn.GRU(1, 2)) is None


def test_layers_without_a_closed_form_are_refused(user_mistakes):
    for layer, said in (
        (nn.DiagonalSSM(1, 2), "activation='tanh'"),
        (nn.LRU(1, 2, bidirectional=True), "bidirectional"),
        (torch.nn.GRU(1, 2), "got GRU, for which no closed form is known"),
    ):
        with pytest.raises(ArgumentError, match=said):
            closed_form.of_layer(layer, 10)
    with pytest.raises(ArgumentError, match="horizon"):
        closed_form.of_layer(nn.LRU(1, 2), -1)


def test_mistakes_are_named(user_mistakes):
    lam, one = torch.tensor([-1.0]), torch.ones(1)
    with pytest.raises(ArgumentError, match="whole numbers"):
        closed_form.diagonal(lam, one, one, [0.5], time="discrete")
    with pytest.raises(ArgumentError, match="finite numbers >= 0"):
        closed_form.diagonal(lam, one, one, [-1.0])
    with pytest.raises(ArgumentError, match="delta"):
        closed_form.diagonal(lam, one, one, [1.0], D=torch.ones(1, 1))
    with pytest.raises(ArgumentError, match="step is the averaging interval"):
        closed_form.diagonal(lam, one, one, [1.0], time="discrete", step=0.1)
    with pytest.raises(ShapeError):
        closed_form.diagonal(lam, torch.ones(3), one, [1.0])
    with pytest.raises(ShapeError):
        closed_form.two_layer(lam, lam, torch.ones(1, 1), torch.ones(2, 2), torch.ones(1, 1), [1.0])
    with pytest.raises(ArgumentError, match="12 inputs"):
        closed_form.diagonal(lam, torch.ones(1, 13), one, [1.0]).memory(2.0)


@pytest.mark.parametrize("probe", ["heaviside", "impulse", "reversed"])
@pytest.mark.parametrize("inputs", [1, 2, 6, 7, 12, 40, 64, 65, 100])
def test_the_sup_of_a_linear_layer_is_exact_for_any_number_of_inputs(inputs, probe):
    torch.manual_seed(inputs)
    layer = nn.LRU(inputs, 16, out_features=1)
    with torch.no_grad():
        layer.D.zero_()
    curve = memory_function(layer, input_size=inputs, horizon=60, probe=probe, double=True)
    exact = closed_form.of_layer(layer, 60).memory().numpy()
    # float64 against a closed form in float64: 100 responses of 1e-16 each, and what a burn-in leaves (1e-9)
    np.testing.assert_allclose(curve.values, exact, rtol=0, atol=1e-8 * exact.max())
    assert curve.bound == "exact" and "exact sup" in curve.summary()
    # the x of each time reaches its value
    reached = np.abs(closed_form.of_layer(layer, 60).rho.numpy()[:, 0] * np.sign(curve.maximiser)).sum(-1)
    np.testing.assert_allclose(reached, exact, rtol=1e-12)


@pytest.mark.parametrize("normalization", ["x", "x+1"])
def test_the_sup_of_several_outputs_is_exact_in_the_norm_inf_and_a_bound_in_others(normalization):
    torch.manual_seed(0)
    layer = nn.LRU(10, 8, out_features=3)
    kernel = closed_form.of_layer(layer, 40)
    options = {"input_size": 10, "horizon": 40, "double": True}
    largest = memory_function(layer, probe=Probe(normalization=normalization), **options)
    share = 10 / 11 if normalization == "x+1" else 1.0
    np.testing.assert_allclose(largest.values, share * kernel.memory().numpy(), rtol=0, atol=1e-8)
    euclidean = memory_function(layer, probe=Probe(norm=2.0, normalization=normalization), **options)
    assert (largest.bound, euclidean.bound) == ("exact", "lower bound")
    assert (euclidean.values <= share * kernel.memory(2.0).numpy() + 1e-8).all()
    every = memory_function(layer, probe=Probe(norm=2.0), search=InputSearch(budget=1024), **options)
    assert every.bound == "exact"
    np.testing.assert_allclose(every.values, kernel.memory(2.0).numpy(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("inputs", [1, 2, 10, 70])
@pytest.mark.parametrize("bend", [torch.tanh, torch.relu, lambda x: x.amax(-1, keepdim=True) ** 2])
def test_a_model_that_is_not_linear_gets_a_lower_bound(inputs, bend):
    curve = memory_function(bend, input_size=inputs, horizon=3)
    assert curve.bound == "lower bound" and "lower bound" in curve.summary()
