"""MinGRU, MinLSTM and RGLRU: their equations by a plain loop, closed forms, memories, and RecurrentGemma's own unit."""

import copy
import math

import pytest
import torch
from torch.nn import functional

import holdfast
from holdfast.errors import ArgumentError
from holdfast.nn import RGLRU, MinGRU, MinLSTM, SequenceModel, recurrences

# float64: sums of at most a few hundred terms of size 1
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
KINDS = [MinGRU, MinLSTM, RGLRU]
every = pytest.mark.parametrize("kind", KINDS)


def loop(layer, x, state):
    """The papers' equations step by step; nothing of the layer but its weights."""
    n, states = layer.state_size, []
    for now in x.unbind(1):
        if isinstance(layer, MinGRU):
            z = torch.sigmoid(now @ layer.W[:n].T + layer.w)
            state = (1 - z) * state + z * (now @ layer.W[n:].T + layer.b)
        elif isinstance(layer, MinLSTM):
            f, i, c = (now @ part.T for part in layer.W.chunk(3))
            f, i = torch.sigmoid(f + layer.forget_bias), torch.sigmoid(i + layer.input_bias)
            state = f / (f + i) * state + i / (f + i) * (c + layer.b)
        else:
            v = now if layer.U is None else now @ layer.U.T
            blocks = [torch.block_diag(*w) for w in (layer.recurrent_gate_weight, layer.input_gate_weight)]
            r = torch.sigmoid(v @ blocks[0] + layer.recurrent_gate_bias)
            i = torch.sigmoid(v @ blocks[1] + layer.input_gate_bias)
            a = torch.exp(-8 * r * functional.softplus(layer.w))
            state = a * state + torch.sqrt(1 - a**2) * i * v
        states.append(state)
    h = torch.stack(states, 1)
    return h if layer.E is None else h @ layer.E.T


def randomized(kind, features, states, **options):
    torch.manual_seed(1)
    layer = kind(features, states, **options).double()
    with torch.no_grad():
        for weight in layer.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return layer


