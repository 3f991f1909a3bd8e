"""What takes processes of its own: kills at random moments, two gloo processes, a sweep in processes."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_training import CONFIG, new_model, new_task

from holdfast.training import TrainingRun, fit

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
HOLDFAST = [sys.executable, "-P", "-c", "from holdfast_command import main; main()", "train"]
CONFIG_FILE = """
[task]
name = "recall"
length = 12
vocabulary = 8

[model]
width = 16
depth = 2
state_size = 8
dropout = 0.1

[optimizer]
lr = 0.01

[run]
batch = 16
steps = 300
evaluate_every = 100
checkpoint_every = 10
threads = 1
"""
KILLS = 10


def weights(folder):
    """The bytes of the tensors: weights and optimizer."""
    body = json.loads((folder / "last.json").read_text())
    return (folder / body["tensors"]["file"]).read_bytes(), body["state"]["step"]


def test_after_ten_kills_at_random_moments_the_weights_are_those_of_an_uninterrupted_run(tmp_path):
    (tmp_path / "c.toml").write_text(CONFIG_FILE)
    rng, folder, steps = random.Random(0), tmp_path / "killed", [0]
    command = [*HOLDFAST, "c.toml", "--resume", "--folder"]
    for kill in range(KILLS):
        process = subprocess.Popen([*command, str(folder)], cwd=tmp_path, stderr=subprocess.DEVNULL)
        # a few in the first seconds, which are loading; the others at work or while saving, however long that takes to
        # begin on a busy machine
        while kill % 3 and process.poll() is None and _step(folder) == steps[-1]:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.3))
        process.kill()
        process.communicate()
        steps.append(_step(folder))
    assert steps == sorted(steps), "a checkpoint was lost"
    assert 0 < steps[-1] < 300, f"every kill met an unfinished run: {steps}"
    for name in (folder, tmp_path / "whole"):
        subprocess.run([*command, str(name)], cwd=tmp_path, check=True, capture_output=True)
    assert weights(folder) == weights(tmp_path / "whole")
    assert TrainingRun.load(folder).metrics == TrainingRun.load(tmp_path / "whole").metrics


def _step(folder):
    try:
        return weights(folder)[1]
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_reach_the_weights_of_one_also_when_continued(tmp_path, strategy):
    done = subprocess.run(
        [sys.executable, str(HERE / "two_processes.py"), str(tmp_path), strategy],
        capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    model, other = new_model(dropout=0.0), new_model(seed=9, dropout=0.0)
    alone = fit(model, new_task(), CONFIG, folder=tmp_path / "alone")
    run = TrainingRun.load(tmp_path / strategy)
    run.load_weights(other, "last")
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        # means over the same 8 examples in another order: units in the last place, through 14 steps of Adam
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert run.history.loss == pytest.approx(alone.history.loss, rel=1e-5)
    assert run.metrics["test"]["loss"] == pytest.approx(alone.metrics["test"]["loss"], rel=1e-4)


def test_a_sweep_in_processes_gives_each_run_of_its_own(tmp_path):
    text = CONFIG_FILE.replace("lr = 0.01", "lr = [0.01, 0.02]").replace("steps = 300", "steps = 20")
    (tmp_path / "sweep.toml").write_text(text)
    arguments = ["sweep.toml", "--folder", "swept", "--json", "--workers", "2"]
    done = subprocess.run([*HOLDFAST, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["runs"]
    for run, rate in zip(found, (0.01, 0.02), strict=True):
        single = [f"--set=optimizer.lr={rate}", "--folder", f"single-{rate}", "--json"]
        alone = subprocess.run([*HOLDFAST, "sweep.toml", *single], cwd=tmp_path, capture_output=True, text=True)
        assert json.loads(alone.stdout)["metrics"]["test"]["loss"] == run["test loss"], alone.stderr
