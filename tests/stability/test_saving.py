"""Saving what was stabilized: names and constants in the state dict, safetensors, copies, save_pretrained."""

import copy
import io
import itertools
import json
import math

import pytest
import torch
from safetensors.torch import load, load_model, save, save_model
from torch import nn

import holdfast
from cases import PARAMETERIZATIONS
from holdfast import parameterizations
from holdfast.errors import ArgumentError, RangeError
from holdfast.nn import LRU, S4D, ContinuousRNN, DiagonalSSM, LinearRNN, Mamba
from holdfast.stability import plain_state_dict

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


FORMS = {
    "LRU": lambda form: LRU(2, 4, parameterization=form),
    "S4D": lambda form: S4D(2, 8, parameterization=form),
    "DiagonalSSM": lambda form: DiagonalSSM(2, 4, parameterization=form),
    "Mamba": lambda form: Mamba(2, 4, parameterization=form),
    "LinearRNN": lambda form: LinearRNN(2, 4, parameterization=form),
    "LinearRNN continuous": lambda form: LinearRNN(2, 4, parameterization=form, time="continuous"),
}
# the normal form ("best" of a dense W) takes no W of another form: rounding leaves none normal
DENSE = [("direct", "complete"), ("complete", "direct"), ("best", "direct"), ("best", "complete")]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_free_weights_of_another_parameterization_are_translated(name, strict):
    torch.manual_seed(0)
    x = torch.randn(2, 9, 2, dtype=torch.float64)
    scalar = itertools.permutations(("direct", "exp", "best"), 2)
    for saved, here in DENSE if "LinearRNN" in name else scalar:
        one, other = FORMS[name](saved).double(), FORMS[name](here).double()
        other.load_state_dict(through_safetensors(one.state_dict()), strict=strict)
        # float64 through an inverse and back, amplified by the condition of the complete form
        torch.testing.assert_close(other(x)[0], one(x)[0], rtol=1e-9, atol=1e-10)
        assert other.eigenvalues().shape == one.eigenvalues().shape


def test_what_no_free_weight_of_the_form_can_make_is_refused_and_changes_nothing():
    unstable = DiagonalSSM(1, 2, parameterization="direct", eigenvalues=torch.tensor([-1.0, 0.25]))
    here = DiagonalSSM(1, 2, parameterization="exp")
    before = here.w.detach().clone()
    for strict in (True, False):
        with pytest.raises(RangeError, match=r"w of the state dict cannot be represented in the exp form.*0\.25"):
            here.load_state_dict(unstable.state_dict(), strict=strict)
    assert torch.equal(here.w, before)
    with pytest.raises(
        ArgumentError, match=r"for the parameterization 'exp' \(continuous time\), got one for 'best' \(discrete time\)"
    ):
        here.load_state_dict(DiagonalSSM(1, 2, time="discrete").state_dict())


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


def foreign(kind, seed):
    torch.manual_seed(seed)
    if kind == "mamba":
        return mamba(seed, shift=-0.5 * seed)
    return {"rnn": nn.RNN, "cell": nn.RNNCell}[kind](1, 4)


def stabilized(model):
    holdfast.stabilize(model)
    return model


def recurrent_values(model):
    return [w.value.clone() for view in holdfast.recurrences(model) for w in view.weights]


KINDS = pytest.mark.parametrize("kind", ["mamba", "rnn", "cell"])


@KINDS
@pytest.mark.parametrize("strict", [True, False])
def test_plain_weights_load_into_a_stabilized_model(kind, strict):
    plain, other = foreign(kind, 3), stabilized(foreign(kind, 1))
    wrapped = nn.ModuleDict({"inner": other})
    state = {f"inner.{name}": value.clone() for name, value in plain.state_dict().items()}
    names = set(state)
    result = wrapped.load_state_dict(state, strict=strict)
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert set(state) == names, "the caller's own dict was changed"
    for here, there in zip(recurrent_values(other), recurrent_values(plain), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-6)


@KINDS
def test_plain_weights_load_shard_by_shard(kind):
    plain, other = foreign(kind, 3), stabilized(foreign(kind, 1))
    for item in plain.state_dict().items():
        other.load_state_dict(dict([item]), strict=False)
    for here, there in zip(recurrent_values(other), recurrent_values(plain), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-6)


