"""Statements of the papers' appendices that no experiment decides: each as a check that would fail if it were wrong."""

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

from holdfast import fit_exponential_sum, laws, memory_function, parameterizations
from holdfast.decay import fit_decay, uniform_memory
from holdfast.memory import MemoryCurve, Probe, closed_form
from holdfast.nn import ContinuousRNN, DiagonalSSM
from holdfast.stability import gradient_bound
from holdfast.stability.perturbation._evaluate import get_metric
from holdfast_papers import reconstruct
from holdfast_papers.constructions import convolution, elementwise

T = np.linspace(0, 200, 4001)


def bounded_fit(target, rates, largest):
    """The sup error on T of the best non-negative sum (least squares) whose coefficients are at most `largest`."""
    A = np.exp(-np.outer(T, rates))
    c = lsq_linear(A, target, bounds=(0, largest)).x
    return np.abs(target - A @ c).max(), c.sum()


def test_rates_bounded_away_from_zero_reach_no_power_law():
    """iat, Thm A.4, and Lemma A.10 with numbers: |rho(t)| <= error + C e^{-b t} for every t, C the sum of |c|."""
    rho, beta = (1 + T) ** -1.5, 0.1
    errors = []
    for m in (4, 8, 16, 32):
        error, C = bounded_fit(rho, np.geomspace(beta, 4, m), 1.0)
        assert error >= (rho - C * np.exp(-beta * T)).max() > 1e-3
        errors.append(error)
    assert errors[-1] > 0.9 * errors[1]  # more units do not help
    assert bounded_fit(rho, np.geomspace(1 / 32**2, 4, 32), 1.0)[0] < errors[-1] / 3  # slower ones do
    # in the norm of the functional, the integral of |rho - s|, the same
    fast, slow = (
        fit_exponential_sum(laws.PowerLaw(1.5), rates=np.geomspace(b, 4, 32)).error for b in (beta, 1 / 32**2)
    )
    assert fast > 10 * slow
    # the other way round, a target that decays faster than the rates is reached
    assert bounded_fit(np.exp(-0.3 * T), np.geomspace(beta, 4, 32), 1.0)[0] < 1e-3


def test_the_limit_of_a_uniformly_exponential_family_is_exponential_and_others_may_be_power_laws():
    """iat, Lemma A.10; StableSSM, Lemma B.8: f_m -> f with |f_m| <= C e^{-b t} gives |f| <= C e^{-b t}, b itself included."""

    def family(rates, c):
        terms = c * np.exp(-np.outer(T, rates))
        return [MemoryCurve(T, terms[:, : m + 1].sum(1)) for m in range(len(rates))]

    k = np.arange(1, 30)
    uniform = family(0.2 + 1 / k, k**-2.0)
    above = uniform_memory(uniform).values
    limit = uniform[-1].values
    assert (limit <= above).all()
    assert fit_decay(MemoryCurve(T, above)).law == "exponential"
    assert (above * np.exp(0.2 * T)).max() <= (k**-2.0).sum() * (1 + 1e-12)
    # rates that go to 0: every member is exponential and the limit is not
    slow = family(1 / k**2.0, k**-3.0)
    assert slow[-1].values[-1] > 20 * (k**-3.0).sum() * np.exp(-0.05 * T[-1])


def test_a_decaying_output_need_not_mean_resting_states_until_the_readout_moves():
    """iat, Lemma A.6: one c can hide a state that grows, all c in a ball around it cannot."""
    W = torch.diag(torch.tensor([-1.0, 0.5], dtype=torch.float64))

    def last(c):
        model = ContinuousRNN(1, 2, activation="tanh", parameterization="direct", dt=0.05, W=W).double()
        with torch.no_grad():
            model.U.fill_(1.0)
            model.C.copy_(torch.tensor([c]))
        return memory_function(model, horizon=1000, probe="heaviside").values[-1]

    assert last([1.0, 0.0]) < 1e-10
    assert last([1.0, 0.01]) > 4e-3  # dh/dt of the hidden unit is 1 by then, for inputs of size 2


