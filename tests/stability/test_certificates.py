"""certify: closed forms of normal and non-normal matrices, the papers' bounds, equilibria of gated units, mistakes."""

import copy
import json
import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from torch import nn

from holdfast import laws
from holdfast.errors import ArgumentError, ShapeError
from holdfast.nn import (
    LRU,
    S4D,
    ContinuousGRU,
    ContinuousRNN,
    DiagonalSSM,
    LinearRNN,
    Mamba,
    SelectiveSSM,
    SequenceModel,
)
from holdfast.stability import certify, memory_bound, stabilize, weight_bound

NON_NORMAL = torch.tensor([[-0.1, 5.0, 0.0], [0.0, -0.2, 3.0], [0.0, 0.0, -0.3]])
STORED = 1e-6  # eigenvalues of weights that are kept in float32


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def linear(W, **choices):
    return LinearRNN(1, len(W), W=W, parameterization="direct", **choices)


def test_normal_matrix_meets_the_papers_lemma_as_an_equality():
    rotation = torch.tensor([[-0.2, 1.0], [-1.0, -0.2]])
    found = certify(linear(rotation, time="continuous"))
    assert found.status == "stable"
    assert found.spectral_abscissa == pytest.approx(-0.2, rel=STORED)
    assert found.numerical == pytest.approx(-0.2, rel=STORED)
    assert found.lyapunov.applies
    assert found.lyapunov.norm == pytest.approx(1 / 0.4, rel=STORED) == found.lyapunov.paper_bound
    assert found.growth.bound == pytest.approx(1, rel=STORED)
    assert found.growth.measured == 1
    assert found.departure < 1e-3  # the root of a rounding


def test_non_normal_matrix_breaks_the_papers_lemma_and_the_certificate_says_why():
    found = certify(linear(NON_NORMAL, time="continuous"))
    P, W = found.lyapunov.solution, NON_NORMAL.double().numpy()
    np.testing.assert_allclose(W.T @ P + P @ W, -np.eye(3), atol=1e-8 * found.lyapunov.norm)
    assert found.status == "stable"
    assert found.lyapunov.paper_bound == pytest.approx(1 / 0.2, rel=STORED)
    assert found.lyapunov.norm == pytest.approx(np.linalg.norm(P, 2))
    assert found.lyapunov.excess > 1000
    assert not found.lyapunov.applies
    assert "not normal" in found.lyapunov.reason
    assert "Lemma A.8" in found.lyapunov.reason
    # it grows at first though every eigenvalue decays
    assert found.numerical > 0 > found.spectral


def test_a_matrix_that_is_not_normal_may_keep_the_papers_lemma():
    found = certify(
        linear(torch.block_diag(torch.tensor([[-0.1]]), torch.tensor([[-5.0, 1.0], [0.0, -6.0]])), time="continuous")
    )
    assert not found.lyapunov.applies and found.departure > 0.05
    assert found.lyapunov.excess == pytest.approx(1, rel=STORED)
    assert "may fail" in found.lyapunov.reason


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_growth_bound_holds_and_the_measured_growth_is_the_largest(time):
    W = NON_NORMAL if time == "continuous" else torch.eye(3) + 0.3 * NON_NORMAL
    found = certify(linear(W, time=time))
    array = W.double().numpy()
    times = np.linspace(0, 60, 1201) if time == "continuous" else np.arange(200.0)
    step = expm(array * times[1]) if time == "continuous" else array
    power, norms = np.eye(3), []
    for _ in times:
        norms.append(np.linalg.norm(power, 2))
        power = power @ step
    assert all(n <= found.growth.decay(t) * (1 + 1e-9) for n, t in zip(norms, times, strict=True))
    # looked at every 1/8 of a doubling at least: a smooth maximum is missed by less than a percent
    assert 0.99 * max(norms) <= found.growth.measured <= found.growth.bound * (1 + 1e-9)


