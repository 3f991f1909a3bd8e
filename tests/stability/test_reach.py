"""How fast a memory can be learned: reach against its closed forms, and the rate that a memory takes."""

import math

import pytest
import torch
from torch import nn

import holdfast
from holdfast import parameterizations
from holdfast.errors import ArgumentError
from holdfast.nn import LRU, S4D, ContinuousGRU, ContinuousRNN, DiagonalSSM, LinearRNN, Mamba, Mamba2, SelectiveSSM
from holdfast.stability import _reach, reach, recurrent_rate
from holdfast.stability._reach import MAX_CHANGE, PROGRESS

STEPS, LR = 1000, 1e-3
MOVED = LR * STEPS / 2  # of a cosine schedule


def diagonal(name, rates=(0.1, 0.3)):
    eigenvalues = -torch.tensor(rates, dtype=torch.float64)
    return DiagonalSSM(1, len(rates), parameterization=name, time="continuous", eigenvalues=eigenvalues).double()


def test_exp_reaches_an_exponential_of_the_movement():
    (one,) = reach(diagonal("exp"), LR, STEPS)
    assert one.now == pytest.approx(10)
    # r0 = 0.1, tau = tau0 e^(eta S)
    assert one.reached == pytest.approx(one.now * math.exp(MOVED), rel=1e-9)
    assert one.provable == pytest.approx(one.now * math.exp(0.1 / math.sqrt(0.001) * MOVED), rel=1e-9)


def test_best_reaches_a_square_of_the_movement():
    layer = diagonal("best")
    f, w = layer.boundary_form, layer.w.detach()
    (one,) = reach(layer, LR, STEPS)
    moved = w + MOVED * torch.where(w >= 0, 1.0, -1.0)
    assert one.reached == pytest.approx(float((1 / f(moved).abs()).max()), rel=1e-9)


@pytest.mark.parametrize("name", ["exp", "softplus", "best", "inverse"])
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_the_rate_at_progress_one_reaches_exactly_the_memory_asked_for(name, schedule):
    layer = diagonal(name)
    rate = recurrent_rate(layer, steps=STEPS, memory=50.0, schedule=schedule)
    assert rate.rate == pytest.approx(PROGRESS * rate.low)
    (one,) = reach(layer, rate.low, STEPS, schedule=schedule)
    assert one.reached == pytest.approx(50.0, rel=1e-6)


@pytest.mark.parametrize("name", ["exp", "best", "direct"])
def test_a_short_run_may_change_the_time_constant_by_the_cap_in_a_step_and_no_more(name):
    layer = diagonal(name)
    rate = recurrent_rate(layer, steps=10, memory=50.0)
    (one,) = reach(layer, rate.low, 10)
    # the way to the memory is rate.low S with S = 5, and ln(memory / tau) of it are walked at the cap
    assert rate.rate == pytest.approx(MAX_CHANGE * 5 * rate.low / math.log(50.0 / one.now), rel=1e-6)
    assert "at most" in rate.reason


def test_a_direct_weight_crosses_the_boundary():
    (one,) = reach(diagonal("direct"), LR, STEPS)
    assert one.reached == math.inf


def sigmoid(b):
    return 1 / (1 + math.exp(-b))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("b", [0.0, 1.5])
def test_the_gate_of_torch_moves_by_both_of_its_biases(kind, b):
    rnn = kind(1, 4, batch_first=True).double()
    with torch.no_grad():
        for weight in rnn.parameters():
            weight.zero_()
        rnn.bias_ih_l0[4:8] = b  # of the gate that keeps the state
    (one,) = reach(rnn, LR, STEPS)
    # without other weights the state decays by sigmoid(b_ih + b_hh), each of which moves by eta S
    assert one.now == pytest.approx(-1 / math.log(sigmoid(b)))
    assert one.reached == pytest.approx(-1 / math.log(sigmoid(b + 2 * MOVED)), rel=1e-9)
    rate = recurrent_rate(rnn, steps=STEPS, memory=100)
    assert rate.low * STEPS / 2 == pytest.approx((-math.log(math.expm1(1 / 100)) - b) / 2, rel=1e-9)


