import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from holdfast.cli import certify
from holdfast.errors import ArgumentError
from holdfast.nn import LinearRNN
from holdfast.stability import certificates, stabilize

app = typer.Typer()
app.command("certify")(certify.command)

MODELS = """
import torch
from torch import nn

from holdfast.nn import DiagonalSSM, LinearRNN

W = torch.tensor([[-0.1, 5.0], [0.0, -0.2]])


def layer():
    return DiagonalSSM(1, 4)


def non_normal():
    return LinearRNN(1, 2, W=W, parameterization="direct", time="continuous")


def gru():
    return nn.GRU(2, 4, num_layers=2)


def growing():
    return LinearRNN(1, 2, W=-W, parameterization="direct", time="continuous")


def marked():
    return nn.ModuleDict({"[/x]\\x1b[31m": nn.RNN(1, 2)})


def mixing():
    return nn.Linear(3, 3)


def function():
    return lambda x: x
"""


@pytest.fixture
def models(tmp_path):
    file = tmp_path / "my_models.py"
    file.write_text(MODELS)
    return str(file)


def holdfast(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_a_stable_layer_is_certified_with_its_memory_bound(models):
    done = holdfast(f"{models}:layer", "--target", "power:1.5", "--details")
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "stable" in text
    assert "StableSSM, Thm 3.1" in text
    assert "StableSSM, eq. 56" in text
    # the slowest rate, 0.001 per unit of time, at steps of 1
    assert "0.0009995 per step" in text
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if models not in line)


def test_a_non_normal_matrix_is_told_why_the_lemma_does_not_hold(models):
    done = holdfast(f"{models}:non_normal", "--details")
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "W is not normal" in text
    assert "Lemma A.8" in text


def test_every_recurrence_is_a_row_and_a_part_of_the_json(models):
    table = holdfast(f"{models}:gru")
    assert table.exit_code == 0, table.output
    assert "weight_hh_l0" in table.stdout
    assert "weight_hh_l1" in table.stdout
    answer = json.loads(holdfast(f"{models}:gru", "--json").stdout)
    assert [part["path"] for part in answer["parts"]] == ["weight_hh_l0", "weight_hh_l1"]
    assert answer["parts"][0]["equilibria"][0]["reached"]


def test_an_unstable_recurrence_ends_with_1(models):
    done = holdfast(f"{models}:growing")
    assert done.exit_code == 1
    assert "unstable" in done.stdout


def test_a_weight_is_named_with_its_time(models):
    done = holdfast(f"{models}:mixing", "--weight", "weight", "--time", "discrete", "--json")
    assert done.exit_code in (0, 1)
    assert json.loads(done.stdout)["kind"] == "named matrix"
    table = holdfast(
        f"{models}:mixing", "--weight", "weight", "--time", "discrete", "--structure", "diagonal", "--json"
    )
    assert json.loads(table.stdout)["kind"] == "named eigenvalues"


def test_plot_is_written(models, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "eigenvalues.svg"
    done = holdfast(f"{models}:gru", "--plot", str(file))
    assert done.exit_code == 0, done.output
    assert "<svg" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{}:mixing"], "--weight layer.weight --time discrete"),
        (["{}:function"], "nn.Module"),
        (["{}:gru", "--target", "power:1.5"], "real diagonal"),
        (["{}:gru", "--limit", "2"], "pass a larger limit="),
        (["{}:mixing", "--weight", "weight"], "time is needed for"),
        (["gru"], "FILE.py:NAME"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_mistakes_are_named(models, arguments, text):
    done = holdfast(*(a.format(models) for a in arguments))
    assert isinstance(done.exception, ArgumentError), done.exception
    assert text in str(done.exception)


def test_names_with_markup_and_escapes_are_shown_as_text(models):
    result = holdfast(f"{models}:marked")
    assert result.exit_code in (0, 1), result.output
    assert "[/x]\\x1b[31m" in result.output
    assert "\x1b" not in result.output


@pytest.mark.filterwarnings("ignore")  # transformers warns about optional kernels
def test_a_transformers_model_of_a_file_is_read_by_its_tokens(tmp_path):
    pytest.importorskip("transformers")
    path = tmp_path / "made.py"
    path.write_text(
        "from transformers import MambaConfig, MambaModel\n\n\ndef mamba():\n"
        "    return MambaModel(MambaConfig(vocab_size=20, hidden_size=8, state_size=4, num_hidden_layers=1))\n"
    )
    result = CliRunner().invoke(app, [f"{path}:mamba", "--steps", "16"])
    assert result.exit_code == 0, result.output
    assert "over the 16 steps of the inputs given" in " ".join(result.output.split())


def test_the_first_screen_says_what_it_means_without_the_papers_words(models):
    text = " ".join(holdfast(f"{models}:non_normal").stdout.split())
    assert "a state may first grow" in text
    assert "Next: holdfast diagnose" in text
    assert not any(word in text for word in ("Lyapunov", "Lemma", "Thm", "spectral"))
    assert "holdfast.stabilize(model, allow_change=True)" in holdfast(f"{models}:growing").stdout


def test_the_call_that_an_unstable_model_is_told_makes_it_stable():
    layer = LinearRNN(1, 2, W=torch.tensor([[0.1, 5.0], [0.0, 0.2]]), parameterization="direct", time="continuous")
    with pytest.raises(ArgumentError, match="allow_change=True"):
        stabilize(layer)
    stabilize(layer, allow_change=True)
    assert certificates.certify(layer).status == "stable"
