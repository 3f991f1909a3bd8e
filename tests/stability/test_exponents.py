"""Lyapunov exponents against closed forms and published values."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast import nn as layers
from holdfast.errors import ArgumentError, HoldfastError


class Map(nn.Module):
    """A map of the plane or space as a model that reads nothing: its output is its state."""

    def __init__(self, step, start):
        super().__init__()
        self.step = step
        self.register_buffer("start", torch.tensor(start, dtype=torch.float64))

    def forward(self, x, state=None):
        state = self.start.expand(len(x), -1) if state is None else state
        visited = []
        for _ in range(x.shape[1]):
            state = self.step(state)
            visited.append(state)
        return torch.stack(visited, 1), state


def henon(s):
    x, y = s.unbind(-1)
    return torch.stack([1 - 1.4 * x * x + y, 0.3 * x], -1)


def logistic(s):
    return 4 * s * (1 - s)


def lorenz(s, h=0.02):
    def flow(s):
        x, y, z = s.unbind(-1)
        return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], -1)

    a = flow(s)
    b = flow(s + h / 2 * a)
    c = flow(s + h / 2 * b)
    return s + h / 6 * (a + 2 * b + 2 * c + flow(s + h * c))


def exponents(step, start, *, rows, steps, dt=1.0, discard=200):
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(rows, len(start), generator=generator, dtype=torch.float64)
    state = torch.tensor(start, dtype=torch.float64) + 0.01 * noise
    inputs = torch.zeros(rows, steps + discard, 1)
    return holdfast.stability.lyapunov_spectrum(Map(step, start), inputs, state=state, dt=dt, discard=discard)


def test_the_henon_map_has_its_published_exponents_and_the_sum_of_its_determinant():
    found = exponents(henon, [0.1, 0.1], rows=64, steps=2000)
    # 0.41922 and -1.62319 (Sprott, Chaos and Time-Series Analysis, 2003); 128,000 steps know them to 0.001
    assert found.errors[0] < 0.0015
    assert abs(found.exponents - np.array([0.41922, -1.62319])).max() < 4 * found.errors[0]
    # |det J| = 0.3 at every point: rounding of 2,000 logarithms
    assert found.exponents.sum() == pytest.approx(math.log(0.3), abs=1e-12)
    assert found.dimension == pytest.approx(1 + 0.41922 / 1.62319, abs=0.01)


def test_the_logistic_map_has_ln_2():
    found = exponents(logistic, [0.3], rows=64, steps=1000)
    assert found.exponents[0] == pytest.approx(math.log(2), abs=4 * found.errors[0])
    assert found.errors[0] < 0.001
    assert "chaotic" in found.summary()


def test_the_lorenz_system_stepped_by_runge_kutta_has_its_published_exponents():
    found = exponents(lorenz, [1.0, 1.0, 20.0], rows=64, steps=2000, dt=0.02)
    # 0.9056, 0, -14.5723 (Sprott 2003); 2560 units of time know them to about 0.015
    assert abs(found.exponents - np.array([0.9056, 0.0, -14.5723])).max() < 0.05
    # the divergence of the flow is -(10 + 1 + 8/3) everywhere; Runge-Kutta of order 4 at h = 0.02 keeps 3 digits of it
    assert found.exponents.sum() == pytest.approx(-(11 + 8 / 3), rel=1e-3)


def test_a_linear_recurrence_has_the_logarithms_of_its_eigenvalues():
    torch.manual_seed(0)
    layer = layers.LRU(1, 3)
    found = holdfast.stability.lyapunov_spectrum(layer, torch.randn(2, 40, 1), discard=20, double=True)
    logs = layer.eigenvalues().detach().abs().log().double().sort(descending=True).values
    # weights are float32 and are widened before the eigenvalues are made: 1e-6
    np.testing.assert_allclose(found.exponents, logs.repeat_interleave(2), atol=2e-6)
    assert found.state_size == 6 and "come together" in found.summary()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_at_rest_the_exponents_are_those_of_the_certificate(kind):
    torch.manual_seed(0)
    model = kind(1, 3, batch_first=True)
    found = holdfast.stability.lyapunov_spectrum(model, torch.zeros(1, 1000, 1), discard=600, double=True)
    known = holdfast.certify(model, starts=1)
    # Q turns into place like the ratio of the two largest moduli to the power 300
    assert found.exponents[0] == pytest.approx(math.log(known.spectral_radius), abs=1e-5)
    # the determinant does not depend on Q: rounding alone
    assert found.exponents.sum() == pytest.approx(float(np.log(np.abs(known.eigenvalues)).sum()), abs=1e-10)


def test_fewer_exponents_are_the_first_of_all_and_leave_the_model_as_it_was():
    torch.manual_seed(0)
    model = nn.GRU(2, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(800, 2, 2)  # the two largest differ by 0.06 per step: 350 steps of turning leave e^(-21)
    every, some = (
        holdfast.stability.lyapunov_spectrum(model, x, discard=700, layout="time_first", count=count)
        for count in (None, 1)
    )
    np.testing.assert_allclose(some.exponents, every.exponents[:1], atol=1e-9)
    assert every.dimension == 0.0 and some.state_size == 4
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_direction_that_a_step_forgets_has_minus_infinity():
    found = holdfast.stability.lyapunov_spectrum(
        Map(lambda s: s * torch.tensor([0.5, 0.0]), [1.0, 1.0]), torch.zeros(1, 40, 1), discard=0
    )
    assert found.exponents[0] == pytest.approx(math.log(0.5)) and found.exponents[1] == -math.inf


def test_what_has_no_state_or_too_few_steps_is_refused():
    with pytest.raises(ArgumentError, match="state must have the shapes and dtypes that the model returns for 1 rows"):
        holdfast.stability.lyapunov_spectrum(
            nn.GRU(1, 2, batch_first=True), torch.zeros(1, 40, 1), state=torch.zeros(3), discard=0
        )
    with pytest.raises(HoldfastError, match="a model that continues from a state"):
        holdfast.stability.lyapunov_spectrum(nn.Linear(1, 1), torch.zeros(1, 200, 1))
    with pytest.raises(ArgumentError, match="at least 16 steps of inputs"):
        holdfast.stability.lyapunov_spectrum(nn.GRU(1, 2, batch_first=True), torch.zeros(1, 20, 1), discard=10)


class Linear(nn.Module):
    """h+ = A h as a model that reads nothing."""

    def __init__(self, A):
        super().__init__()
        self.register_buffer("A", A)

    def forward(self, x, state=None):
        state = x.new_zeros(len(x), len(self.A)) if state is None else state
        visited = []
        for _ in range(x.shape[1]):
            state = state @ self.A.mT
            visited.append(state)
        return torch.stack(visited, 1), state


@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_slowest_modes_of_a_diagonal_layer_come_first_whatever_their_order(count):
    layer = layers.DiagonalSSM(1, 8, activation="identity", eigenvalues=-torch.logspace(0, -3, 8))
    spectrum = holdfast.stability.lyapunov_spectrum(
        layer, torch.zeros(1, 6200, 1), count=count, discard=6000, double=True
    )
    exact = -np.logspace(-3, 0, 8)[:count]
    # the two slowest modes differ by 0.0017 per step: after 3,000 steps of turning e^(-5) of the second is left
    assert spectrum.exponents[0] == pytest.approx(-0.001, rel=0.01)
    assert (np.abs(spectrum.exponents - exact) <= 4 * spectrum.errors + 1e-6).all()


def test_a_frame_that_still_turns_is_said():
    layer = layers.DiagonalSSM(1, 8, activation="identity", eigenvalues=-torch.logspace(0, -3, 8))
    spectrum = holdfast.stability.lyapunov_spectrum(layer, torch.zeros(1, 120, 1), count=1, double=True)
    assert spectrum.status == "aligning" and "raise discard" in spectrum.summary()
    assert abs(spectrum.exponents[0] + 0.001) <= 4 * spectrum.errors[0]


def test_an_lru_has_its_largest_modulus_first():
    torch.manual_seed(0)
    layer = layers.LRU(1, 8)
    spectrum = holdfast.stability.lyapunov_spectrum(layer, torch.zeros(1, 2100, 1), count=1, discard=2000, double=True)
    assert spectrum.exponents[0] == pytest.approx(float(layer.eigenvalues().detach().abs().log().max()), rel=0.01)


def random_system(kind, generator):
    """A linear system with its exponents: complex, defective, non-normal or near 1."""
    n = int(torch.randint(2, 7, (), generator=generator))
    noise = torch.randn(n, n, generator=generator, dtype=torch.float64)
    uniform = torch.rand(n, generator=generator, dtype=torch.float64)
    if kind == "complex":
        return noise / n**0.5, torch.linalg.eigvals(noise / n**0.5).abs().log()
    if kind == "defective":
        lam = 0.5 + uniform[0] / 2
        return lam * torch.eye(n).double() + torch.diag(torch.ones(n - 1), 1).double(), lam.log().expand(n)
    if kind == "non-normal":
        return torch.diag(0.9 + uniform / 10) + noise.triu(1), (0.9 + uniform / 10).log()
    lam = 1 - 10 ** (-1 - 3 * uniform)
    turned = torch.linalg.qr(noise)[0]
    return turned @ torch.diag(lam) @ turned.mT, lam.log()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["complex", "defective", "non-normal", "near 1"])
def test_exponents_of_random_linear_systems_lie_within_their_errors(kind, dtype):
    generator = torch.Generator().manual_seed(7)
    missed, total = 0, 0
    for _ in range(3):
        A, exact = random_system(kind, generator)
        exact = exact.sort(descending=True).values.numpy()
        # float32 moves an eigenvalue by 1e-7, those of a defective block of n by the n-th root of that
        rounding = 1e-9 if dtype == torch.float64 else 1e-6 if kind != "defective" else 0.1
        for count in range(1, len(A) + 1):
            spectrum = holdfast.stability.lyapunov_spectrum(
                Linear(A.to(dtype)), torch.zeros(1, 160, 1, dtype=dtype), count=count, discard=100
            )
            distance = np.abs(spectrum.exponents - exact[:count])
            missed += int((distance > 4 * spectrum.errors + rounding).sum())
            total += count
            if spectrum.status == "converged":
                assert (distance <= 0.05 * np.abs(exact[:count]) + 4 * spectrum.errors + rounding).all()
    # 4 standard errors; three frames can agree by accident while they turn
    assert missed <= 0.02 * total


class TestModelsThatKeepTheirStates:
    """The exponents of all recurrences together, where `model(x, state)` does not continue from a state."""

    def test_a_stack_behind_a_head_has_those_of_the_stack_itself(self):
        torch.manual_seed(0)
        rnn = nn.GRU(2, 3, num_layers=2, batch_first=True).double()
        x = torch.randn(2, 300, 2, dtype=torch.float64)

        class Headed(nn.Module):
            def __init__(self):
                super().__init__()
                self.rnn, self.head = rnn, nn.Linear(3, 1).double()

            def forward(self, x):
                return self.head(self.rnn(x)[0])

        inside, own = holdfast.stability.lyapunov_spectrum(Headed(), x), holdfast.stability.lyapunov_spectrum(rnn, x)
        assert inside.state_size == own.state_size == 6
        # the same trajectories; frames of each layer turn by themselves, which errors tell
        assert np.abs(inside.exponents - own.exponents).max() < 0.02
        assert inside.exponents[0] == pytest.approx(own.exponents[0], abs=2 * (inside.errors[0] + own.errors[0]))

    def test_tokens_are_read(self):
        torch.manual_seed(0)

        class Tokens(nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.rnn = nn.Embedding(5, 2), nn.RNN(2, 3, batch_first=True)

            def forward(self, tokens):
                return self.rnn(self.table(tokens))[0]

        model, tokens = Tokens(), torch.randint(5, (2, 200))
        own = holdfast.stability.lyapunov_spectrum(model.rnn, model.table(tokens).detach())
        # two exponents 0.04 apart: frames that begin 50 steps apart have not turned into place alike
        found = holdfast.stability.lyapunov_spectrum(model, tokens)
        assert found.exponents == pytest.approx(own.exponents, abs=0.01)
        assert found.exponents.sum() == pytest.approx(own.exponents.sum(), abs=1e-3)  # volumes do not turn