def test_a_gate_that_replaces_the_state_has_its_bias_lowered():
    layer = ContinuousGRU(1, 3, dt=0.1).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.zero_()
    (one,) = reach(layer, LR, STEPS)
    # h+ = h - dt z h, z = sigmoid(b)
    assert one.now == pytest.approx(-1 / math.log(1 - 0.1 * 0.5))
    assert one.reached == pytest.approx(-1 / math.log(1 - 0.1 * sigmoid(-MOVED)), rel=1e-9)


def test_rates_and_steps_of_s4d_both_move():
    (one,) = reach(S4D(2, 8, discretization="zoh").double(), LR, STEPS)
    # tau = 1 / (rate dt), both exponentials of a weight
    assert one.reached == pytest.approx(one.now * math.exp(2 * MOVED), rel=1e-9)


def test_the_decay_and_the_step_of_a_selective_layer_both_move():
    layer = SelectiveSSM(1, 1).double()
    with torch.no_grad():
        layer.step_bias.fill_(-2.0)
    (one,) = reach(layer, LR, STEPS)
    steps = [math.log1p(math.exp(-2.0 - moved)) for moved in (0.0, MOVED)]  # softplus of the bias on zero input
    assert one.reached == pytest.approx(one.now * math.exp(MOVED) * steps[0] / steps[1], rel=1e-9)


def test_a_mixer_of_transformers_is_moved_as_ours_is():
    models = pytest.importorskip("transformers")
    config = models.MambaConfig(hidden_size=8, state_size=4, num_hidden_layers=2, vocab_size=10)
    model = models.MambaModel(config)
    mixer = model.layers[1].mixer
    _, one = reach(model, LR, STEPS)
    dt = nn.functional.softplus(mixer.dt_proj.bias.detach().double() - torch.tensor([[0.0], [MOVED]]))
    rate = torch.exp(mixer.A_log.detach().double()).min(1).values  # of the slowest state of each channel
    before, after = (1 / (rate * dt)).max(1).values.tolist()
    assert (one.now, one.reached) == (pytest.approx(before), pytest.approx(after * math.exp(MOVED)))


def test_a_dense_matrix_reaches_what_its_slowest_eigenvalue_does():
    """A = [[r]]: the sign of the gradient is 1, so that a direct matrix moves by the shift itself."""
    layer = LinearRNN(1, 1, structure="dense", parameterization="direct", W=torch.tensor([[0.5]])).double()
    (one,) = reach(layer, 1e-3, 800)
    # points of the path are 10% of the movement apart, and rates -log |lam| are interpolated between them: 1e-3 of tau
    assert one.reached == pytest.approx(-1 / math.log(0.5 + 0.4), rel=2e-3)


def mass_and_size(layer):
    """sum |c_i| / r_i and the L1 norm of the impulse response, by hand."""
    c = (layer.C[0] * layer.U[:, 0]).detach()
    rates = -layer.eigenvalues().detach()
    times = torch.linspace(0, 400, 400_001, dtype=torch.float64)
    kernel = (c * torch.exp(-times.unsqueeze(-1) * rates)).sum(-1)
    return float((c.abs() / rates).sum()), float(kernel.abs().sum() * 1e-3)


def test_the_safe_step_is_that_of_eq_65_for_exp():
    torch.manual_seed(1)
    layer = diagonal("exp")
    mass, size = mass_and_size(layer)
    rate = recurrent_rate(layer, steps=STEPS, memory=50)
    # every rate changes by e^eta - 1, so that the change is (e^eta - 1) sum |c_i| / r_i; the norm is summed up over 256
    # geometric times: a few per cent
    assert rate.high == pytest.approx(math.log1p(size / mass), rel=0.05)
    sgd = recurrent_rate(layer, steps=STEPS, memory=50, optimizer="sgd", gradient=0.01)
    assert sgd.high == pytest.approx(100 * rate.high)


