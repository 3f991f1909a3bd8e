"""What every layer promises about its weights: any number of outputs, memory of their own, the meta device."""

import numpy as np
import pytest
import torch
from layer_cases import BATCH, FEATURES, LAYERS, STEPS, build, sequence

from holdfast.errors import ArgumentError, DtypeError, HoldfastError
from holdfast.memory import closed_form
from holdfast.nn import (
    LRU,
    S4D,
    ContinuousRNN,
    DiagonalSSM,
    GatedBlock,
    HyenaBlock,
    LinearRNN,
    Mamba,
    SelectiveSSM,
    SequenceModel,
)

TIGHT = {"rtol": 1e-11, "atol": 1e-11}  # float64 over nine steps


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_may_be_as_many_as_wanted(name):
    layer, x = build(name, out_features=5), sequence()
    lengths = [STEPS, 4, 0]
    y, last = layer(x, lengths=lengths)
    assert y.shape == (BATCH, STEPS, layer.out_features) == (BATCH, STEPS, 5)
    assert bool((y[1, 4:] == 0).all())
    outputs, state = [], None
    for t in range(STEPS):
        y_t, state = layer.step(x[:, t], state)
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1)[0], y[0], **TIGHT)
    torch.testing.assert_close(state[0], last[0], **TIGHT)
    assert layer(x, lengths=lengths, return_state=False)[0].shape == y.shape


@pytest.mark.parametrize("name", ["LRU", "S4D lin", "S4D real", "LinearRNN"])
def test_the_linear_system_of_a_layer_with_other_outputs_is_its_impulse_response(name):
    layer = build(name, out_features=2)
    if getattr(layer, "b", None) is not None:
        torch.nn.init.zeros_(layer.b)
    kernel = closed_form.of_layer(layer, STEPS).rho
    x = torch.eye(FEATURES, dtype=torch.float64).unsqueeze(1)  # an impulse in each feature
    response = layer(torch.cat((x, torch.zeros(FEATURES, STEPS - 1, FEATURES, dtype=torch.float64)), 1))[0]
    torch.testing.assert_close(kernel[:STEPS], response.detach().permute(1, 2, 0), **TIGHT)


def test_a_block_with_a_residual_refuses_a_mixer_of_other_outputs():
    with pytest.raises(ArgumentError, match="as many outputs as features, got 3 features and 5 outputs"):
        GatedBlock(LRU(3, 4, out_features=5))


@pytest.mark.parametrize("kind", [DiagonalSSM, S4D, SelectiveSSM, Mamba, LRU, LinearRNN])
def test_eigenvalues_are_no_weight_and_weights_are_no_tensor_of_the_caller(kind):
    real = {"initialization": "real"} if kind is S4D else {"structure": "diagonal"} if kind is LinearRNN else {}
    layer = kind(2, 3, parameterization="direct", **real).double()
    before = layer(sequence()[..., :2])[0]
    with torch.no_grad():
        layer.eigenvalues().zero_()
    assert torch.equal(layer(sequence()[..., :2])[0], before)
    assert all(weight.is_contiguous() for weight in layer.parameters())


@pytest.mark.parametrize("kind", [LinearRNN, ContinuousRNN])
def test_the_matrix_that_a_layer_shows_is_no_weight(kind):
    layer = kind(2, 3, parameterization="direct")
    before = layer.recurrence().detach().clone()
    with torch.no_grad():
        layer.recurrent_matrix().zero_()
    assert torch.equal(layer.recurrence(), before)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_built_on_the_meta_device_is_filled_later(name):
    kind, options = LAYERS[name]
    full, x = build(name), sequence()
    with torch.device("meta"):
        empty = kind(FEATURES, 4, **options)
    assert all(weight.is_meta for weight in empty.parameters())
    empty.to_empty(device="cpu").double().load_state_dict(full.state_dict())
    assert torch.equal(empty(x)[0], full(x)[0])


def test_a_stack_built_on_the_meta_device_takes_the_tensors_of_a_state_dict():
    choices = {"depth": 2, "layer": "lru", "state_size": 4}
    full = SequenceModel(3, 8, **choices).double()
    with torch.device("meta"):
        empty = SequenceModel(3, 8, **choices)
    empty.load_state_dict(full.state_dict(), assign=True)
    assert torch.equal(empty(sequence())[0], full(sequence())[0])


LENGTHS = {
    "list": [9, 4, 1],
    "list of numpy's": list(np.array([9, 4, 1])),
    "array": np.array([9, 4, 1]),
    "unsigned array": np.array([9, 4, 1], dtype=np.uint8),
    "int32": torch.tensor([9, 4, 1], dtype=torch.int32),
}


@pytest.mark.parametrize("kind", LENGTHS)
def test_lengths_may_be_whole_numbers_of_any_kind(kind):
    torch.manual_seed(0)
    x = sequence()
    for net in (SequenceModel(3, 8, depth=1, layer="lru", state_size=4), LRU(3, 4), HyenaBlock(LRU(3, 4))):
        net = net.double()
        assert torch.equal(net(x, lengths=LENGTHS[kind])[0], net(x, lengths=torch.tensor([9, 4, 1]))[0])


def test_lengths_that_are_no_whole_numbers_are_refused():
    net, x = SequenceModel(3, 8, depth=1, layer="lru", state_size=4).double(), sequence()
    with pytest.raises(DtypeError, match="lengths"):
        net(x, lengths=np.array([9.0, 4.0, 1.0]))
    with pytest.raises(ArgumentError, match="lengths must be whole numbers"):
        net(x, lengths=[9, 4, 1.5])


def by_steps(layer, x):
    outputs, state = [], None
    for now in x.unbind(1):
        y, state = layer.step(now, state)
        outputs.append(y)
    return torch.stack(outputs, 1)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in its forward mode
@pytest.mark.parametrize("name", LAYERS)
def test_forward_mode_is_right_or_refused(name):
    layer, x, step = build(name), sequence(), 1e-6
    try:
        _, tangent = torch.func.jvp(lambda x: layer(x)[0], (x,), (torch.ones_like(x),))
    except HoldfastError as refusal:
        assert "reverse mode" in str(refusal)
        assert "its step in a loop" in str(refusal)
        _, tangent = torch.func.jvp(lambda x: by_steps(layer, x), (x,), (torch.ones_like(x),))
    # a central difference: step^2 times a third derivative, and rounding over step
    expected = (layer(x + step)[0] - layer(x - step)[0]) / (2 * step)
    torch.testing.assert_close(tangent, expected, rtol=1e-6, atol=1e-8)
