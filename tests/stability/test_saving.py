"""Saving what was stabilised: names and constants in the state dict, safetensors, copies, save_pretrained."""

import copy
import io
import json
import math

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

import holdfast
from cases import PARAMETERIZATIONS
from holdfast import parameterizations
from holdfast.errors import ArgumentError
from holdfast.nn import LRU, S4D, ContinuousRNN, DiagonalSSM, LinearRNN

MATRICES = [
    parameterizations.get_matrix(time="discrete"),
    parameterizations.get_matrix(time="continuous"),
    parameterizations.get_matrix("contraction", time="discrete"),
    parameterizations.get_matrix("contraction", time="continuous", dt=0.3),
    parameterizations.get_matrix("normal", parameterization="best", b=0.1),
]


def mamba(seed, shift=0.0):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.MambaConfig(vocab_size=20, hidden_size=8, state_size=8, num_hidden_layers=2)
    model = transformers.MambaModel(config).eval()
    for block in model.layers:
        block.mixer.A_log.data.add_(shift)
    return model


def through_safetensors(state):
    return load(save({name: value.contiguous() for name, value in state.items()}))


@pytest.mark.parametrize("f", [*PARAMETERIZATIONS, *MATRICES], ids=repr)
def test_name_and_constants_survive_safetensors_copies_and_rounding(f):
    state = through_safetensors(copy.deepcopy(f).bfloat16().state_dict())
    again = copy.deepcopy(f)
    for name in again.constants():
        setattr(again, name, 0.123)
    again.load_state_dict(state)
    assert again.constants() == f.constants()
    for other in (*PARAMETERIZATIONS, *MATRICES):
        if (other.key, other.time) != (f.key, f.time):
            with pytest.raises(ArgumentError, match="other eigenvalues"):
                copy.deepcopy(other).load_state_dict(state, strict=False)


def test_free_weights_of_another_parameterization_are_refused():
    one, other = LRU(2, 4, parameterization="exp"), LRU(2, 4, parameterization="best")
    with pytest.raises(
        ArgumentError, match=r"'exp' \(discrete time\); this model has 'best'.*undo\(\) it before saving"
    ):
        other.load_state_dict(one.state_dict())
    one.load_state_dict(LRU(2, 4, parameterization="exp").state_dict())


@pytest.mark.parametrize(
    "make",
    [
        lambda: S4D(2, 8, parameterization="best"),
        lambda: DiagonalSSM(2, 4, parameterization="best"),
        lambda: LinearRNN(2, 4),
        lambda: LinearRNN(2, 4, parameterization="best", time="continuous"),
        lambda: ContinuousRNN(2, 4),
        lambda: LRU(2, 4),
    ],
)
def test_layers_come_back_with_their_outputs(make):
    torch.manual_seed(0)
    one = make()
    torch.manual_seed(1)
    other = make()
    other.load_state_dict(through_safetensors(one.state_dict()))
    x = torch.randn(2, 9, 2)
    torch.testing.assert_close(other(x)[0], one(x)[0], rtol=0, atol=0)


def test_a_stabilized_model_is_reloaded_with_its_own_constants():
    one, other = mamba(0), mamba(1, shift=-4.0)
    holdfast.stabilize(one)
    holdfast.stabilize(other)
    other.load_state_dict(through_safetensors(one.state_dict()))
    tokens = torch.randint(20, (1, 7))
    with torch.no_grad():
        torch.testing.assert_close(other(tokens)[0], one(tokens)[0], rtol=0, atol=0)
    assert float(torch.exp(other.layers[0].mixer.A_log.detach().max())) == pytest.approx(8.0, rel=1e-5)


def test_a_stabilized_torch_rnn_is_reloaded_and_not_into_a_plain_one():
    torch.manual_seed(0)
    one, other = nn.RNN(1, 4), nn.RNN(1, 4)
    done = holdfast.stabilize(one)
    with pytest.raises(RuntimeError, match="parametrizations"):
        other.load_state_dict(one.state_dict())
    holdfast.stabilize(other)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    torch.testing.assert_close(other.weight_hh_l0, one.weight_hh_l0, rtol=0, atol=0)
    done.undo()
    nn.RNN(1, 4).load_state_dict(one.state_dict())