def test_read_outs_that_cancel_bear_a_smaller_step():
    layers = [diagonal("exp", rates=(0.1, 0.11)) for _ in range(2)]
    with torch.no_grad():
        for layer, sign in zip(layers, (1.0, -0.9), strict=True):
            layer.U.fill_(1.0)
            layer.C.copy_(torch.tensor([[1.0, sign]]))
    same, cancelling = (recurrent_rate(layer, steps=STEPS, memory=50).high for layer in layers)
    assert cancelling < 0.3 * same


def test_the_cap_holds_the_change_of_a_step():
    rate = recurrent_rate(diagonal("exp"), steps=2, memory=1e6)
    # exp: a step changes the rate by e^eta - 1, whatever the rate is
    assert rate.rate == pytest.approx(_reach.MAX_CHANGE, rel=1e-2)
    assert rate.rate < rate.low
    assert "train longer" in rate.reason


def test_a_model_with_several_recurrences_has_a_rate_for_each():
    model = nn.ModuleDict({"fast": diagonal("exp", (0.5, 0.9)), "slow": diagonal("exp", (0.05, 0.1))})
    rate = recurrent_rate(model, steps=STEPS, memory=100)
    assert [part.path for part in rate.parts] == ["fast", "slow"]
    assert [part.low * STEPS / 2 for part in rate.parts] == pytest.approx([math.log(50), math.log(5)], rel=1e-6)
    assert (rate.path, rate.rate) == ("slow", min(part.rate for part in rate.parts))


def test_weights_in_half_precision_are_moved_in_float64():
    layer = DiagonalSSM(1, 2, parameterization="exp", eigenvalues=-torch.tensor([0.25, 0.5]))
    (half,), (full,) = (reach(module, 1e-5, 100) for module in (layer.to(torch.bfloat16), layer.double()))
    assert half.reached / half.now == pytest.approx(math.exp(1e-5 * 50), rel=1e-9)
    assert half.reached / half.now == pytest.approx(full.reached / full.now, rel=1e-9)


def test_a_longer_memory_than_asked_for_gives_a_floor_and_never_a_frozen_weight():
    rate = recurrent_rate(diagonal("exp"), steps=STEPS, memory=5.0)
    # d log tau / d w = 1 for exp: 20 times a way of a quarter of an e-fold over the run
    assert rate.rate == pytest.approx(20 * 0.25 / (STEPS / 2), rel=1e-2)
    assert rate.low == 0.0
    assert "enough for 5" in rate.reason


@pytest.mark.parametrize("name", ["exp", "best", "softplus", "direct"])
def test_the_rate_has_no_gap_where_the_memory_asked_for_passes_that_of_the_start(name):
    (now,) = reach(diagonal(name), 1e-3, STEPS)
    memories = [now.now * math.exp(x) for x in (-1.0, -1e-6, 0.0, 0.1, 0.2499, 0.2501, 0.5, 2.0)]
    rates = [recurrent_rate(diagonal(name), steps=STEPS, memory=memory) for memory in memories]
    assert len({round(rate.rate, 12) for rate in rates[:5]}) == 1
    assert [rate.low > 0 for rate in rates] == [False] * 3 + [True] * 5
    # the way by the slope at the start against the whole way: (e^x - 1) / x and its like at a quarter
    assert rates[5].rate == pytest.approx(rates[4].rate, rel=0.15)
    assert rates[5].rate < rates[6].rate < rates[7].rate


