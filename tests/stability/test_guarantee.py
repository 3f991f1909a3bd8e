"""What `stabilize` promises, attacked: switching units, long optimizer steps, weights outside, names that do not exist."""

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import ArgumentError, RangeError, UnknownNameError
from holdfast.nn import LRU, S4D, ContinuousGRU, ContinuousRNN, DiagonalSSM, LinearRNN, Mamba, Mamba2, SelectiveSSM
from holdfast.parameterizations import spectral_margin

SWITCHING = torch.tensor([[1.2, 2.0], [-0.5, -0.5]])  # radius 0.63; 1.2 once a ReLU has switched the second unit off


def switching():
    model = nn.RNN(1, 2, batch_first=True, nonlinearity="relu")
    with torch.no_grad():
        model.weight_hh_l0.copy_(SWITCHING)
        model.weight_ih_l0.copy_(torch.tensor([[1.0], [0.0]]))
        model.bias_ih_l0.copy_(torch.tensor([-1.0, 1.0]))
        model.bias_hh_l0.zero_()
    return model


def pulse():
    x = torch.zeros(1, 300, 1)
    x[0, 20, 0] = 4
    return x


def test_a_relu_network_that_switching_makes_grow_is_refused_and_bounded_when_a_change_is_allowed():
    model = switching()
    assert float(model(pulse())[0].detach().abs().max()) > 1e20
    with pytest.raises(RangeError, match=r"weight_hh_l0: .*numerical radius below 1.*allow_change=True"):
        holdfast.stabilize(model)
    done = holdfast.stabilize(model, allow_change=True)
    assert 0.1 < done.changes["weight_hh_l0"] < 0.3  # 1.2 has to come below 1
    assert float(model(pulse())[0].detach().abs().max()) < 1e3


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("lr", [0.1, 1e3, 1e25])
def test_no_step_of_an_optimizer_makes_a_torch_rnn_diverge(nonlinearity, lr):
    torch.manual_seed(0)
    model = nn.RNN(1, 16, batch_first=True, nonlinearity=nonlinearity)
    holdfast.stabilize(model)
    free = [p for n, p in model.named_parameters() if "parametrizations" in n]
    optimizer = torch.optim.SGD(free, lr=lr)  # the recurrent weights: what is promised
    x = torch.randn(4, 400, 1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = -model(x)[0].square().mean()
        loss.backward()
        assert all(bool(torch.isfinite(p.grad).all()) for p in free)
        optimizer.step()
        assert spectral_margin(model.weight_hh_l0.detach(), "discrete") > 0
        with torch.no_grad():
            two = [model(x, start)[0] for start in (torch.zeros(1, 4, 16), torch.randn(1, 4, 16))]
        assert all(bool(torch.isfinite(y).all()) for y in two)


LAYERS = {
    "DiagonalSSM": lambda: DiagonalSSM(2, 6),
    "DiagonalSSM discrete": lambda: DiagonalSSM(2, 6, time="discrete"),
    "LRU": lambda: LRU(2, 6),
    "S4D": lambda: S4D(2, 8),
    "S4D bilinear": lambda: S4D(2, 8, discretization="bilinear"),
    "S4D real": lambda: S4D(2, 8, initialization="real"),
    "S4D real bilinear": lambda: S4D(2, 8, initialization="real", discretization="bilinear"),
    "SelectiveSSM": lambda: SelectiveSSM(2, 8),
    "LinearRNN": lambda: LinearRNN(2, 6),
    "LinearRNN continuous": lambda: LinearRNN(2, 6, time="continuous"),
    "ContinuousRNN": lambda: ContinuousRNN(2, 6),
    "ContinuousRNN diagonal": lambda: ContinuousRNN(2, 6, structure="diagonal"),
    "Mamba": lambda: Mamba(2, 4),
    "Mamba2": lambda: Mamba2(2, 4, head_size=2),
}
# a dense W may have a condition of 590^2, and 40 steps of it in float32 keep two digits
AGREEMENT = {"LinearRNN": 0.1, "LinearRNN continuous": 0.1}


def held_weights(model):
    """Free weights of eigenvalues and step sizes: all that `stabilize` promises to hold."""
    views = holdfast.recurrences(model)
    free = {path: p for view in views for weight in view.weights for path, p in weight.free.items()}
    names = [view.steps.bias for view in views if view.steps is not None and view.steps.bias is not None]
    return list((free | {name: model.get_parameter(name) for name in names}).values())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("parameterization", ["best", "exp"])
@pytest.mark.parametrize("lr", [1e3, 1e6, 1e30, 3e37])
def test_forward_and_step_stay_finite_and_agree_wherever_steps_of_training_lead(name, parameterization, lr):
    for seed in range(3):
        torch.manual_seed(seed)
        layer = LAYERS[name]()
        holdfast.stabilize(layer, parameterization)
        free = held_weights(layer)
        x = 2 * torch.rand(2, 40, 2) - 1
        for _ in range(5):
            with torch.no_grad():
                for p in free:
                    p.sub_(lr * torch.randn_like(p)).clamp_(-3e38, 3e38)
                outputs, state = layer(x)[0], None
                steps = []
                for t in range(x.shape[1]):
                    y, state = layer.step(x[:, t], state)
                    steps.append(y)
            assert bool(outputs.isfinite().all())
            apart = (torch.stack(steps, 1) - outputs).abs().max()
            assert float(apart / (outputs.abs().max() + 1e-3)) < AGREEMENT.get(name, 1e-4), seed
            gradients = torch.autograd.grad(layer(x)[0].sum(), free, allow_unused=True)
            assert all(g is None or bool(g.isfinite().all()) for g in gradients), "the next step would be NaN"


@pytest.mark.parametrize("log_dt", [-1e30, -100.0, -95.0, 89.0, 1e30])
def test_a_step_size_beyond_floats_is_held_and_one_inside_is_exact(log_dt):
    torch.manual_seed(0)
    layer = S4D(2, 8)
    before = layer.step_size().detach().squeeze(-1)
    assert torch.equal(before, layer.log_dt.detach().exp())
    with torch.no_grad():
        layer.log_dt.fill_(log_dt)
        x = torch.randn(1, 20, 2)
        y, last = layer(x)
        state = None
        for t in range(20):
            y_t, state = layer.step(x[:, t], state)
        assert bool(y.isfinite().all())
        torch.testing.assert_close(y_t, y[:, -1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-9 * float(layer.step_size().max()))


def test_states_of_a_stabilized_relu_network_come_nearer_at_every_step():
    torch.manual_seed(1)
    model = nn.RNN(1, 12, batch_first=True, nonlinearity="relu", dtype=torch.float64)
    holdfast.stabilize(model)
    behind = model.parametrizations.weight_hh_l0
    for scale in (0.0, 1.0, 30.0, 1e6):
        with torch.no_grad():
            for p in behind.parameters():
                p.add_(scale * torch.randn_like(p))
        free = [getattr(behind, f"original{i}").detach() for i in range(3)]
        half = torch.linalg.cholesky(behind[0].metric(*free)).mT
        x = torch.randn(8, 30, 1, dtype=torch.float64)
        near, far = (torch.randn(1, 8, 12, dtype=torch.float64) for _ in range(2))
        apart = ((far - near)[0] @ half.mT).norm(dim=-1)
        with torch.no_grad():
            for t in range(30):
                near, far = (model(x[:, t : t + 1], h)[1] for h in (near, far))
                moved = ((far - near)[0] @ half.mT).norm(dim=-1)
                # rounding of states that have met
                assert bool((moved <= apart * (1 + 1e-9) + 1e-12 * half.norm() * far.norm()).all())
                apart = moved


def test_euler_layers_bear_their_own_step_wherever_the_weights_go():
    layers = {
        "rnn": ContinuousRNN(1, 8, parameterization="direct", dt=0.3, W=-torch.eye(8)),
        "rnn default": ContinuousRNN(1, 8, dt=2.0),
        "linear": LinearRNN(
            1, 8, parameterization="direct", time="continuous", discretization="euler", dt=0.3, W=-torch.eye(8)
        ),
        "diagonal": ContinuousRNN(1, 8, structure="diagonal", parameterization="direct", dt=0.3),
        "ssm": DiagonalSSM(1, 8, parameterization="direct", discretization="euler", dt=0.3),
    }  # fmt: skip
    for name, layer in layers.items():
        done = holdfast.stabilize(layer)
        assert done.notes == (), name
        for scale in (1.0, 100.0, 1e6, 1e30):
            with torch.no_grad():
                for path, p in layer.named_parameters():
                    if path.startswith(layer.recurrent_names):
                        p.copy_(scale * torch.randn_like(p))
            W = layer.eigenvalues() if name == "ssm" else layer.recurrence()
            W = W.detach().double()  # eigenvalues in float32 have their own rounding
            if W.ndim == 2:
                assert float((1 + layer.dt * torch.linalg.eigvals(W)).abs().max()) < 1, (name, scale)
            else:  # a rate may be 1e-33, which 1 does not feel
                assert -2 < layer.dt * float(W.min()) <= layer.dt * float(W.max()) < 0, (name, scale)
    beyond = holdfast.stabilize(DiagonalSSM(1, 4, discretization="euler", dt=0.3), "exp")
    assert "stable for rates below 6.6" in beyond.notes[0]


def test_a_continuous_rnn_whose_euler_step_diverges_is_refused_or_slowed_down():
    W = torch.tensor([[-1.0, 3.0], [-3.0, -1.0]])  # Hurwitz; Euler is stable below dt = 0.2
    layer = ContinuousRNN(1, 2, W=W, parameterization="direct", dt=0.25)
    with pytest.raises(RangeError, match=r"at dt = 0\.25.*a smaller dt may do"):
        holdfast.stabilize(layer)
    done = holdfast.stabilize(layer, allow_change=True)
    assert holdfast.certify(layer).euler.stable
    assert 0.01 < done.changes["recurrence"] < 0.5


def test_weights_outside_are_moved_inside_and_by_how_much_is_said():
    rnn = nn.RNN(1, 3)
    with torch.no_grad():
        rnn.weight_hh_l0.copy_(1.5 * torch.eye(3))
    with pytest.raises(RangeError, match="allow_change=True"):
        holdfast.stabilize(rnn)
    done = holdfast.stabilize(rnn, allow_change=True)
    assert done.changes["weight_hh_l0"] == pytest.approx(0.5 / 1.5, abs=0.02)
    ssm = DiagonalSSM(1, 2, parameterization="direct", eigenvalues=torch.tensor([-1.0, 0.25]))
    done = holdfast.stabilize(ssm, allow_change=True)
    assert float(ssm.eigenvalues().detach().max()) == pytest.approx(-1e-3, rel=1e-3)
    assert done.changes["w"] == pytest.approx(0.251, rel=1e-3)
    linear = LinearRNN(1, 2, parameterization="direct", W=torch.tensor([[2.0, 1e6], [0.0, 1.0]]))
    done = holdfast.stabilize(linear, allow_change=True)
    assert spectral_margin(linear.recurrence().detach(), "discrete") > 0
    kept = LRU(1, 4)
    assert holdfast.stabilize(kept, allow_change=True).changes["w"] < 1e-6


def test_what_is_skipped_in_a_mixed_model_is_in_the_notes():
    model = nn.ModuleDict({"rnn": nn.RNN(1, 4), "lstm": nn.LSTM(1, 4), "gru": ContinuousGRU(1, 4)})
    done = holdfast.stabilize(model)
    assert list(done.changed) == ["rnn.weight_hh_l0"]
    text = " ".join(done.notes)
    assert "lstm.weight_hh_l0 belongs to a gated LSTM" in text
    assert "forget gate" in text
    assert "gru.U belongs to a gated ContinuousGRU" in text


def test_mamba_is_told_that_its_a_was_stable_before():
    transformers = pytest.importorskip("transformers")
    config = transformers.MambaConfig(vocab_size=20, hidden_size=8, state_size=4, num_hidden_layers=2)
    done = holdfast.stabilize(transformers.MambaModel(config))
    assert len(done.notes) == 1
    assert "negative by construction" in done.notes[0]
    assert "step sizes" in done.notes[0]


@pytest.mark.usefixtures("user_mistakes")
@pytest.mark.parametrize(
    ("arguments", "choices", "error", "text"),
    [
        ((nn.RNN(1, 2), "bset"), {}, UnknownNameError, "Did you mean 'best'"),
        ((nn.RNN(1, 2), 3), {}, ArgumentError, "parameterization must be text or .*, got int 3"),
        ((None,), {}, ArgumentError, "model must be an nn.Module, got None"),
        ((nn.RNN,), {}, ArgumentError, "model must be an nn.Module"),
        ((nn.RNN(1, 2), "best", "weight_hh_l0"), {}, ArgumentError, "names must be a list or tuple, each element text"),
        ((nn.RNN(1, 2),), {"time": "discret"}, UnknownNameError, "Did you mean 'discrete'"),
        ((nn.GRU(1, 2),), {}, ArgumentError, "belongs to a gated GRU.*update gate"),
        ((nn.LSTM(1, 2),), {"names": ["weight_hh_l0"]}, ArgumentError, "forget gate"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments, choices, error, text):
    with pytest.raises(error, match=text):
        holdfast.stabilize(*arguments, **choices)