def test_a_layer_that_was_stabilized_is_not_loaded_into_one_that_was_not():
    one, other = LinearRNN(1, 3, parameterization="direct"), LinearRNN(1, 3, parameterization="direct")
    done = holdfast.stabilize(one)
    with pytest.raises(ArgumentError, match=r"call stabilize\(\.\.\.\) as it was called before saving"):
        other.load_state_dict(one.state_dict())
    done.undo()
    other.load_state_dict(one.state_dict())


@pytest.mark.parametrize("copied", [False, True])
def test_save_pretrained_writes_plain_weights_that_from_pretrained_reads(tmp_path, copied):
    model = mamba(0, shift=-1.0)
    done = holdfast.stabilize(model)
    if copied:
        original, model = model, copy.deepcopy(model)
        with torch.no_grad():
            for p in original.parameters():
                p.fill_(0.5)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01 * torch.randn_like(p))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval() if copied else mamba(5).from_pretrained(tmp_path).eval()
    tokens = torch.randint(20, (1, 7))
    with torch.no_grad():
        # A_log through log, exp and back: a few roundings of float32
        torch.testing.assert_close(again(tokens)[0], model(tokens)[0], rtol=1e-4, atol=1e-5)
    for one, other in zip(again.layers, model.layers, strict=True):  # outputs of 7 tokens hardly depend on A
        assert float((one.mixer.A_log - other.mixer.A_log).detach().abs().max()) < 1e-6
    assert set(again.state_dict()) == set(mamba(0).state_dict())
    # a state dict that a training loop passes along is translated too
    model.save_pretrained(tmp_path / "given", state_dict=model.state_dict())
    given = mamba(5).from_pretrained(tmp_path / "given").state_dict()
    assert all(torch.equal(given[name], value) for name, value in again.state_dict().items())
    done.undo()
    assert "save_pretrained" not in vars(original if copied else model)


def test_a_damaged_name_is_said_to_be_damaged():
    state = LRU(1, 2).state_dict()
    state["parameterization._extra_state"] = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(ArgumentError, match="cannot be read"):
        LRU(1, 2).load_state_dict(state)


HOSTILE = [
    (DiagonalSSM(1, 4, parameterization="best"), "parameterization", {"a": -5.0, "b": -5.0}, "best needs finite a > 0"),
    (DiagonalSSM(1, 4, parameterization="best"), "parameterization", {"a": 1.0, "b": math.nan}, "finite|a number"),
    (DiagonalSSM(1, 4, parameterization="best"), "parameterization", {"a": 1.0, "b": "x"}, "must be a number"),
    (DiagonalSSM(1, 4, parameterization="clip"), "parameterization", {"edge": -1.0}, "clip needs a finite edge > 0"),
    (DiagonalSSM(1, 4, time="discrete"), "parameterization", {"b": 0.1}, "discrete best needs b >= 0.5"),
    (ContinuousRNN(1, 4), "recurrence.parameterization", {"dt": 1e-9}, "stable up to Euler steps of 1e-09"),
    (ContinuousRNN(1, 4), "recurrence.parameterization", {"dt": -1.0}, "dt must be a finite number above 0"),
]


@pytest.mark.parametrize(("layer", "place", "constants", "text"), HOSTILE)
def test_constants_that_would_make_a_layer_unstable_are_not_loaded(layer, place, constants, text):
    state = layer.state_dict()
    saved = json.loads(bytes(state[f"{place}._extra_state"].tolist()))
    assert set(saved["constants"]) == set(constants)
    hostile = json.dumps(saved | {"constants": constants}).encode()
    state[f"{place}._extra_state"] = torch.tensor(list(hostile), dtype=torch.uint8)
    before = layer.margin()
    with pytest.raises(ArgumentError, match=text):
        layer.load_state_dict(state)
    assert layer.margin() == before > 0