def test_two_layers_with_close_rates_hold_what_one_layer_needs_unbounded_weights_for():
    """ssm, App. A: weights of 1 in two layers are weights 1 / gap in one; the limit is t e^{-t}."""
    t = torch.arange(0.0, 20.0, 0.1, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)

    def kernel(gap):
        lam1, lam2 = torch.tensor([[-1.0], [-1.0 + gap]], dtype=torch.float64)
        return closed_form.two_layer(lam1, lam2, one, one, one, t).rho.flatten()

    limit = t * torch.exp(-t)
    for gap in (1e-1, 1e-3, 1e-12):
        # the second order of (e^{gap t} - 1) / gap, largest at t = 2: below 2 e^-2 gap, and rounding
        assert (kernel(gap) - limit).abs().max() < 0.4 * gap + 1e-14
    # one layer with the same two rates: its coefficients are +-1000, and within +-1 it misses the limit
    A = torch.exp(-torch.outer(t, torch.tensor([1.0, 0.999], dtype=torch.float64))).numpy()
    free = np.linalg.lstsq(A, kernel(1e-3).numpy(), rcond=None)[0]
    np.testing.assert_allclose(free, [-1000, 1000], rtol=1e-6)
    held = lsq_linear(A, limit.numpy(), bounds=(-1, 1)).x
    assert np.abs(A @ held - limit.numpy()).max() > 0.2