def test_the_floor_of_a_short_run_is_capped_too():
    rate = recurrent_rate(diagonal("exp"), steps=4, memory=5.0)
    assert rate.rate == pytest.approx(0.4 * 0.25, rel=1e-2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LRU(2, 8),
        lambda: S4D(2, 8),
        lambda: LinearRNN(2, 4, structure="dense"),
        lambda: LinearRNN(2, 4, structure="dense", parameterization="complete"),
        lambda: nn.GRU(2, 4, num_layers=2, batch_first=True),
        lambda: nn.LSTM(2, 4, bidirectional=True, proj_size=2),
        lambda: nn.RNN(2, 4),
        lambda: ContinuousRNN(2, 4),
        lambda: SelectiveSSM(2, 4),
        lambda: Mamba(8, 4),
        lambda: Mamba2(8, 4, head_size=4),
        lambda: holdfast.nn.SequenceModel(2, 4, depth=2, state_size=4),
    ],
    ids=["lru", "s4d", "dense", "complete", "gru", "lstm", "rnn", "rate", "selective", "mamba", "mamba2", "stack"],
)
def test_more_steps_reach_no_shorter_memory_and_the_model_stays_as_it_is(make):
    torch.manual_seed(0)
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    short, long = (reach(model, 1e-3, steps) for steps in (10, 400))
    assert len(short) == len(holdfast.recurrences(model))
    for a, b in zip(short, long, strict=True):
        assert a.now <= a.reached * (1 + 1e-6) <= b.reached * (1 + 1e-6)
        assert b.reached <= b.provable * (1 + 1e-6)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_plain_gradient_descent_moves_by_the_gradient():
    adam = recurrent_rate(diagonal("exp"), steps=STEPS, memory=50.0)
    sgd = recurrent_rate(diagonal("exp"), steps=STEPS, memory=50.0, optimizer="sgd", gradient=0.01)
    assert sgd.rate == pytest.approx(100 * adam.rate)


def unstable():
    rnn = nn.RNN(1, 4)
    nn.init.orthogonal_(rnn.weight_hh_l0, gain=1.2)
    return rnn


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: recurrent_rate(diagonal("exp"), steps=0, memory=10.0), "steps"),
        (lambda: recurrent_rate(diagonal("exp"), steps=10, memory=0.5), "memory: expected at least 1 step"),
        (lambda: recurrent_rate(nn.Linear(1, 1), steps=10, memory=5.0), "a recurrence that holdfast recognizes"),
        (lambda: recurrent_rate(diagonal("exp"), steps=10, memory=50.0, optimizer="sgd"), "gradient="),
        (lambda: reach(diagonal("exp"), 0.1, 10, schedule=[1.0]), "expected 10 shares"),
        (lambda: recurrent_rate(nn.LSTM(1, 4, bias=False), steps=10, memory=50), "build it with bias=True"),
        (lambda: recurrent_rate(unstable(), steps=10, memory=50), "holdfast.stabilize"),
        (
            lambda: recurrent_rate(
                DiagonalSSM(1, 2, parameterization=parameterizations.get("clip", edge=0.05), time="continuous"),
                steps=10, memory=1e6,
            ),
            "can reach at most",
        ),
    ],
)  # fmt: skip
def test_mistakes_say_what_can_be_done(call, text):
    with pytest.raises(ArgumentError, match=text):
        call()


