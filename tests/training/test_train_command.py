"""`holdfast train`: config files, what is refused in them, and sweeps."""

import json
import re
import sys
from pathlib import Path

import pytest

from holdfast.cli.app import main
from holdfast.errors import ArgumentError
from holdfast.training import TrainingRun
from holdfast.training._recipe import read_recipes

CONFIGS = sorted((Path(__file__).parent.parent.parent / "examples/configs").glob("*.toml"))
SMALL = """
[task]
name = "recall"
length = 4
vocabulary = 6
train = 64
valid = 16
test = 16

[model]
width = 8
depth = 1
state_size = 4

[optimizer]
lr = 0.01

[run]
batch = 16
steps = 4
threads = 1
"""


@pytest.fixture
def holdfast(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["holdfast", "train", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_config_file_becomes_a_run(holdfast):
    code, out, err = holdfast("small.toml", "--set", "run.steps=6")
    assert code == 0, err
    assert "finished at step 6 of 6" in out
    run = TrainingRun.load("runs/small")
    assert {"loss", "accuracy", "perplexity"} == set(run.metrics["test"])
    code, _, err = holdfast("small.toml", "--set", "run.steps=6")
    assert (code, "continue it with resume" in err) == (2, True)
    code, out, _ = holdfast("small.toml", "--set", "run.steps=6", "--resume", "--json")
    assert code == 0
    assert json.loads(out)["status"] == "finished"
    code, _, err = holdfast("small.toml", "--resume")
    assert code == 2
    assert "steps was 6, is 4" in err


def test_a_dry_run_builds_everything_and_writes_nothing(holdfast, tmp_path):
    code, out, _ = holdfast("small.toml", "--dry-run")
    assert code == 0
    assert re.search(r"parameters +\d.*recurrent\nmemory .*\ntokens +96 per step\ntime ", out)
    code, out, _ = holdfast("small.toml", "--dry-run", "--json")
    assert json.loads(out)["tokens"] == 96
    assert [p.name for p in tmp_path.iterdir()] == ["small.toml"]


def test_a_diverged_run_ends_with_1(holdfast):
    code, out, _ = holdfast("small.toml", "--set", "run.diverged_above=1e-9")
    assert code == 1
    assert "diverged at step 1 of 4" in out
    assert "Next: --range-test" in out


def test_tried_rates_end_in_a_command_that_can_be_typed(holdfast):
    code, out, _ = holdfast("small.toml", "--range-test")
    assert code == 0
    said = " ".join(out.split()).partition("Next: train with ")[2]
    code, out, err = holdfast("small.toml", *said.split())
    assert code == 0, err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("optimizer.lrate=1", "unknown key in [optimizer] 'lrate'. Did you mean 'lr'?"),
        ("run.step=1", "unknown key in [run] 'step'. Did you mean 'steps'?"),
        ("model.widht=1", "unknown key in [model] 'widht'. Did you mean 'width'?"),
        ("task.lenght=1", "unknown key in [task] for 'recall' 'lenght'. Did you mean 'length'?"),
        ("task.name=recal", "unknown task 'recal'. Did you mean 'recall'?"),
        ("modle.width=1", "unknown section in --set 'modle'. Did you mean 'model'?"),
        ("model.kind=langage", "unknown model.kind 'langage'. Did you mean 'language'?"),
        ("model.layer=s4", "unknown model.layer 's4'. Did you mean 's4d'?"),
        ("model.kind=classifier", "use model.kind = 'language'"),
        ("optimizer.lr=fast", "lr must be"),
        ("run.batch=[]", "got an empty list"),
        ("lr=1", "expected section.key=value"),
    ],
)
def test_a_typo_meets_the_nearest_known_name(holdfast, change, said):
    code, _, err = holdfast("small.toml", "--set", change)
    assert code == 2
    assert said in err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [("[task", "is not valid TOML"), ("[tasks]", "Did you mean 'task'"), ("task = 3", "expected a table")],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, said):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ArgumentError, match=re.escape(said)):
        read_recipes(tmp_path / "bad.toml")


def test_a_missing_file_is_named(holdfast):
    code, _, err = holdfast("absent.toml")
    assert (code, "cannot read the config absent.toml" in err) == (2, True)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_example_config_is_known_and_says_how_it_is_run(path):
    recipes = read_recipes(path)
    assert len(recipes) == (6 if path.stem == "sweep" else 1)
    assert all(recipe.config.batch for _, recipe in recipes)
    assert f"holdfast train examples/configs/{path.name}" in path.read_text()


def test_the_example_of_an_own_series_trains(holdfast):
    example = next(str(path) for path in CONFIGS if path.stem == "series")
    shorter = ("--set", "run.steps=3", "--set", "run.evaluate_batches=1", "--set", "task.window=16")
    code, out, err = holdfast(example, *shorter)
    assert code == 0, err
    assert "finished at step 3" in out