def test_errors_of_the_three_stages_add_up_as_printed():
    """ssm, eq. 55: |Phi(rho * phi(x)) - its network| <= L |rho|_1 e1 + L e2 + e3, the errors of the three stages."""
    length, L = 64, 2.0
    rho = laws.PowerLaw(1.5)
    phi = elementwise(lambda z: np.sin(2 * z), tolerance=1e-2)
    conv = convolution(rho, length, tolerance=1e-2)
    mass = float(rho(np.arange(length)).sum())
    outer = elementwise(lambda z: np.tanh(L * z), -1.1 * mass, 1.1 * mass, tolerance=1e-2)
    x = 2 * torch.rand(20, length, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    kernel = torch.as_tensor(rho(np.arange(length)), dtype=torch.float64)
    shift = torch.arange(length)[:, None] - torch.arange(length)
    toeplitz = torch.where(shift >= 0, kernel[shift.clamp(min=0)], 0.0)

    def exact(z):
        return (toeplitz @ z[..., 0].T).T[..., None]

    with torch.no_grad():
        inner = phi.network(x)[0]
        middle = conv.network(inner)[0]
        y = outer.network(middle)[0]
    e1 = float((inner - torch.sin(2 * x)).abs().max())
    e2 = float((middle - exact(inner)).abs().max())
    e3 = float((y - torch.tanh(L * middle)).abs().max())
    error = float((y - torch.tanh(L * exact(torch.sin(2 * x)))).abs().max())
    assert max(e1, e3) < 1.1e-2
    assert error <= L * mass * e1 + L * e2 + e3
    assert error > 0.02 * (L * mass * e1 + L * e2 + e3)  # a bound of the right order, not an empty one


def test_an_implicit_convolution_becomes_a_recurrence_of_fixed_state():
    """ssm, App. C: a Hyena-like kernel, a small network of time under a decaying window, streams from a few states."""
    length = 512
    t = torch.linspace(0, 1, length, dtype=torch.float64)
    rng = torch.Generator().manual_seed(3)
    a, b, c = (torch.randn(8, generator=rng, dtype=torch.float64) for _ in range(3))
    kernel = ((torch.sin(3 * torch.outer(t, a) + b) @ c) * torch.exp(-12 * t)).numpy()
    made = convolution(kernel, length, tolerance=1e-3, method="matrix_pencil")
    assert made.reached
    x = torch.randn(1, length, 1, dtype=torch.float64, generator=rng)
    with torch.no_grad():
        whole, state, steps = made.network(x)[0], None, []
        for k in range(length):
            y, state = made.network.step(x[:, k], state)
            steps.append(y)
    # the same weights step by step, to rounding: what is kept between steps does not grow with the length
    assert (torch.stack(steps, 1) - whole).abs().max() < 1e-9 * whole.abs().max()
    expected = np.convolve(x[0, :, 0].numpy(), kernel)[:length]
    assert np.abs(whole[0, :, 0].numpy() - expected).max() <= 1e-3 * np.abs(kernel).sum() * float(x.abs().max()) + 1e-9
    assert sum(part.numel() for part in torch.utils._pytree.tree_leaves(state)) < length / 4


def slow_family(m, inputs):
    """States of a diagonal SSM with rates geometric on [1/m^2, 4] under the input 1, after 20 slow time constants."""
    rates = torch.logspace(-2 * np.log10(m), np.log10(4), m, dtype=torch.float64)
    layer = DiagonalSSM(1, m, parameterization="direct", eigenvalues=-rates, bias=False, activation="identity").double()
    with torch.no_grad():
        layer.U.copy_((rates if inputs == "rates" else torch.ones(m)).reshape(layer.U.shape))
        state = None
        for _ in range(40):
            _, state = layer(torch.ones(1, m**2 // 2, 1, dtype=torch.float64), state)
    return float(torch.as_tensor(state).abs().max()) if isinstance(state, torch.Tensor) else float(state[0].abs().max())


def test_bounded_states_bound_the_inputs_of_slow_modes():
    """StableSSM, eq. 4: a mode's state reaches |U_i| / rate_i. With U = 1 it grows like m^2, with U = rates it is 1."""
    assert slow_family(8, "ones") == pytest.approx(64, rel=1e-6)
    assert slow_family(16, "ones") == pytest.approx(256, rel=1e-6)
    for m in (8, 16):
        assert slow_family(m, "rates") == pytest.approx(1, rel=1e-6)


def test_without_bounded_states_a_decaying_memory_hides_a_growing_mode():
    """StableSSM, Lemma B.6 needs eq. 4: a saturated tanh at the readout forgets while the state grows."""
    grows = torch.tensor([0.1], dtype=torch.float64)
    layer = DiagonalSSM(1, 1, parameterization="direct", eigenvalues=grows, bias=False, activation="tanh").double()
    with torch.no_grad():
        layer.U.fill_(1.0)
        layer.C.fill_(1.0)
    curve = memory_function(layer, horizon=60, probe=Probe("heaviside"))
    assert curve.values[-1] < 1e-12 * curve.values.max()
    with torch.no_grad():
        _, state = layer(torch.ones(1, 60, 1, dtype=torch.float64))
    assert float(state.abs().max() if isinstance(state, torch.Tensor) else state[0].abs().max()) > 1000


def test_strictly_increasing_does_not_keep_a_slope_away_from_zero():
    """StableSSM, Lemma B.5: tanh(z^3) is bounded, smooth and strictly increasing, with slope 0 at 0.

    What is needed is a positive slope everywhere, as tanh, sigmoid and softsign have.
    """
    z = torch.linspace(-2, 2, 2001, dtype=torch.float64, requires_grad=True)

    def slopes(sigma):
        return torch.autograd.grad(sigma(z).sum(), z)[0]

    cubic = torch.tanh(z**3).detach()
    assert (cubic.diff() >= 0).all() and float(slopes(lambda z: torch.tanh(z**3)).min()) < 1e-30
    for sigma, at_two in ((torch.tanh, 1 - np.tanh(2) ** 2), (torch.nn.functional.softsign, 1 / 9)):
        assert float(slopes(sigma).min()) == pytest.approx(at_two, rel=1e-9)


def test_a_mode_without_input_is_seen_once_the_input_weights_move():
    """StableSSM, Lemma B.7: U and b are perturbed, so that the states at the start fill a ball of the whole space."""

    def last(weight):
        lam = torch.tensor([-0.5, 0.05], dtype=torch.float64)
        layer = DiagonalSSM(
            1, 2, parameterization="direct", eigenvalues=lam, bias=False, activation="identity"
        ).double()
        with torch.no_grad():
            layer.U.copy_(torch.tensor([1.0, weight]).reshape(layer.U.shape))
            layer.C.fill_(1.0)
        return memory_function(layer, horizon=300).values[-1]

    assert last(0.0) < 1e-12
    assert last(1e-3) > 1.0


def test_states_are_continuous_at_heaviside_inputs_uniformly_in_time():
    """StableSSM, App. B.1, where the dynamics are those of eq. 3: |h_k - h| <= |U| eps / rate, for all times at once.

    The printed proof puts sigma into the recurrence and bounds by e^{|Lam| t}, which is 1e21 at t = 100.
    """
    rates = torch.tensor([0.05, 0.5], dtype=torch.float64)
    layer = DiagonalSSM(1, 2, parameterization="direct", eigenvalues=-rates, bias=False, activation="identity").double()
    with torch.no_grad():
        layer.U.fill_(1.0)
        layer.C.copy_(torch.tensor([1.0, 0.0]).reshape(layer.C.shape))
        x = torch.ones(1, 2000, 1, dtype=torch.float64)
        for eps in (1e-1, 1e-3):
            noise = eps * torch.sign(
                torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            )
            moved = (layer(x + noise)[0] - layer(x)[0]).abs().max()
            assert eps < moved <= eps / 0.05
            assert (layer(x + eps)[0] - layer(x)[0]).abs().max() == pytest.approx(eps / 0.05, rel=1e-6)


def test_the_sobolev_distance_is_a_norm_and_the_functional_norm_needs_large_inputs():
    """StableSSM, Def. A.1 and eq. 14: sup |H(x)| / (|x| + 1) of a linear H is its norm only in the limit of large x."""
    metric = get_metric("sobolev", 0.5)

    def size(e):
        return float(metric.finish(metric.partial(e[None]), 1)[0])

    a, b = torch.randn(2, 4, 30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert size(a + b) <= size(a) + size(b)
    assert size(-3 * a) == pytest.approx(3 * size(a), rel=1e-12)
    assert size(0 * a) == 0 and size(a) >= float(a.abs().max())
    kernel = np.array([1.0, -0.5, 0.25])
    found = [abs(amplitude * np.abs(kernel).sum()) / (amplitude + 1) for amplitude in (1.0, 1e6)]
    assert found[0] == pytest.approx(0.5 * 1.75) and found[1] == pytest.approx(1.75, rel=1e-5)


@pytest.mark.parametrize("f", ["exp", "softplus", "best"])
def test_gradients_of_a_deep_network_stay_below_their_scale_in_every_layer(f):
    """StableSSM, Thm 3.4 for deeper networks: |dLoss/dw_j| <= G_f(w_j) sup_t |(Ux + b)_j| sum_t |dLoss/dh_jt|.

    h_t = lam h_{t-1} + v_t gives |dh_t/dw| <= |f'| sum_k k |lam|^{k-1} sup |v| = G_f sup |v|; what comes after the layer
    enters by dLoss/dh_t alone, and the layers before it by v.
    """
    rng = torch.Generator().manual_seed(5)
    g = parameterizations.get(f, time="discrete")
    lam = torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)
    weights = [g.inverse(lam).clone().requires_grad_() for _ in range(3)]
    mixes = [torch.randn(3, 3, generator=rng, dtype=torch.float64) / 2 for _ in range(3)]
    z, kept = torch.ones(300, 3, dtype=torch.float64), []
    z = z + 0.1 * torch.randn(300, 3, generator=rng, dtype=torch.float64)
    for w, U in zip(weights, mixes, strict=True):
        v, h, states = z @ U.T, torch.zeros(3, dtype=torch.float64), []
        for t in range(len(v)):
            h = g(w) * h + v[t]
            states.append(h)
        # the readout's own copy of the states: its gradient does not run back through the recurrence
        seen = torch.stack(states) + torch.zeros(300, 3, dtype=torch.float64).requires_grad_()
        seen.retain_grad()
        kept.append((v.detach().abs().amax(0), seen))
        z = torch.tanh(seen)
    ((z.sum(1) - 1) ** 2).mean().backward()
    ratios = []
    for w, (v, seen) in zip(weights, kept, strict=True):
        bound = gradient_bound(v * seen.grad.abs().sum(0), w.detach(), parameterization=f, time="discrete")
        assert (w.grad.abs() <= bound * (1 + 1e-9)).all()
        ratios.append(float((w.grad.abs() / bound).max()))
    assert max(ratios) > 0.02  # the bound is not empty in some layer


def test_a_nonlinear_state_space_model_is_a_map_of_the_inputs_that_the_state_gives_back():
    """linrec, App. D: y_k = g(x_k), x_k = T(x_{k-1}, u_k) is T_k(u_1..u_k), and a linear state holds u_1..u_k."""

    def recursion(u):
        x, outputs = torch.zeros(len(u), 2, dtype=torch.float64), []
        for k in range(u.shape[1]):
            x = torch.stack([torch.tanh(x[:, 0] + u[:, k] * x[:, 1]), 0.9 * x[:, 1] + u[:, k].sin()], -1)
            outputs.append(x.prod(-1))
        return torch.stack(outputs, 1)

    length = 24
    u = torch.randn(10, length, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lam = reconstruct.roots_of_unity(length)
    for k in (5, 24):
        state = torch.zeros(10, length, dtype=torch.complex128)
        for step in range(k):
            state = lam * state + u[:, step, None]
        back = reconstruct.inputs(state, lam, k).values
        assert (recursion(back.real)[:, -1] - recursion(u)[:, k - 1]).abs().max() < 1e-10