def test_discrete_matrix_is_measured_to_the_circle():
    W = torch.tensor([[0.9, 0.5], [0.0, 0.8]])
    found = certify(linear(W))
    assert found.spectral_radius == pytest.approx(0.9, rel=STORED)
    assert found.spectral_abscissa is None
    assert found.margin == pytest.approx(0.1, rel=1e-5)
    P, array = found.lyapunov.solution, W.double().numpy()
    np.testing.assert_allclose(array.T @ P @ array - P, -np.eye(2), atol=1e-9 * found.lyapunov.norm)
    assert found.lyapunov.norm > found.lyapunov.paper_bound == pytest.approx(1 / (1 - 0.81), rel=1e-5)


@torch.no_grad()
def factors_of_a_step(layer, lam):
    """By what one step multiplies each mode, from the layer's own constants."""
    if layer.time == "discrete":
        return lam
    if isinstance(layer, ContinuousRNN):
        return 1 + layer.dt * lam
    if isinstance(layer, S4D):
        z = torch.exp(layer.log_dt).unsqueeze(-1) * lam
        return torch.exp(z) if layer.discretization == "zoh" else (1 + z / 2) / (1 - z / 2)
    if isinstance(layer, SelectiveSSM):
        return torch.exp(nn.functional.softplus(layer.step_bias).unsqueeze(-1) * lam)
    return torch.exp(layer.dt * lam)


