"""Checkpoints of stabilized models in training runs of other frameworks, resumed in a new process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

RUNS = Path(__file__).with_name("framework_runs.py")
pytestmark = pytest.mark.slow


def run(name, folder, *rest, **environment):
    command = [sys.executable, str(RUNS), name, str(folder), "20", *map(str, rest)]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | environment
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(*processes):
    for process in processes:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output[-4000:]


# the same numbers in another order of saving: a plain weight goes through the right inverse, which rounds
@pytest.mark.parametrize(
    ("name", "package", "checkpoint", "tolerance"),
    [
        ("trainer", "accelerate", "checkpoint-10", 1e-4),
        ("accelerate", "accelerate", "state", 0.0),
        ("lightning", "pytorch_lightning", "at-step=10.ckpt", 0.0),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, name, package, checkpoint, tolerance):
    pytest.importorskip(package)
    finished(run(name, tmp_path))
    finished(run(name, tmp_path, tmp_path / checkpoint))
    whole, resumed = (json.loads((tmp_path / f"{run}.json").read_text()) for run in ("whole", "resumed"))
    last = sorted(whole, key=int)[-10:]
    assert set(last) <= set(resumed)
    assert [resumed[step] for step in last] == pytest.approx([whole[step] for step in last], rel=tolerance, abs=1e-12)
    ends = [torch.load(tmp_path / f"{run}.pt", weights_only=True) for run in ("whole", "resumed")]
    assert ends[0].keys() == ends[1].keys()
    for path, value in ends[0].items():
        torch.testing.assert_close(ends[1][path], value, rtol=tolerance, atol=10 * tolerance, msg=path)


def test_the_best_model_is_loaded_at_the_end(tmp_path):
    pytest.importorskip("accelerate")
    finished(run("best", tmp_path))
    best = Path((tmp_path / "best.txt").read_text())
    assert best.name != "checkpoint-20", "the last model is the best one: nothing had to be loaded"
    saved = load_file(best / "model.safetensors")
    decays = [path for path in saved if path.endswith("A_log")]
    loaded = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert len(decays) == 2
    for path in decays:
        torch.testing.assert_close(loaded[path], saved[path], rtol=1e-5, atol=1e-5)


def test_checkpoints_of_several_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    finished(*(run("sharded", tmp_path, RANK=str(rank), **place) for rank in range(2)))