def test_an_own_factory_is_called_with_the_sizes_of_the_task(holdfast):
    Path("own.py").write_text(
        "from torch import nn\n"
        "def make(inputs, outputs, size=4):\n"
        "    return nn.Sequential(nn.Embedding(inputs, size), nn.Linear(size, outputs))\n"
    )
    text = re.sub(r"(?s)\[model\].*?\n\n", '[model]\nfactory = "own.py:make"\nsize = 5\n\n', SMALL)
    Path("own.toml").write_text(text)
    code, out, err = holdfast("own.toml")
    assert code == 0, err
    assert "finished" in out


def test_a_sweep_lands_on_a_page_with_its_curves(holdfast):
    Path("sweep.toml").write_text(SMALL.replace("lr = 0.01", "lr = [0.01, 0.1]\nbetas = [0.8, 0.9]"))
    code, out, err = holdfast("sweep.toml", "--folder", "swept", "--json", "--workers", "1")
    assert code == 0, err
    answer = json.loads(out)
    assert [run["run"] for run in answer["runs"]] == ["lr=0.01", "lr=0.1"]
    assert all(run["status"] == "finished" for run in answer["runs"])
    page = Path(answer["page"]).read_text()
    assert "Sweep sweep" in page and "valid accuracy" in page and "<script" not in page
    assert TrainingRun.load("swept/lr=0.1").config["lr"] == 0.1
    code, _, err = holdfast("sweep.toml", "--folder", "swept")
    assert (code, "holds a sweep" in err) == (2, True)
    code, out, err = holdfast("sweep.toml", "--folder", "swept", "--resume", "--json", "--workers", "1")
    assert code == 0
    assert json.loads(out)["runs"] == answer["runs"]
    code, _, err = holdfast("sweep.toml", "--folder", "swept", "--resume", "--set", "run.steps=5")
    assert (code, "other settings" in err) == (2, True)
    code, _, err = holdfast("sweep.toml", "--dry-run")
    assert (code, "choose one with --set" in err) == (2, True)


def test_a_run_that_fails_is_named_and_the_others_are_kept(holdfast):
    Path("sweep.toml").write_text(SMALL.replace("lr = 0.01", "lr = [0.01, 0.1]"))
    Path("swept").mkdir()
    code, out, err = holdfast("sweep.toml", "--folder", "swept", "--json", "--workers", "1")
    assert code == 0, err
    (Path("swept/lr=0.1") / "run.json").write_text("{}")
    code, out, err = holdfast("sweep.toml", "--folder", "swept", "--json", "--workers", "1", "--resume")
    assert code == 1
    assert "FAILED  lr=0.1: " in err
    assert [run["run"] for run in json.loads(out)["runs"]] == ["lr=0.01"]


def test_a_folder_of_others_is_no_place_for_a_sweep(holdfast):
    Path("sweep.toml").write_text(SMALL.replace("lr = 0.01", "lr = [0.01, 0.1]"))
    Path("mine").mkdir()
    Path("mine/data.csv").write_text("1")
    code, _, err = holdfast("sweep.toml", "--folder", "mine")
    assert (code, "expected an empty or new folder, or one with a sweep" in err) == (2, True)


def test_a_range_test_suggests_a_pair(holdfast):
    code, out, err = holdfast("small.toml", "--range-test")
    assert code == 0, err
    assert "recurrent weights: " in out
    assert "other weights: suggested" in out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.dropout=0.3", r"\[model\] dropout was not given, is 0.3|dropout|\.p was"),
        ("model.layer=lru", r"was .*is"),
        ('model.discretization="bilinear"', r"discretization was \"zoh\", is \"bilinear\""),
        ("task.length=5", r"length was 4, is 5"),
        ("optimizer.lr=0.02", r"lr was 0.01, is 0.02"),
        ("run.seed=1", r"seed was 0, is 1"),
    ],
)
def test_a_changed_recipe_is_not_resumed(holdfast, change, said):
    assert holdfast("small.toml")[0] == 0
    code, _, err = holdfast("small.toml", "--resume", "--set", change)
    assert code == 2
    assert re.search(said, " ".join(err.split())), err
    assert holdfast("small.toml", "--resume", "--set", "run.checkpoint_every=7")[0] == 0


@pytest.mark.parametrize(
    ("annotation", "runs"),
    [("Sizes", 1), ("'Sizes'", 1), ("'list[int] | None'", 1), ("'Listless'", 2), ("int", 2), ("'no such'", 2)],
)
def test_a_list_is_one_value_where_the_factory_takes_one(tmp_path, annotation, runs):
    (tmp_path / "own.py").write_text(
        "from collections.abc import Sequence\nSizes = Sequence[int] | None\nclass Listless: ...\n"
        f"def make(inputs, outputs, sizes: {annotation} = None): ...\n"
    )
    file = tmp_path / "own.toml"
    file.write_text('[task]\nname = "recall"\n[model]\nfactory = "own.py:make"\nsizes = [4, 8]\n[run]\nsteps = 1\n')
    assert len(read_recipes(file)) == runs