@pytest.mark.parametrize(
    ("layer", "time"),
    [
        (DiagonalSSM(2, 8), "continuous"),
        (DiagonalSSM(2, 8, dt=0.1), "continuous"),
        (S4D(2, 8, discretization="bilinear"), "continuous"),
        (LinearRNN(2, 8, time="continuous", dt=0.2), "continuous"),
        (DiagonalSSM(2, 8, time="discrete"), "discrete"),
        (LRU(2, 8), "discrete"),
        (S4D(2, 8), "continuous"),
        (SelectiveSSM(2, 8), "continuous"),
        (LinearRNN(2, 8, structure="diagonal"), "discrete"),
        (LinearRNN(2, 8), "discrete"),
        (ContinuousRNN(2, 8), "continuous"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else x,
)
def test_our_layers_are_certified_by_their_own_eigenvalues(layer, time):
    found = certify(layer)
    lam = layer.eigenvalues().detach().to(torch.complex128)
    factors = factors_of_a_step(layer, lam)
    assert found.time == time
    assert found.status == "stable"
    assert found.margin == pytest.approx(1 - float(factors.abs().max()), rel=1e-4, abs=1e-6)
    assert found.time_constant == pytest.approx(-1 / math.log(float(factors.abs().max())), rel=1e-3)
    rate = None if time == "discrete" else pytest.approx(float(-lam.real.max()), rel=1e-4)
    assert found.continuous_margin == rate
    assert len(found.eigenvalues) == lam.numel()
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(("models", "nearest"), [(40, 0.02), pytest.param(200, 0.25, marks=pytest.mark.slow)])
def test_memory_bound_of_stablessm_holds_on_random_diagonal_models(models, nearest):
    """StableSSM, Thm 3.1: M(t) <= (d+1) L0 theta_max^2 e^{-beta0 t}; the ratio says how far the bound is."""
    generator = np.random.default_rng(0)
    ratios = []
    for i in range(models):
        n, d = int(generator.integers(1, 17)), int(generator.integers(1, 4))
        rates = torch.from_numpy(np.exp(generator.uniform(math.log(0.01), math.log(2.0), n)))
        time = "continuous" if i % 2 else "discrete"
        lam = -rates if time == "continuous" else torch.exp(-rates)
        activation = ("identity", "tanh", "relu", "sigmoid", "gelu")[i % 5]
        layer = DiagonalSSM(d, n, time=time, eigenvalues=lam, activation=activation, out_features=1 + i % 3)
        with torch.no_grad():
            layer.b.copy_(torch.from_numpy(generator.normal(size=n)))
            layer.U.mul_(float(np.exp(generator.normal())))
        found = memory_bound(layer, 60)
        assert found.holds, (i, found.ratio)
        ratios.append(found.ratio)
    # not vacuous: some of 200 models comes within a factor of four, and none is measured as nothing
    assert nearest < max(ratios) <= 1
    assert min(ratios) > 0


def test_memory_bound_is_an_equality_for_one_mode_without_bias():
    """y = c h, U = c = 1, lam = -1: the mean of e^{-s} over the first step against 2 e^{-t}, normalized by x + 1."""
    layer = DiagonalSSM(1, 1, activation="identity", bias=False, eigenvalues=torch.tensor([-1.0])).double()
    with torch.no_grad():
        layer.U.fill_(1.0)
        layer.C.fill_(1.0)
    found = memory_bound(layer, 20)
    assert found.constant == pytest.approx(2.0)
    assert found.rate == pytest.approx(1.0, rel=1e-6)
    # x = 10 is the largest amplitude that is tried: x / (x + 1) = 10/11
    assert found.ratio == pytest.approx((1 - math.exp(-1)) / 2 * 10 / 11, rel=1e-6)


def test_weights_for_a_horizon_grow_exponentially_with_it():
    """StableSSM, eq. 56: theta_max^2 >= e^{beta0 T} M(T) / ((d+1) L0)."""
    assert weight_bound(0.1, 50.0, 0.02) == pytest.approx(math.sqrt(math.exp(5.0) * 0.02 / 2))
    assert weight_bound(0.1, 50.0, 0.02, inputs=3, lipschitz=0.25) == pytest.approx(math.sqrt(math.exp(5) * 0.02))
    assert weight_bound(1.0, 1e5, 0.1) == math.inf
    assert weight_bound(0.1, 50.0, 0.0) == 0.0
    layer = DiagonalSSM(1, 4, eigenvalues=-torch.linspace(0.1, 1, 4))
    found = certify(layer, horizon=100, target=laws.PowerLaw(1.5))
    assert found.weight_bound == pytest.approx(math.sqrt(math.exp(10) * 101**-1.5 / 2), rel=1e-5)
    with pytest.raises(ArgumentError, match="horizon"):
        weight_bound(0.1, -1.0, 1.0)


def test_euler_step_that_is_too_long_is_told_from_an_unstable_generator():
    W = torch.tensor([[-1.0, 3.0], [-3.0, -1.0]])  # |1 + dt lam|^2 = (1 - dt)^2 + 9 dt^2 < 1 for dt < 0.2
    slow, fast = (certify(ContinuousRNN(1, 2, W=W, parameterization="direct", dt=dt)) for dt in (0.19, 0.21))
    assert slow.status == "stable"
    assert fast.status == "unstable"
    assert slow.margin > 0 > fast.margin  # of one step
    assert fast.continuous_margin == pytest.approx(1, rel=1e-5)
    assert fast.euler.largest_dt == pytest.approx(0.2, rel=1e-5)
    assert any("take dt below 0.2" in note for note in fast.notes)
    growing = certify(ContinuousRNN(1, 2, W=-W, parameterization="direct"))
    assert growing.status == "unstable"
    assert growing.lyapunov is None
    assert growing.euler.largest_dt == 0


def test_gru_jacobian_at_zero_is_the_formula_of_the_paper():
    """iat, App. J: Diag(sig(b_z)) (U_h Diag(sig(b_r)) - I), where b_h = 0 makes 0 an equilibrium."""
    layer = ContinuousGRU(2, 5).double()
    with torch.no_grad():
        layer.b[:10] = torch.randn(10, dtype=torch.float64)
    found = certify(layer)
    at_zero = next(e for e in found.equilibria if np.abs(e.state).max() < 1e-9)
    expected = layer.eigenvalues().detach().numpy()
    np.testing.assert_allclose(np.sort_complex(at_zero.eigenvalues), np.sort_complex(expected), atol=1e-10)
    assert at_zero.reached


def test_bistable_gru_has_three_equilibria_and_is_not_judged_at_zero_alone():
    """One unit, gates open at one half, U_h = 4: h = tanh(2 h), at 0 and at +-0.9575."""
    layer = ContinuousGRU(1, 1).double()
    with torch.no_grad():
        layer.U.copy_(torch.tensor([[0.0], [0.0], [4.0]]))
    found = certify(layer)
    states = sorted(float(e.state[0]) for e in found.equilibria)
    np.testing.assert_allclose(states, [-0.957504, 0, 0.957504], atol=1e-6)
    by_state = {round(float(e.state[0]), 3): e for e in found.equilibria}
    assert by_state[0.0].margin == pytest.approx(-0.5 * (4 * 0.5 - 1))
    assert by_state[0.958].margin == pytest.approx(0.5 * (1 - (1 - 0.957504**2) * 2), rel=1e-5)
    assert found.status == "unstable"  # from 0 it stays at 0, which repels
    assert any("2 stable equilibria" in note for note in found.notes)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_torch_modules_are_linearised_where_they_come_to_rest(kind):
    """Against the module itself: run to rest on zero input, then differentiate one step of it."""
    module = kind(3, 4, batch_first=True).double()
    found = certify(module)
    zeros = torch.zeros(1, 4000, 3, dtype=torch.float64)
    with torch.no_grad():
        state = module(zeros)[1]
    flat = torch.cat([s.flatten() for s in state]) if isinstance(state, tuple) else state.flatten()
    np.testing.assert_allclose(found.equilibria[0].state, flat.numpy(), atol=1e-9)

    def step(h):
        given = tuple(p.reshape(1, 1, 4) for p in h.split(4))
        after = module(zeros[:, :1], given if kind is nn.LSTM else given[0])[1]
        return torch.cat([s.flatten() for s in after]) if kind is nn.LSTM else after.flatten()

    J = torch.autograd.functional.jacobian(step, flat)
    expected = np.linalg.eigvals(J.numpy())
    np.testing.assert_allclose(np.sort(np.abs(found.eigenvalues)), np.sort(np.abs(expected)), atol=1e-8)
    assert found.margin == pytest.approx(1 - np.abs(expected).max(), abs=1e-8)


def test_every_layer_and_direction_is_a_part_and_the_worst_stands_for_all():
    module = nn.GRU(2, 4, num_layers=2, bidirectional=True)
    found = certify(module)
    assert [part.path for part in found.parts] == [
        "weight_hh_l0",
        "weight_hh_l0_reverse",
        "weight_hh_l1",
        "weight_hh_l1_reverse",
    ]
    assert found.margin == min(part.margin for part in found.parts)
    stack = certify(SequenceModel(1, 8, depth=2, layer="lru", state_size=8))
    assert len(stack.parts) == 2
    assert certify(SequenceModel(1, 8, depth=2, layer="lru", state_size=8), stack.parts[0].path).parts == ()


def test_a_recurrence_without_equilibrium_that_grows_is_unstable_and_said_so():
    module = nn.RNN(1, 1, nonlinearity="relu")
    with torch.no_grad():
        module.weight_hh_l0.fill_(1.5)
        module.bias_ih_l0.fill_(1.0)
        module.bias_hh_l0.fill_(1.0)
    found = certify(module)
    assert found.status == "unstable"
    assert any("no equilibrium" in note for note in found.notes)
    json.dumps(found.to_dict(), allow_nan=False)


class Foreign(nn.Module):
    """Someone else's S5 layer, and weights that only have the names of other families."""

    def __init__(self, W):
        super().__init__()
        self.A_log = nn.Parameter(torch.tensor([[0.0, 1.0], [-1.0, 2.0]]))
        self.ssm = nn.Module()
        self.ssm.Lambda_re = nn.Parameter(torch.tensor([-0.5, -0.1]))
        self.ssm.Lambda_im = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.ssm.log_step = nn.Parameter(torch.zeros(2, 1))
        self.ssm.B, self.ssm.C = nn.Parameter(torch.ones(2, 3, 2)), nn.Parameter(torch.ones(3, 2, 2))
        self.mixing = nn.Linear(3, 3)
        with torch.no_grad():
            self.mixing.weight.copy_(W)


def test_foreign_weights_are_known_by_their_structure_or_stated_by_the_caller():
    model = Foreign(0.5 * torch.eye(3))
    found = certify(model)
    assert (found.path, found.parts, found.scope) == (
        "ssm.Lambda_re",
        (),
        "global",
    )  # A_log alone is a name, no recurrence
    assert found.spectral == pytest.approx(-0.1)
    assert found.margin == pytest.approx(1 - math.exp(-0.1))
    assert 1j * 2 - 0.1 in np.round(found.eigenvalues, 6)
    named = certify(model, "mixing.weight", time="discrete")
    assert named.scope == "stated"
    assert "is your word" in named.notes[0]
    assert named.spectral_radius == pytest.approx(0.5)
    assert certify(model, "mixing.weight", time="continuous").status == "unstable"
    # the same numbers as a table of eigenvalues, one row per feature
    table = certify(model, "mixing.weight", time="discrete", structure="diagonal")
    assert len(table.eigenvalues) == 9
    assert table.spectral_radius == pytest.approx(0.5)
    with pytest.raises(ArgumentError, match="time is needed for"):
        certify(model, "mixing.weight")


def test_eigenvalue_on_the_boundary_is_marginal():
    assert certify(linear(torch.eye(2))).status == "marginal"
    assert certify(linear(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), time="continuous")).status == "marginal"


def test_defective_matrix_is_certified_with_a_warning_about_its_digits():
    jordan = -0.5 * torch.eye(4) + torch.diag(torch.ones(3), 1)
    found = certify(linear(jordan, time="continuous"))
    assert any("defective" in note for note in found.notes)
    assert found.status == "stable"


def test_the_model_is_left_as_it_was():
    model = nn.ModuleDict({"gated": nn.LSTM(2, 4), "rest": nn.Dropout(0.5), "diagonal": DiagonalSSM(1, 4)})
    model.train()
    before, state = {n: p.clone() for n, p in model.named_parameters()}, torch.get_rng_state()
    certify(model)
    assert all(m.training for m in model.modules())
    assert all(torch.equal(p, before[n]) and p.grad is None for n, p in model.named_parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("model", "how", "error", "text"),
    [
        (nn.Linear(2, 2), {}, ArgumentError, "a recurrence that holdfast recognizes"),
        (None, {}, ArgumentError, "module must be an nn.Module, got None"),
        (
            nn.Linear(2, 2),
            {"weight": "wieght", "time": "discrete"},
            ArgumentError,
            "expected the name of a weight or layer",
        ),
        (
            nn.Linear(2, 2),
            {"weight": "in_features", "time": "discrete"},
            ArgumentError,
            "got in_features, which is a int",
        ),
        (nn.Linear(2, 3), {"weight": "weight", "time": "discrete"}, ShapeError, "square"),
        (nn.Linear(9, 9), {"weight": "weight", "time": "discrete", "limit": 8}, ArgumentError, "pass a larger limit="),
        (nn.GRU(2, 9), {"limit": 8}, ArgumentError, "pass a larger limit="),
        (nn.GRU(2, 4), {"time": "discrete"}, ArgumentError, "leave time and structure out"),
        (nn.GRU(2, 4), {"structure": "diagonal"}, ArgumentError, "leave time and structure out"),
        (nn.Linear(2, 2), {"weight": "weight", "time": "discrete", "structure": "full"}, ArgumentError, "dense"),
        (nn.GRU(2, 4), {"target": laws.PowerLaw(1.5)}, ArgumentError, "real diagonal"),
        (nn.GRU(2, 4), {"horizon": 0}, ArgumentError, "horizon"),
        (nn.GRU(2, 4), {"weight": "weight_hh_l0", "time": "always"}, ArgumentError, "continuous"),
    ],
    ids=str,
)
def test_mistakes_are_named(user_mistakes, model, how, error, text):
    with pytest.raises(error, match=text):
        certify(model, **how)


@pytest.mark.parametrize(
    ("layer", "weight"),
    [
        (linear(0.5 * torch.eye(2)), "recurrence.free.0"),
        (DiagonalSSM(1, 2), "w"),
        (nn.LSTM(1, 2), "bias_ih_l0"),
        (ContinuousGRU(1, 2), "U"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_weights_that_are_not_finite_are_refused(layer, weight):
    with torch.no_grad():
        layer.get_parameter(weight).view(-1)[0] = math.nan
    with pytest.raises(ArgumentError, match=r"must be finite|expected finite"):
        certify(layer)


class TestScope:
    """Each promise is labelled: from every state, or near the equilibrium only."""

    def relu(self):
        module = nn.RNN(1, 2, nonlinearity="relu")
        with torch.no_grad():
            module.weight_hh_l0.copy_(torch.tensor([[1.2, 2.0], [-0.5, -0.5]]))
            module.bias_ih_l0.copy_(torch.tensor([-1.0, 1.0]))
            module.bias_hh_l0.zero_()
        return module

    def test_a_relu_network_that_can_grow_is_stable_locally_only_and_its_unstable_equilibrium_is_seen(self):
        found = certify(self.relu())
        assert (found.status, found.scope) == ("stable", "local")
        assert found.contracting is None
        assert any(not e.stable for e in found.equilibria)
        assert any("unstable equilibria beside it" in note for note in found.notes)
        assert found.to_dict()["scope"] == "local"

    @pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
    def test_a_contracting_network_is_stable_from_every_state_and_within_its_bound(self, nonlinearity):
        module = nn.RNN(1, 8, nonlinearity=nonlinearity, batch_first=True).double()
        found = certify(module)
        assert (found.status, found.scope) == ("stable", "global")
        x = 3 * torch.randn(16, 300, 1, dtype=torch.float64)
        drive = x @ module.weight_ih_l0.mT + module.bias_ih_l0 + module.bias_hh_l0
        largest = float(module(x)[0].detach().norm(dim=-1).max())
        assert largest <= found.contracting.gain * float(drive.detach().norm(dim=-1).max())
        assert any(note.startswith("global: two states") for note in found.notes)

    def test_tanh_with_a_small_radius_and_a_large_norm_is_local(self):
        module = nn.RNN(1, 2, bias=False)
        with torch.no_grad():
            module.weight_hh_l0.copy_(torch.tensor([[1.2, 2.0], [-0.5, -0.5]]))
        found = certify(module)
        assert (found.status, found.scope) == ("stable", "local")

    def test_relu_without_bias_rests_on_its_kink_and_is_judged_with_units_on(self):
        assert certify(nn.RNN(1, 8, nonlinearity="relu", bias=False)).status == "stable"
        growing = nn.RNN(1, 3, nonlinearity="relu", bias=False)
        with torch.no_grad():
            growing.weight_hh_l0.copy_(2 * torch.eye(3))
        assert certify(growing).status == "unstable"

    def test_units_that_are_all_off_forget_at_once(self):
        module = nn.RNN(1, 3, nonlinearity="relu")
        with torch.no_grad():
            module.bias_ih_l0.fill_(-1.0)
            module.bias_hh_l0.zero_()
        found = certify(module)
        assert found.status == "stable"
        assert found.growth.rate == math.inf

    def test_gated_units_are_local_and_linear_layers_global(self):
        assert certify(nn.GRU(1, 4)).scope == "local"
        assert certify(ContinuousGRU(1, 4)).scope == "local"
        assert certify(LRU(1, 4)).scope == "global"
        assert certify(linear(0.5 * torch.eye(2))).scope == "global"

    def test_a_continuous_rnn_is_global_where_its_euler_steps_settle(self):
        assert certify(ContinuousRNN(1, 4)).scope == "global"
        W = torch.tensor([[1.0, 1.0], [-4.0, -3.0]])  # iat, Fig. 11: Hurwitz, and a periodic orbit around 0
        found = certify(ContinuousRNN(1, 2, W=W, parameterization="direct"))
        assert (found.status, found.scope) == ("stable", "local")

    def test_a_stabilized_network_is_certified_by_its_own_free_weights(self):
        module = nn.RNN(1, 6, nonlinearity="relu")
        stabilize(module)
        with torch.no_grad():
            for p in module.parametrizations.weight_hh_l0.parameters():
                p.add_(5 * torch.randn_like(p))
        found = certify(module)
        assert found.scope == "global"
        assert found.contracting.factor < 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [lambda: LRU(4, 8), lambda: S4D(4, 8), lambda: nn.LSTM(1, 8), lambda: Mamba(8, 4)])
def test_weights_of_16_bits_are_certified_as_the_float32_numbers_that_they_are(make, dtype):
    torch.manual_seed(0)
    coarse = make().to(dtype)
    found = certify(coarse)
    assert found.margin == certify(copy.deepcopy(coarse).float()).margin
    assert all(p.dtype == dtype for p in coarse.parameters())
