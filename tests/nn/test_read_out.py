"""Readouts in units of their modes' rates: a change by beta moves a response by at most beta in L1, whatever the rates."""

import math

import numpy as np
import pytest
import torch

import holdfast
from holdfast import ExponentialSum, laws
from holdfast.approximate import load_layer, save_layer
from holdfast.errors import ArgumentError
from holdfast.nn import LRU, S4D, DiagonalSSM
from holdfast.stability.perturbation._kernel_error import l1_distance, target_of

AMPLIFICATION = {8: 72, 16: 330, 32: 1589}  # |1/r|_2 of geometric rates on [1/m^2, 4]

LAYERS = {
    "continuous": lambda readout: DiagonalSSM(2, 5, readout=readout, activation="identity"),
    "discrete": lambda readout: DiagonalSSM(2, 5, readout=readout, time="discrete", parameterization="best"),
    "s4d": lambda readout: S4D(2, 6, readout=readout, parameterization="best"),
    "s4d real": lambda readout: S4D(2, 5, readout=readout, initialization="real", out_features=3),
    "lru": lambda readout: LRU(2, 5, readout=readout),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]("scaled")


@pytest.mark.parametrize("m", AMPLIFICATION)
def test_a_change_of_gamma_by_beta_moves_the_kernel_by_at_most_beta(m):
    rates = torch.from_numpy(np.geomspace(1 / m**2, 4, m))
    generator = torch.Generator().manual_seed(m)
    zero = target_of(lambda t: 0 * t, rates.numpy(), 1.0)

    def largest(scale):
        """The most that unit vectors move the kernel, over random ones and the worst one of positive entries."""
        moves = torch.randn(200, m, generator=generator, dtype=torch.float64)
        moves = torch.cat([moves, (scale / rates).unsqueeze(0)])
        moves = moves / moves.norm(dim=1, keepdim=True)
        return float(l1_distance(zero, -rates.expand(len(moves), -1), moves * scale).max())

    scaled, plain = largest(rates / math.sqrt(m)), largest(torch.ones_like(rates))
    assert scaled <= 1 + 1e-6  # integrals are exact to 1e-8 of the norm
    assert scaled > 0.99  # attained where all gamma move alike
    assert plain == pytest.approx(AMPLIFICATION[m], rel=0.01)


def responses(layer, steps):
    """|impulse response| summed up over steps, of each pair of input and output without the direct path."""
    system = layer.double().linear_system()
    powers = system.factor.unsqueeze(-1) ** torch.arange(steps)
    return torch.einsum("gom,gmi,gmt->goit", *(t.to(torch.complex128) for t in (system.C, system.B, powers))).real


@pytest.mark.parametrize("discretized", ["continuous", "s4d", "s4d zoh", "lru", "discrete"])
def test_layers_hold_to_the_bound_step_by_step(discretized):
    """Inputs enter each mode with weight 1, so that the whole response is sum_i c_i a_i^k."""
    torch.manual_seed(1)
    wide = torch.logspace(-3, -0.5, 6)
    waves = torch.complex(-wide, 3 * torch.rand(6))
    layer = {
        "continuous": lambda: DiagonalSSM(1, 6, readout="scaled", activation="identity", eigenvalues=-wide, bias=False),
        "discrete": lambda: DiagonalSSM(
            1, 6, readout="scaled", activation="identity", time="discrete", eigenvalues=torch.exp(-wide), bias=False
        ),
        "s4d": lambda: S4D(1, 12, readout="scaled", eigenvalues=waves.unsqueeze(0), dt_min=0.5, dt_max=2.0),
        "s4d zoh": lambda: S4D(1, 6, readout="scaled", initialization="real"),
        "lru": lambda: LRU(1, 6, readout="scaled", normalize=False, eigenvalues=torch.exp(waves)),
    }[discretized]()
    with torch.no_grad():
        for name in ("U", "B"):
            if hasattr(layer, name):
                getattr(layer, name).fill_(1.0)
        if hasattr(layer, "B"):
            layer.B[6:] = 0.0
    before = responses(layer, 20_000)
    for seed in range(5):
        move = torch.randn(layer.C.shape, generator=torch.Generator().manual_seed(seed)).double()
        with torch.no_grad():
            layer.C.add_(0.1 * move / move.norm())
            after = responses(layer, 20_000)
            layer.C.sub_(0.1 * move / move.norm())
        assert 0 < float((after - before).detach().abs().sum()) <= 0.1 * (1 + 1e-9)


def test_step_equals_forward_and_gradients_reach_both_weights(layer):
    x = torch.randn(3, 11, 2)
    y, _ = layer(x)
    state, outputs = None, []
    for t in range(11):
        out, state = layer.step(x[:, t], state)
        outputs.append(out)
    torch.testing.assert_close(torch.stack(outputs, 1), y, rtol=1e-4, atol=1e-5)  # float32 in another order
    y.square().sum().backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in (layer.w, layer.C))
    with torch.no_grad():
        layer.w.add_(0.1)  # the step's kept coefficients follow
    torch.testing.assert_close(layer.step(x[:, 0])[0], layer(x[:, :1])[0][:, 0], rtol=1e-4, atol=1e-5)


