"""Sweeps: a run that dies or fails leaves the others alone, and several processes may share one folder."""

import json
from pathlib import Path

import pytest
from filelock import FileLock

from holdfast.errors import ArgumentError
from holdfast.training import _folder as folders
from holdfast.training import _sweep as sweeps
from holdfast.training._recipe import read_recipes
from holdfast.training._sweep import run_sweep

CONFIG = """
[task]
name = "recall"
length = 4
vocabulary = 6
train = 64
valid = 16
test = 16

[model]
factory = "own.py:make"
size = {sizes}

[run]
batch = 16
steps = 6
threads = 1
checkpoint_every = 1
"""
OWN = """
import os
from pathlib import Path
from torch import nn

HERE = Path(__file__).parent

class Model(nn.Sequential):
    def forward(self, x):
        if self.training and (HERE / "deadly").exists() and self[0].embedding_dim == 5:
            (HERE / "deadly").write_text("." + (HERE / "deadly").read_text())
            if len((HERE / "deadly").read_text()) == 4:
                os.kill(os.getpid(), 9)
        return super().forward(x)

def make(inputs, outputs, size=4):
    if size == 13:
        raise RuntimeError("thirteen is not a size")
    return Model(nn.Embedding(inputs, size), nn.Linear(size, outputs))
"""


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)

    def read(*sizes):
        Path("sweep.toml").write_text(CONFIG.format(sizes=json.dumps(sizes)))
        return read_recipes(Path("sweep.toml"))

    return read


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_own_run_alone_and_is_continued(recipes):
    Path("deadly").write_text("")
    first = run_sweep("s", recipes(4, 5), Path("swept"), workers=2)
    assert set(first.runs) == {"size=4"}
    assert "ended by signal 9; continue with --resume" in first.failures["size=5"]
    assert "size=5: failed" in Path("swept/index.html").read_text()
    Path("deadly").unlink()
    again = run_sweep("s", recipes(4, 5), Path("swept"), workers=2, resume=True)
    whole = run_sweep("s", recipes(4, 5), Path("whole"), workers=1)
    assert not again.failures
    for label, run in whole.runs.items():
        assert run.metrics == again.runs[label].metrics, label
        assert run.history.loss.tolist() == again.runs[label].history.loss.tolist(), label


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_raises_does_not_lose_the_others(recipes, workers):
    sweep = run_sweep("s", recipes(13, 4), Path("swept"), workers=workers)
    assert {label: run.status for label, run in sweep.runs.items()} == {"size=4": "finished"}
    assert "thirteen is not a size" in sweep.failures["size=13"]


def test_a_run_that_another_process_trains_is_waited_for(recipes, monkeypatch):
    monkeypatch.setattr(sweeps, "SECONDS_BETWEEN_LINES", 0.01)
    run_sweep("s", recipes(4, 5), Path("swept"), workers=1)
    for name in ("last.json", "best.json"):
        Path("swept/size=4", name).unlink()  # as if it were under way
    other = FileLock(Path("swept/size=4") / folders.LOCK)
    other.acquire(timeout=0)
    texts = []

    def progress(text, done, total):
        texts.append(text)
        if text.startswith("waiting"):
            other.release()

    sweep = run_sweep("s", recipes(4, 5), Path("swept"), workers=1, resume=True, progress=progress)
    assert texts[0] == "waiting for another process to train size=4"
    assert not sweep.failures
    assert [run.status for run in sweep.runs.values()] == ["finished", "finished"]


def test_finished_runs_are_not_trained_again(recipes, monkeypatch):
    run_sweep("s", recipes(4, 5), Path("swept"), workers=1)
    monkeypatch.setattr(sweeps, "train_one", lambda *_: pytest.fail("was trained again"))
    assert len(run_sweep("s", recipes(4, 5), Path("swept"), workers=1, resume=True).runs) == 2


@pytest.mark.parametrize("workers", [0, -1])
def test_a_sweep_needs_a_worker(recipes, workers):
    with pytest.raises(ArgumentError, match="workers must be a whole number >= 1"):
        run_sweep("s", recipes(4, 5), Path("swept"), workers=workers)


def test_a_beginning_that_was_killed_is_no_obstacle(recipes):
    Path("swept").mkdir()
    Path("swept/.sweep.json.123-0123abcd.tmp").write_text("half")
    assert not run_sweep("s", recipes(4, 5), Path("swept"), workers=1).failures


def test_folders_have_names_that_every_file_system_takes():
    labels = ["lr=0.1 width=8", "file=" + "x" * 300, "file=" + "x" * 299 + "y", "text=" + "漢" * 80, "a=b/c", "a=b_c"]
    names = [sweeps._name(label) for label in labels]
    assert names[0] == "lr=0.1_width=8"
    assert len(set(names)) == len(labels)
    assert all(len(name.encode()) <= 80 and "/" not in name for name in names)