@every
@pytest.mark.parametrize(("features", "states", "steps"), [(3, 4, 1), (4, 4, 2), (2, 6, 63), (5, 6, 65)])
def test_a_layer_and_its_gradients_are_the_loop_of_its_paper(kind, features, states, steps):
    layer = randomized(kind, features, states, **({"heads": 2} if kind is RGLRU else {}))
    x = torch.randn(2, steps, features, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, states, dtype=torch.float64, requires_grad=True)
    sources = [x, state, *layer.parameters()]
    weights = torch.randn(2, steps, layer.out_features, dtype=torch.float64)
    ours, theirs = layer(x, state)[0], loop(layer, x, state)
    torch.testing.assert_close(ours, theirs, **TIGHT)
    for one, other in zip(
        torch.autograd.grad((ours * weights).sum(), sources),
        torch.autograd.grad((theirs * weights).sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)  # sums over all steps


@every
def test_zero_input_decays_by_the_eigenvalues(kind):
    layer = randomized(kind, 3, 5)
    if kind is not RGLRU:
        with torch.no_grad():
            layer.b.zero_()
    state = torch.randn(1, 5, dtype=torch.float64)
    _, last = layer(torch.zeros(1, 40, 3, dtype=torch.float64), state)
    # h = e^(40 dt lam) h0, dt the pace of zero input
    torch.testing.assert_close(last, torch.exp(40 * layer.step_size() * layer.eigenvalues()) * state, **TIGHT)


@every
def test_a_constant_input_leads_to_a_closed_form(kind):
    layer = randomized(kind, 3, 5)
    x = torch.randn(1, 1, 3, dtype=torch.float64)
    state = torch.randn(1, 5, dtype=torch.float64)
    one, zero = (layer(x, start)[1] for start in (state, torch.zeros_like(state)))
    a = ((one - zero) / state).detach()  # the step is linear in the state
    _, last = layer(x.expand(1, 30, 3), state)
    # sum of the geometric series
    torch.testing.assert_close(last, a**30 * state + (1 - a**30) / (1 - a) * zero, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [MinGRU, MinLSTM])
def test_cutting_a_step_with_held_input_changes_nothing(kind):
    layer = randomized(kind, 3, 5)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    dt = torch.tensor([[0.1, 2.0, 0.0, 0.7]], dtype=torch.float64).expand(2, 4)
    y, last = layer(x, dt=dt)
    fine, end = layer(x.repeat_interleave(50, 1), dt=dt.repeat_interleave(50, 1) / 50)
    torch.testing.assert_close(fine[:, 49::50], y, rtol=1e-10, atol=1e-11)  # 200 roundings instead of 4
    torch.testing.assert_close(end, last, rtol=1e-10, atol=1e-11)


@every
def test_a_step_of_no_time_changes_nothing_and_has_finite_gradients(kind):
    layer = randomized(kind, 3, 5)
    state = torch.randn(2, 5, dtype=torch.float64)
    _, last = layer(torch.randn(2, 3, 3, dtype=torch.float64), state, dt=0.0)
    torch.testing.assert_close(last, state, rtol=1e-12, atol=1e-12)
    last.sum().backward()
    assert all(weight.grad is None or bool(torch.isfinite(weight.grad).all()) for weight in layer.parameters())


@pytest.mark.parametrize("kind", [MinGRU, MinLSTM])
def test_states_of_minimal_units_stay_between_their_candidates(kind):
    layer = randomized(kind, 4, 8, activation="tanh")
    h = layer(100 * torch.randn(4, 500, 4, dtype=torch.float64))[1].detach()
    assert float(h.abs().max()) <= 1


def test_white_noise_gives_an_rglru_a_state_of_unit_size():
    torch.manual_seed(0)
    layer = RGLRU(64, 64)
    with torch.no_grad():
        layer.input_gate_bias.fill_(50.0)  # i = 1
        layer.recurrent_gate_weight.zero_()
    _, state = layer(torch.randn(64, 3000, 64))
    # sqrt(1 - a^2) keeps the variance; 4,096 draws leave a few per cent
    assert float(state.detach().square().mean()) == pytest.approx(1, rel=0.1)


@every
def test_131072_steps_in_float32_stay_near_float64(kind):
    torch.manual_seed(0)
    layer = kind(4, 4)
    x = torch.randn(1, 131_072, 4)
    y, last = layer(x)
    y.mean().backward()
    exact, end = copy.deepcopy(layer).double()(x.double())
    assert all(bool(torch.isfinite(weight.grad).all()) for weight in layer.parameters())
    # memories of 1,000 steps: gates rounded to 6e-8 move a state by 1,000 times that at most
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=1e-4)
    torch.testing.assert_close(last.double(), end, rtol=0, atol=1e-4)


@every
def test_gates_that_saturate_stay_finite(kind):
    layer = kind(3, 4)
    x = torch.cat([torch.full((1, 20, 3), 1e4), torch.full((1, 20, 3), -1e4)], 1).requires_grad_()
    y, _ = layer(x)
    y.sum().backward()
    assert bool(torch.isfinite(y).all()) and bool(torch.isfinite(x.grad).all())
    assert all(bool(torch.isfinite(weight.grad).all()) for weight in layer.parameters())


@every
def test_memory_and_rates_of_a_gate_are_known(kind):
    torch.manual_seed(0)
    layer = kind(3, 6)
    (view,) = recurrences(layer)
    view.set_time_constants(torch.tensor([2.0, 5.0, 30.0]))
    now = float(view.time_constants().max())
    assert now == pytest.approx(30, rel=1e-4)
    (way,) = holdfast.stability.reach(layer, 0.01, 100, schedule="constant")
    assert way.now == pytest.approx(30, rel=1e-4)
    assert 30 < way.reached <= way.provable
    rate = holdfast.recurrent_rate(layer, steps=200, memory=300)
    assert 0 < rate.low <= rate.rate
    # a bias that moves by the whole way leads to the memory that was asked for
    (there,) = holdfast.stability.reach(layer, rate.low, 200)
    assert there.reached == pytest.approx(300, rel=1e-2)


