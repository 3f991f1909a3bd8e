"""Time constants of modes: set through every parameterization and discretization, and measured again."""

import copy

import numpy as np
import pytest
import torch
from layer_cases import LAYERS, PARAMETERIZED, build, sequence

from holdfast.nn import SequenceModel, recurrences
from holdfast.nn._pace import spread

WANTED = [1.5, 8.0, 60.0]


def set_to(model, values=WANTED):
    for view in recurrences(model):
        view.set_time_constants(torch.tensor(values))
    return model


def test_constants_are_spread_over_more_and_fewer_modes():
    assert spread(np.array([1.0, 100.0]), 3) == pytest.approx([1, 10, 100])
    assert spread(np.array([2.0, 10.0, 80.0]), 2) == pytest.approx([2, 80])
    assert spread(np.array([2.0, 80.0]), 1) == pytest.approx([80])  # the slowest
    assert spread(np.array([7.0]), 3) == pytest.approx([7, 7, 7])


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_takes_the_time_constants_of_its_modes(name):
    layer = set_to(build(name, state_size=8))
    (view,) = recurrences(layer)
    found = view.time_constants()
    assert float(found.max()) == pytest.approx(60, rel=1e-6)  # float64
    assert float(found.min()) == pytest.approx(1.5, rel=1e-6)
    if view.matrix() is None:
        rows = np.sort(found.detach().numpy().reshape(-1, found.shape[-1]), axis=1)
        np.testing.assert_allclose(rows, np.tile(spread(np.array(WANTED), rows.shape[1]), (len(rows), 1)), rtol=1e-6)
    if view.gate is None:  # the margin of the layer itself, per step: the slowest mode
        assert view.margin() == pytest.approx(-np.expm1(-1 / 60), rel=1e-6)
    y, _ = layer(sequence())
    assert torch.isfinite(y).all()


@pytest.mark.parametrize(("kind", "name", "options"), PARAMETERIZED)
def test_every_parameterization_holds_them_or_the_nearest(kind, name, options):
    torch.manual_seed(0)
    layer = set_to(kind(3, 4, parameterization=name, **options).double())
    (view,) = recurrences(layer)
    assert view.margin() > 0
    slowest = float(view.time_constants().max())
    if name in ("inverse", "relu", "clip"):
        assert slowest > 1  # maps whose range ends
    else:
        assert slowest == pytest.approx(60, rel=1e-3)


def test_a_stack_keeps_its_other_weights_and_the_order_of_its_modes():
    torch.manual_seed(0)
    model = SequenceModel(2, 8, depth=2, layer="lru", state_size=6)
    before = copy.deepcopy(model.state_dict())
    orders = [view.time_constants().argsort() for view in recurrences(model)]
    set_to(model)
    changed = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed and all(key.endswith((".w", ".log_gamma", ".phase")) for key in changed), changed
    for key in changed:
        if key.endswith(".phase"):  # read back from the eigenvalue: the same angle to a rounding of float32
            turn = (model.state_dict()[key] - before[key]).double()
            assert torch.cos(turn).min() > 1 - 1e-12
    for view, order in zip(recurrences(model), orders, strict=True):
        assert torch.equal(view.time_constants().argsort(), order)
        assert view.time_constants().max() == pytest.approx(60, rel=1e-4)  # float32


def test_a_step_takes_the_share_that_the_time_constant_says():
    torch.manual_seed(0)
    layer = set_to(build("S4D inv bilinear", state_size=4), [20.0])
    state = torch.randn(1, *layer.state_shape, dtype=torch.float64)
    _, after = layer.step(torch.zeros(1, 3, dtype=torch.float64), state)
    shares = torch.view_as_complex(after).abs() / torch.view_as_complex(state).abs()
    np.testing.assert_allclose(shares.detach().numpy(), np.exp(-1 / 20), rtol=1e-9)


@pytest.mark.filterwarnings("ignore")  # transformers warns about optional kernels
def test_models_of_other_libraries_take_them_too():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, state_size=4)
    model = set_to(transformers.MambaForCausalLM(config))
    (view,) = recurrences(model)
    assert view.time_constants().max() == pytest.approx(60, rel=1e-4)
    assert view.time_constants().min() == pytest.approx(1.5, rel=1e-4)


@pytest.mark.parametrize("values", [[], [0.0], [-1.0, 2.0], [float("nan")], [float("inf")]])
def test_constants_that_are_none_are_refused(values):
    with pytest.raises(ValueError, match="finite numbers above 0"):
        set_to(build("LRU"), values)


@pytest.mark.slow
def test_the_input_gate_of_an_lstm_follows_its_forget_gate_so_that_the_state_keeps_its_size():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(1, 3, batch_first=True).double()
    with torch.no_grad():
        for name, weight in lstm.named_parameters():
            if name.startswith("weight") or "bias_ih" in name:
                weight.zero_()
        lstm.weight_ih_l0[6:9] = 1e-4  # inputs reach the candidate alone, in the linear part of tanh

    def kernel_norms():
        x = torch.zeros(1, 2000, 1, dtype=torch.float64)
        x[0, 0] = 1.0
        with_, without = ([lstm(x[:, :t])[1][1][0, 0] for t in range(1, 2000, 13)] for x in (x, torch.zeros_like(x)))
        return (torch.stack(with_) - torch.stack(without)).sum(0)

    before, bias = kernel_norms(), lstm.bias_hh_l0.detach().clone()
    set_to(lstm, [60.0])
    shares = torch.sigmoid(lstm.bias_hh_l0.detach())
    gains = shares[:3] / (1 - shares[3:6])
    old = torch.sigmoid(bias)
    torch.testing.assert_close(gains, old[:3] / (1 - old[3:6]), rtol=1e-9, atol=0)  # float64
    assert torch.equal(lstm.bias_hh_l0[6:], bias[6:])
    # the sum over every 13th step of i f^k, which was nearly its first term, is i / (1 - f^13) now
    expected = shares[:3] / (1 - shares[3:6] ** 13) / (old[:3] / (1 - old[3:6] ** 13))
    candidate = torch.cosh(bias[6:9]) ** -2
    assert bool((candidate > 0.5).all())
    torch.testing.assert_close(kernel_norms() / before, expected, rtol=1e-3, atol=0)  # tanh bends by 1e-4


def test_an_input_gate_lets_no_more_in_than_it_can():
    lstm = torch.nn.LSTM(1, 2)
    set_to(lstm, [0.05])  # the forget gate keeps 2e-9: the kernel of a whole input is no longer than a step
    assert torch.isfinite(lstm.bias_hh_l0).all()
    assert bool((lstm.bias_hh_l0 + lstm.bias_ih_l0 > 0)[:2].all())  # wide open


def test_the_input_gate_of_gates_without_bias_is_the_share_that_the_forget_gate_lets_go():
    lstm = torch.nn.LSTM(1, 5).double()
    torch.nn.init.zeros_(lstm.bias_ih_l0)
    torch.nn.init.zeros_(lstm.bias_hh_l0)  # i = f = 1/2
    set_to(lstm, [2.0, 200.0])
    torch.testing.assert_close(lstm.bias_hh_l0[:5], -lstm.bias_hh_l0[5:10], rtol=1e-9, atol=1e-12)  # float64