def test_per_step_dt_and_bidirectional_read_with_it_too():
    layer = S4D(2, 6, readout="scaled", bidirectional=True)
    x = torch.randn(2, 7, 2)
    regular, irregular = layer(x, dt=0.5)[0], layer(x, dt=torch.full((2, 7), 0.5))[0]
    torch.testing.assert_close(regular, irregular, rtol=1e-4, atol=1e-5)
    assert layer.backward_layer.readout == "scaled"


@pytest.mark.usefixtures("user_mistakes")  # what checks annotations while testing cannot be traced
def test_it_compiles_in_one_graph(layer):
    torch.compiler.reset()
    x = torch.randn(2, 9, 2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])


def test_weights_of_one_kind_do_not_load_into_the_other():
    scaled, plain = (DiagonalSSM(1, 3, readout=kind) for kind in ("scaled", "plain"))
    with pytest.raises(RuntimeError, match="readout_is_scaled"):
        scaled.load_state_dict(plain.state_dict())
    with pytest.raises(RuntimeError, match="readout_is_scaled"):
        plain.load_state_dict(scaled.state_dict())
    other = DiagonalSSM(1, 3, readout="scaled")
    other.load_state_dict(scaled.state_dict())
    assert torch.equal(other.read_out(), scaled.read_out())


def test_set_read_out_gives_the_effective_weights(layer):
    wanted = torch.randn_like(layer.read_out())
    layer.set_read_out_(wanted)
    torch.testing.assert_close(layer.read_out(), wanted)


@pytest.mark.parametrize("rates", [[0.5, 0.05], [0.3 + 1j, 0.3 - 1j]], ids=["real", "complex"])
@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_a_sum_is_the_same_kernel_with_either_read_out_and_is_saved(rates, time, tmp_path):
    s = ExponentialSum(rates=np.array(rates), coefficients=np.array([1.0, 1.0]))
    plain, scaled = (s.to_layer(time=time, dtype=torch.float64, readout=kind) for kind in ("plain", "scaled"))
    x = torch.randn(1, 50, 1, dtype=torch.float64)
    torch.testing.assert_close(plain(x)[0], scaled(x)[0], rtol=1e-10, atol=1e-12)
    save_layer(scaled, tmp_path / "layer.safetensors")
    loaded = load_layer(tmp_path / "layer.safetensors")
    assert loaded.readout == "scaled"
    assert torch.equal(loaded(x)[0], scaled(x)[0])


def test_stabilize_certify_and_perturbations_see_the_effective_read_out():
    torch.manual_seed(0)
    layer = DiagonalSSM(1, 4, parameterization="direct", readout="scaled", activation="identity").double()
    x = torch.randn(2, 30, 1, dtype=torch.float64)
    before = layer(x)[0].detach()
    holdfast.stabilize(layer, "exp")
    torch.testing.assert_close(layer(x)[0].detach(), before, rtol=1e-8, atol=1e-10)
    assert holdfast.certify(layer).status == "stable"
    radii = [1e-3, 1e-1]
    curves = [
        holdfast.perturbation_error(layer, x, before, radii, norm=holdfast.stability.Ball(), search=search)
        for search in (
            holdfast.stability.Search(draws=4, seed=0),
            holdfast.stability.Search(draws=4, seed=0, evaluation="loop"),
        )
    ]
    np.testing.assert_allclose(curves[0].errors, curves[1].errors, rtol=1e-8)
    assert (curves[0].errors > 0).all()


def test_a_sum_with_scaled_weights_is_moved_within_its_bound():
    rho = laws.PowerLaw(1.5)
    s = holdfast.fit_exponential_sum(rho, rates=np.geomspace(1 / 64, 4, 8))
    radii = [1e-3, 1e-2, 0.1, 1.0]
    plain, scaled = (
        holdfast.kernel_perturbation_error(s, rho, radii, parameterization="exp", scope="coefficients", readout=readout)
        for readout in ("plain", "scaled")
    )
    # gamma by beta in the 2-norm, so beta in L1 at most; the plain one is amplified
    assert (scaled.errors <= scaled.at_zero + np.array(radii) * (1 + 1e-6)).all()
    assert (plain.errors > scaled.errors).all()
    both = holdfast.kernel_perturbation_error(s, rho, radii, parameterization="exp", scope="all", readout="scaled")
    assert (both.errors <= both.upper * (1 + 1e-6)).all()
    assert both.upper[-1] < 10 * plain.upper[-1]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DiagonalSSM(1, 2, readout="other"), "readout"),
        (lambda: S4D(1, 2, readout="scaled", discretization="bilinear"), "zoh"),
    ],
)
def test_mistakes_are_named(make, text):
    with pytest.raises(ArgumentError, match=text):
        make()