@pytest.mark.parametrize("kind", [MinGRU, MinLSTM])
def test_the_reach_of_a_sigmoid_gate_is_its_closed_form(kind):
    layer = kind(2, 1).double()
    (view,) = recurrences(layer)
    view.set_time_constants(torch.tensor([20.0]))
    (way,) = holdfast.stability.reach(layer, 0.5, 1, schedule="constant")
    if kind is MinGRU:
        factor = torch.sigmoid(-(layer.w - 0.5))
    else:  # both biases move by 0.5
        f, i = torch.sigmoid(layer.forget_bias + 0.5), torch.sigmoid(layer.input_bias - 0.5)
        factor = f / (f + i)
    assert way.reached == pytest.approx(-1 / math.log(float(factor.detach())), rel=1e-6)


@every
def test_a_certificate_knows_the_pace_of_inputs(kind):
    torch.manual_seed(0)
    model = SequenceModel(3, 8, depth=1, layer=kind.__name__.lower(), state_size=8).double().eval()
    x = torch.randn(2, 60, 3, dtype=torch.float64)
    (part,) = holdfast.certify(model, inputs=x).parts or (holdfast.certify(model, inputs=x),)
    assert part.status == "stable"
    assert part.selective is not None
    layer = next(m for m in model.modules() if isinstance(m, kind))
    seen = []
    layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(x)
    log_factors = layer._motion(seen[0], None)[0].detach().log()
    # the largest mean over time of the log of a factor, over rows and states
    assert part.along.exponent == pytest.approx(float(log_factors.mean((0, 1)).max()), rel=0.2)
    assert part.selective.factor == pytest.approx(float(log_factors.max().exp()), rel=1e-9)


@pytest.mark.parametrize("kind", [MinGRU, MinLSTM])
def test_stabilize_leaves_a_gate_alone(kind):
    with pytest.raises(ArgumentError, match="its gates bound the state already"):
        holdfast.stabilize(kind(3, 4))


def test_stabilize_changes_the_rates_of_an_rglru_and_not_what_it_computes():
    layer = randomized(RGLRU, 4, 4)
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    before = layer(x)[0]
    holdfast.stabilize(layer, parameterization="best")
    torch.testing.assert_close(layer(x)[0], before, rtol=1e-9, atol=1e-9)


def griffin_unit(heads=2, width=6):
    recurrent_gemma = pytest.importorskip("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    from transformers import RecurrentGemmaConfig

    torch.manual_seed(3)
    config = RecurrentGemmaConfig(hidden_size=width, lru_width=width, num_attention_heads=heads)
    unit = recurrent_gemma.RecurrentGemmaRglru(config).double()
    with torch.no_grad():
        for weight in unit.parameters():
            weight.normal_()
    return unit


def test_an_rglru_with_recurrent_gemmas_weights_computes_what_its_unit_does():
    unit = griffin_unit()
    layer = RGLRU.from_transformers(unit)
    x = torch.randn(3, 50, 6, dtype=torch.float64)
    y, _ = layer(x, layer.first_state(x[:, 0]))
    # their states are float32 whatever the dtype
    torch.testing.assert_close(y, unit(x, torch.arange(50).expand(3, -1)), rtol=1e-5, atol=1e-5)
    state = torch.randn(3, 6, dtype=torch.float64)
    unit.recurrent_states = state
    y, last = layer(x, state)
    torch.testing.assert_close(y, unit(x, torch.arange(7, 57).expand(3, -1)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last, unit.recurrent_states.double(), rtol=1e-5, atol=1e-5)


def test_weights_go_back_to_recurrent_gemma():
    unit, other = griffin_unit(), griffin_unit()
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    RGLRU.from_transformers(unit).to_transformers(other)
    for one, two in zip(unit.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, **TIGHT)
    with pytest.raises(ArgumentError, match="expected a layer of 6 features, states and outputs with 2 heads"):
        RGLRU(6, 6).to_transformers(unit)
    with pytest.raises(ArgumentError, match="expected transformers' RecurrentGemmaRglru"):
        RGLRU.from_transformers(torch.nn.Linear(2, 2))


def test_wrong_choices_are_refused():
    with pytest.raises(ArgumentError, match="expected heads that divide state_size=4, got 3"):
        RGLRU(4, 4, heads=3)
    with pytest.raises(ArgumentError, match="unknown activation"):
        MinGRU(4, 4, activation="tan")
    with pytest.raises(ArgumentError, match="unknown activation"):
        MinLSTM(4, 4, activation="tan")
