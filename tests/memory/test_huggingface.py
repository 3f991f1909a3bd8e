"""Real transformers models, from config with random weights; runs where transformers is installed."""

import io
import json
import logging
import os
import pathlib

import numpy as np
import pytest
import torch

from holdfast.errors import ArgumentError
from holdfast.memory import InputSearch, ModelError, Probe, huggingface, memory_function, repeated_input_memory

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported
transformers = pytest.importorskip("transformers")

SMALL = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 60, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 256},
    "mamba": {"model_type": "mamba", "vocab_size": 60, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4},
    "bert": {
        "model_type": "bert",
        "vocab_size": 60,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    },
}
# transformers warns about optional fast kernels and special tokens outside of a tiny vocabulary
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(tmp_path):
    def make(name):
        (tmp_path / "config.json").write_text(json.dumps(SMALL[name]))
        return str(tmp_path)

    return make


@pytest.mark.parametrize("name", ["gpt2", "mamba"])
def test_causal_models_are_measured_through_their_embeddings(folder, name):
    loaded = huggingface.load(folder(name))
    assert loaded.random
    adapter = huggingface.FromEmbeddings(loaded.model)
    assert adapter.input_size == 8
    curve = memory_function(
        adapter, input_size=8, horizon=60, probe=Probe(max_burn_in=64), search=InputSearch(budget=8)
    )
    assert np.isfinite(curve.values).all()
    assert curve.values[-1] < curve.jump
    # positions never rest, a recurrence does
    assert curve.status == ("unsettled" if name == "gpt2" else "ok")


def test_an_encoder_is_caught_and_measured_by_repetition(folder):
    loaded = huggingface.load(folder("bert"))
    with pytest.raises(ModelError, match="not causal"):
        memory_function(huggingface.FromEmbeddings(loaded.model), input_size=8, horizon=20)
    curve = repeated_input_memory(huggingface.TokenScore(loaded.model), [5, 6], 20)
    assert curve.status == "ok"
    assert (curve.values > 0).all()


def test_padding_does_not_change_a_score(folder):
    for name in ("gpt2", "mamba", "bert"):
        score = huggingface.TokenScore(huggingface.load(folder(name)).model.eval(), output="last")
        inputs = [[5], [5, 6, 7, 8], [9, 9]]
        with torch.no_grad():
            alone = torch.cat([score([row]) for row in inputs])
            # masked positions leave rounding only
            torch.testing.assert_close(score(inputs), alone, rtol=1e-4, atol=1e-5)


def test_weights_are_kept_and_a_missing_model_is_named(folder, tmp_path):
    torch.manual_seed(1)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(folder("bert")))
    model.save_pretrained(tmp_path / "saved")
    loaded = huggingface.load(str(tmp_path / "saved"))
    assert not loaded.random
    assert loaded.tokenizer is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[name]), name
    with pytest.raises(ArgumentError, match="could not load the model 'no/such-model'"):
        huggingface.load("no/such-model")


FOREIGN = """
import pathlib
pathlib.Path({marker!r}).write_text("ran")
from transformers import PretrainedConfig, PreTrainedModel
class Own(PretrainedConfig):
    model_type = "own"
class OwnModel(PreTrainedModel):
    config_class = Own
"""


def test_code_that_comes_with_a_model_is_not_run_whatever_is_typed(tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    source = tmp_path / "model"
    source.mkdir()
    (source / "own.py").write_text(FOREIGN.format(marker=str(marker)))
    maps = {"AutoConfig": "own.Own", "AutoModel": "own.OwnModel", "AutoTokenizer": "own.Own"}
    (source / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": maps}))
    monkeypatch.setattr("builtins.input", lambda *a: "y")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    with pytest.raises(ArgumentError, match="could not load"):
        huggingface.load(str(source))
    assert not marker.exists()


class _Harmful:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (pathlib.Path.touch, (self.marker,))


def test_weights_that_are_a_pickle_are_read_as_tensors_only(folder, tmp_path):
    marker = tmp_path / "marker"
    source = folder("bert")
    torch.save({"embeddings.weight": _Harmful(marker)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ArgumentError, match=r"safetensors|could not load"):
        huggingface.load(source)
    assert not marker.exists()
    (tmp_path / "pytorch_model.bin").unlink()
    model = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(source))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    loaded = huggingface.load(source)
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[name]), name


def test_a_transformers_model_given_directly_is_told_its_adapter(folder):
    model = huggingface.load(folder("gpt2")).model
    with pytest.raises(ModelError, match="FromEmbeddings"):
        memory_function(model)


def test_a_name_that_cannot_be_had_is_one_message_with_what_to_do(monkeypatch, caplog, tmp_path):
    def unreachable(*arguments, **options):
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        raise OSError("We couldn't connect\nmore lines")

    monkeypatch.setattr("transformers.AutoModel.from_pretrained", unreachable)
    before = logging.getLogger("huggingface_hub").level
    with pytest.raises(ArgumentError, match=r"check the name and the network.*hf:path/to/folder"):
        huggingface.load("no-such/model")
    assert "Retrying" not in caplog.text
    assert logging.getLogger("huggingface_hub").level == before
    with pytest.raises(ArgumentError, match=r"could not load the folder .*must hold config\.json"):
        huggingface.load(str(tmp_path))
