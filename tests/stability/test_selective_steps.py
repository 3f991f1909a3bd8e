"""Selective recurrences: what stable means, the decays seen on inputs, and memory and stabilize of accelerated models."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import holdfast
from holdfast import nn
from holdfast.cli.app import app
from holdfast.errors import ArgumentError
from holdfast.memory import InputSearch, Probe, huggingface, memory_function

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about optional kernels
CONFIG = {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 2, "vocab_size": 20}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return transformers.MambaModel(transformers.MambaConfig(**CONFIG)).eval()


def test_the_largest_factor_is_that_of_the_steps_that_the_layer_takes():
    torch.manual_seed(0)
    layer = nn.SelectiveSSM(3, 4).double()
    x = torch.randn(2, 11, 3, dtype=torch.float64)
    certificate = holdfast.certify(layer, inputs=x)
    raw, _, _ = layer._project(x)
    delta = layer._step_sizes(raw, None).detach()
    factors = torch.exp(delta.unsqueeze(-1) * layer.eigenvalues().detach())
    # float64 exponentials of the same numbers
    assert certificate.selective.factor == pytest.approx(float(factors.max()), rel=1e-14)
    assert certificate.selective.smallest == pytest.approx(float(delta.min()), rel=1e-14)
    assert certificate.selective.largest == pytest.approx(float(delta.max()), rel=1e-14)
    assert certificate.selective.steps == 22
    assert certificate.status == "stable"
    assert any("no input makes a factor larger than 1" in note for note in certificate.notes)
    assert any("over the 22 steps" in note for note in certificate.notes)
    assert certificate.to_dict()["selective"]["steps"] == 22


@pytest.mark.parametrize("before", [False, True])
def test_a_transformers_model_is_certified_accelerated_or_not_and_stays_what_it_is(model, before):
    if before:
        holdfast.accelerate(model)
    kinds = [type(layer.mixer) for layer in model.layers]
    tokens = torch.arange(12).view(1, 12)
    parts = holdfast.certify(model, inputs=tokens).parts
    assert [part.path for part in parts] == ["layers.0.mixer.A_log", "layers.1.mixer.A_log"]
    assert all(part.status == "stable" and 0 < part.selective.factor < 1 for part in parts)
    assert all(part.selective.steps == 12 for part in parts)
    assert [type(layer.mixer) for layer in model.layers] == kinds
    unseen = holdfast.certify(model)
    assert unseen.selective is None
    assert any("up to the input" in note for note in unseen.notes)


def test_heads_are_watched_too_and_inputs_that_do_not_fit_are_refused():
    options = {"num_heads": 4, "head_dim": 4, "n_groups": 1, "chunk_size": 8}
    heads = transformers.Mamba2Model(transformers.Mamba2Config(**CONFIG, **options)).eval()
    certificate = holdfast.certify(heads, inputs=torch.arange(5).view(1, 5))
    assert all(0 < part.selective.factor < 1 for part in certificate.parts)
    with pytest.raises(ArgumentError, match=r"failed on inputs of shape \(1, 5\)"):
        holdfast.certify(nn.SelectiveSSM(2, 4), inputs=torch.zeros(1, 5))


def test_memory_over_ten_thousand_steps_is_that_of_the_model_as_it_was(model):
    adapter = huggingface.FromEmbeddings(model)
    options = {"input_size": 8, "search": InputSearch("grid", budget=2), "probe": Probe(max_burn_in=128)}
    plain = memory_function(adapter, horizon=40, **options)
    holdfast.accelerate(model)
    fast = memory_function(adapter, horizon=40, **options)
    # float32 through two layers, differences of outputs of size 1
    np.testing.assert_allclose(fast.values, plain.values, rtol=1e-3, atol=2e-6)
    long = memory_function(adapter, horizon=10_000, **options)
    assert len(long.values) == 10_001
    assert long.status == "ok"
    np.testing.assert_allclose(long.values[:41], fast.values, rtol=1e-3, atol=2e-6)


def test_stabilize_and_accelerate_go_together_and_come_apart_in_order(model):
    tokens = torch.arange(12).view(1, 12)
    with torch.no_grad():
        expected = model(tokens).last_hidden_state
        done = holdfast.accelerate(model)
        stabilized = holdfast.stabilize(model)
        assert set(stabilized.changed) == {"layers.0.mixer.A_log", "layers.1.mixer.A_log"}
        # A through another function of a free weight: float32 roundings
        torch.testing.assert_close(model(tokens).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
        with pytest.raises(ArgumentError, match="remove a parametrization first"):
            done.restore()
        stabilized.undo()
        done.restore()
        torch.testing.assert_close(model(tokens).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
    holdfast.stabilize(model)
    with pytest.warns(UserWarning, match="accelerate replaced nothing"):
        left = holdfast.accelerate(model).left
    assert left[0] == ("layers.0.mixer", "its weights are parametrized; call accelerate first and stabilize after it")


def test_the_commands_accelerate_and_say_what_stable_means(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", **CONFIG}))
    ran = CliRunner().invoke(app, ["certify", f"hf:{tmp_path}", "--steps", "20"])
    assert ran.exit_code == 0, ran.output
    said = " ".join(ran.output.split())  # lines are folded where a folder's name is long
    assert "mixers that run on holdfast's kernels: 2" in said
    assert "over the 20 steps of the inputs given" in said
    options = ["--horizon", "50", "--burn-in", "20", "--no-properties", "--json"]
    ran = CliRunner().invoke(app, ["memory", f"hf:{tmp_path}", *options])
    assert ran.exit_code == 0, ran.output
    assert "mixers that run on holdfast's kernels: 2" in json.loads(ran.output)["notes"]
