"""A unit that trains: killed, it goes on in its scratch folder, and the weights are those of a run that was not."""

import pytest
import torch

from holdfast.data import load_task
from holdfast.nn import DiagonalSSM
from holdfast_papers.experiments._training import trained
from holdfast_papers.experiments.base import Work

pytest.importorskip("lightning_fabric")

CONFIG = {"steps": 6, "batch": 4, "lr": 0.01, "checkpoint_every": 2, "evaluate_batches": 1}


class Killed(Exception):
    pass


def _model():
    torch.manual_seed(0)
    return DiagonalSSM(1, 4)


def _killer(done, text):
    if done >= 0.5:
        raise Killed


def test_a_killed_unit_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.training._loop.SECONDS_BETWEEN_REPORTS", 0.0)
    task = load_task("functional", length=16)
    whole = _model()
    run = trained(whole, task, CONFIG, Work())
    assert run.status == "finished" and run.step == 6
    part = _model()
    with pytest.raises(Killed):
        trained(part, task, CONFIG, Work(report=_killer, scratch=tmp_path))
    again = _model()
    told = []
    trained(again, task, CONFIG, Work(report=lambda done, text: told.append(done), scratch=tmp_path), part=(0.5, 1.0))
    assert told and min(told) >= 0.5 and max(told) <= 1.0
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