class TestGroups:
    def rates(self, groups, model):
        names = {id(p): name for name, p in model.named_parameters()}
        return {names[id(p)]: (group["lr"], group["name"]) for group in groups for p in group["params"]}

    def test_auto_gives_each_recurrence_its_own_rate(self):
        model = nn.ModuleDict({"fast": diagonal("exp", (0.5, 0.9)), "slow": diagonal("exp", (0.05, 0.1))})
        parts = recurrent_rate(model, steps=STEPS, memory=100).parts
        groups = holdfast.parameter_groups(model, lr=1e-3, recurrent_lr="auto", steps=STEPS, memory=100)
        assert [group["name"] for group in groups] == ["decayed", "exempt", "recurrent", "recurrent"]
        found = self.rates(groups, model)
        assert {name: found[f"{name}.w"][0] for name in ("fast", "slow")} == {p.path: p.rate for p in parts}
        assert found["fast.C"] == (1e-3, "decayed")
        assert len(found) == len(list(model.parameters()))

    def test_the_order_of_groups_does_not_follow_from_the_weights(self):
        """A resumed run makes groups of trained weights; an optimizer gives its saved state back to them by their order."""
        for fast, slow in ((0.5, 0.05), (0.05, 0.5), (0.5, 0.5)):
            model = nn.ModuleList([diagonal("exp", (fast, 0.9)), diagonal("exp", (slow, 0.9))])
            groups = holdfast.parameter_groups(model, lr=1e-3, recurrent_lr="auto", steps=STEPS, memory=100)
            recurrent = [group["params"] for group in groups if group["name"] == "recurrent"]
            assert [len(params) for params in recurrent] == [1, 1]
            assert recurrent[0][0] is model[0].w and recurrent[1][0] is model[1].w

    def test_auto_is_for_the_biases_of_gates_and_not_for_their_matrices(self):
        model = nn.LSTM(1, 8)
        found = self.rates(
            holdfast.parameter_groups(model, lr=1e-3, recurrent_lr="auto", steps=STEPS, memory=100), model
        )
        own = recurrent_rate(model, steps=STEPS, memory=100).rate
        assert {found[name] for name in ("bias_ih_l0", "bias_hh_l0")} == {(own, "recurrent")}
        assert found["weight_hh_l0"] == (1e-3, "exempt")
        assert found["weight_ih_l0"] == (1e-3, "decayed")

    def test_auto_is_for_the_bias_of_step_sizes_too(self):
        model = SelectiveSSM(2, 4)
        found = self.rates(
            holdfast.parameter_groups(model, lr=1e-3, recurrent_lr="auto", steps=STEPS, memory=1e4), model
        )
        assert found["w"] == found["step_bias"] != (1e-3, "exempt")

    def test_a_rate_of_another_schedule_is_taken_as_it_is(self):
        model = diagonal("exp")
        rate = recurrent_rate(model, steps=STEPS, memory=100, schedule="constant")
        *_, recurrent = holdfast.parameter_groups(model, lr=1e-3, recurrent_lr=rate)
        assert recurrent["lr"] == rate.rate

    def test_an_optimizer_lengthens_the_memory_with_it(self):
        """One slow mode to be learned from a fast start: a quarter of lr cannot get there, the rate by law can."""
        ends = {}
        for name, choice in {"auto": {"recurrent_lr": "auto", "steps": 200, "memory": 50}, "usual": {}}.items():
            torch.manual_seed(0)
            layer = DiagonalSSM(1, 1, parameterization="exp", activation="identity", eigenvalues=-torch.tensor([0.5]))
            x = torch.randn(32, 200, 1)
            with torch.no_grad():
                teacher = DiagonalSSM(1, 1, activation="identity", eigenvalues=-torch.tensor([0.02]))
                y, _ = teacher(x)
            optimizer = torch.optim.Adam(holdfast.parameter_groups(layer, lr=4e-3, **choice))
            plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
            for _ in range(200):
                optimizer.zero_grad()
                nn.functional.mse_loss(layer(x)[0], y).backward()
                optimizer.step()
                plan.step()
            ends[name] = -1 / layer.eigenvalues().item()
        # its reach from 2 steps, an estimate: Adam's steps exceed lr a little while a gradient grows
        assert ends["usual"] < 1.5 * 2 * math.exp(4e-3 * 100)
        assert 25 < ends["auto"] < 100

    @pytest.mark.parametrize(
        ("choice", "text"),
        [
            ({"recurrent_lr": "auto"}, "needs steps= and memory="),
            ({"recurrent_lr": "auto", "steps": 5}, "needs steps= and memory="),
            ({"recurrent_lr": 0.1, "steps": 5, "memory": 5}, "recurrent_lr='auto' needs steps= and memory="),
        ],
    )
    def test_mistakes_say_what_is_missing(self, choice, text):
        with pytest.raises(ArgumentError, match=text):
            holdfast.parameter_groups(diagonal("exp"), lr=1e-3, **choice)

    def test_a_rate_of_another_model_is_refused(self):
        rate = recurrent_rate(nn.LSTM(1, 2), steps=5, memory=5)
        with pytest.raises(ArgumentError, match="expected a rate for each recurrence"):
            holdfast.parameter_groups(nn.ModuleList([diagonal("exp")]), lr=1e-3, recurrent_lr=rate)