@KINDS
@pytest.mark.parametrize("strict", [True, False])
def test_a_plain_model_never_loads_stabilized_weights_in_silence(kind, strict):
    one = stabilized(foreign(kind, 0))
    plain = foreign(kind, 1)
    with pytest.raises(RuntimeError, match=r"size mismatch for .*shape torch\.Size\(\[0\]\) from checkpoint"):
        plain.load_state_dict(one.state_dict(), strict=strict)
    plain.load_state_dict(plain_state_dict(one))
    for here, there in zip(recurrent_values(one), recurrent_values(plain), strict=True):
        torch.testing.assert_close(here, there, rtol=0, atol=0)


@KINDS
def test_a_stabilized_state_dict_comes_back_bit_for_bit(kind, tmp_path):
    one, other = stabilized(foreign(kind, 0)), stabilized(foreign(kind, 1))
    with torch.no_grad():
        for p in one.parameters():
            p.mul_(-1.01)  # the free weights, not their representative with a positive sign, come back
    save_model(one, str(tmp_path / "one.safetensors"))
    assert load_model(other, str(tmp_path / "one.safetensors")) == (set(), [])
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), name
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    stabilized(foreign(kind, 2)).load_state_dict(torch.load(file, weights_only=True))


def test_weights_stabilized_in_another_way_are_translated_or_refused():
    one, other = mamba(0, shift=-1.0), mamba(1)
    holdfast.stabilize(one, "exp")
    holdfast.stabilize(other, "best")
    other.load_state_dict(one.state_dict())
    for here, there in zip(recurrent_values(other), recurrent_values(one), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-6)
    rnn = stabilized(nn.RNN(1, 3))
    before = rnn.weight_hh_l0.detach().clone()
    growing = nn.RNN(1, 3).state_dict() | {"weight_hh_l0": 1.5 * torch.eye(3)}
    with pytest.raises(
        RangeError, match=r"weight_hh_l0 of the state dict cannot be represented in the contraction form.*1\.5"
    ):
        rnn.load_state_dict(growing, strict=False)
    with pytest.raises(ArgumentError, match=r"weight_hh_l0 of the state dict has shape \(2, 2\), expected \(3, 3\)"):
        rnn.load_state_dict({"weight_hh_l0": torch.eye(2)}, strict=False)
    assert torch.equal(rnn.weight_hh_l0, before)


def test_copies_keep_the_rules_and_undo_ends_them():
    model = nn.RNN(1, 4)
    done = holdfast.stabilize(model)
    twin, plain = copy.deepcopy(model), nn.RNN(1, 4)
    twin.load_state_dict(plain.state_dict())
    torch.testing.assert_close(twin.weight_hh_l0, plain.weight_hh_l0, rtol=1e-5, atol=1e-6)
    done.undo()
    assert set(model.state_dict()) == set(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    assert not model._load_state_dict_pre_hooks and not model._state_dict_hooks


def test_a_stabilized_layer_of_ours_is_saved_whole_and_torch_refuses_others(tmp_path):
    layer = stabilized(S4D(2, 8))
    torch.save(layer, tmp_path / "layer.pt")
    again = torch.load(tmp_path / "layer.pt", weights_only=False)
    x = torch.randn(1, 5, 2)
    assert torch.equal(again(x)[0], layer(x)[0])
    plain = S4D(2, 8)
    plain.load_state_dict(again.state_dict())
    torch.testing.assert_close(plain(x)[0], layer(x)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        torch.save(stabilized(nn.RNN(1, 2)), tmp_path / "rnn.pt")


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
    (
        DiagonalSSM(1, 4, parameterization="best"),
        "parameterization",
        {"a": -5.0, "b": -5.0},
        "'best' needs finite a > 0",
    ),
    (DiagonalSSM(1, 4, parameterization="best"), "parameterization", {"a": 1.0, "b": math.nan}, "finite|a number"),
    (DiagonalSSM(1, 4, parameterization="best"), "parameterization", {"a": 1.0, "b": "x"}, "must be a number"),
    (DiagonalSSM(1, 4, parameterization="clip"), "parameterization", {"edge": -1.0}, "edge must be finite and above 0"),
    (DiagonalSSM(1, 4, time="discrete"), "parameterization", {"b": 0.1}, "'best' in discrete time needs b >= 0.5"),
    (ContinuousRNN(1, 4), "recurrence.parameterization", {"dt": 1e-9}, "stable at Euler steps of .*up to 1e-09"),
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
