"""A continued run is the run that was begun: same model, same data, same log, same bits."""

import json
import shutil

import pytest
import torch
from small_training import new_model, new_task
from torch import nn

from holdfast.data import ArrayTask
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.nn import SequenceClassifier
from holdfast.training import RunFolderError, TrainingRun, fit
from holdfast.training import _checkpoint as checkpoints


class Killed(BaseException):
    """Instead of kill -9: nothing of ours catches it."""


@pytest.fixture
def killed_at(monkeypatch):
    """Trains until the batch of a step is asked for, and dies."""

    def run(step, make, config, folder):
        real, calls = ArrayTask.batch, []

        def batch(self, split, indices):
            calls.append(split)
            if calls.count("train") == step + 1:
                raise Killed
            return real(self, split, indices)

        with monkeypatch.context() as patch:
            patch.setattr(ArrayTask, "batch", batch)
            with pytest.raises(Killed):
                fit(make(), new_task(), config, folder=folder, resume=True)

    return run


class Settings(nn.Module):
    """A model whose settings leave no trace in its weights."""

    def __init__(self, slope=0.1, mode="mean", kind=nn.Tanh):
        super().__init__()
        self.slope, self.mode, self.kernel = slope, mode, (1, 2)
        self.layer, self.bend, self.drop = nn.Linear(1, 2), kind(), nn.Dropout(slope)

    def forward(self, x):
        y = self.drop(self.bend(self.layer(x)))
        return y.mean(1) if self.mode == "mean" else y.sum(1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"slope": 0.2}, r"slope was 0.1, is 0.2.*drop\.p was 0.1, is 0.2"),
        ({"mode": "sum"}, 'mode was "mean", is "sum"'),
        ({"kind": nn.ReLU}, 'bend was "Tanh", is "ReLU"'),
    ],
)
def test_another_model_with_the_same_weights_is_refused_by_what_differs(killed_at, config, tmp_path, change, named):
    killed_at(6, Settings, config, tmp_path / "run")
    with pytest.raises(ArgumentError, match=named):
        fit(Settings(**change), new_task(), config, folder=tmp_path / "run", resume=True)
    assert fit(Settings(), new_task(), config, folder=tmp_path / "run", resume=True).status == "finished"


def test_dropout_of_our_own_models_is_part_of_the_run(killed_at, config, tmp_path):
    killed_at(6, new_model, config, tmp_path / "run")
    with pytest.raises(ArgumentError, match=r"model: .*\.p was 0\.1, is 0\.3"):
        fit(new_model(dropout=0.3), new_task(), config, folder=tmp_path / "run", resume=True)


def test_a_model_that_was_trained_in_part_continues_its_own_run(killed_at, config, tmp_path):
    model = new_model()
    killed_at(6, lambda: model, config, tmp_path / "run")
    assert fit(model, new_task(), config, folder=tmp_path / "run", resume=True).status == "finished"


class Centred(nn.Module):
    """Running means in every kind of buffer; outputs depend on each."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 2)
        self.register_buffer("kept", torch.zeros(1))
        self.register_buffer("passing", torch.zeros(1), persistent=False)
        self.register_buffer("late", None)
        self.register_buffer("late_passing", None, persistent=False)
        self.register_buffer("growing", torch.zeros(0), persistent=False)

    def forward(self, x):
        if self.training:
            mean = x.mean((0, 1))
            for name in ("kept", "passing", "late", "late_passing"):
                before = getattr(self, name)
                setattr(self, name, mean if before is None else 0.9 * before + 0.1 * mean)
            self.growing = torch.cat([self.growing, mean])
        shift = self.kept + self.passing + self.late + self.late_passing + self.growing.mean()
        return self.layer(x - shift).mean(1)


def seeded(kind):
    torch.manual_seed(0)
    return kind()


@pytest.mark.parametrize("moment", [4, 6, 13])
def test_buffers_of_every_kind_are_continued_to_the_same_bits(killed_at, config, tmp_path, moment):
    whole, again = seeded(Centred), seeded(Centred)
    finished = fit(whole, new_task(), config, folder=tmp_path / "whole")
    killed_at(moment, lambda: seeded(Centred), config, tmp_path / "cut")
    run = fit(again, new_task(), config, folder=tmp_path / "cut", resume=True)
    for (name, value), (_, other) in zip(whole.named_buffers(), again.named_buffers(), strict=True):
        assert torch.equal(value, other), name
    assert (run.metrics, run.best) == (finished.metrics, finished.best)


def test_best_weights_are_measured_with_their_own_buffers(config, tmp_path):
    model = seeded(Centred)
    run = fit(model, new_task(), config, folder=tmp_path / "run")
    loaded = seeded(Centred)
    run.load_weights(loaded, "last")
    for (name, value), (_, other) in zip(model.named_buffers(), loaded.named_buffers(), strict=True):
        assert torch.equal(value, other), name


def test_a_shared_buffer_stays_shared(config, tmp_path):
    tensors = {"model.layer.weight": torch.ones(2, 1), "model.layer.bias": torch.ones(2)}

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.other, buffer = nn.Linear(1, 2), nn.Identity(), torch.zeros(2)
            self.register_buffer("a", buffer, persistent=False)
            self.other.register_buffer("b", buffer, persistent=False)

    model = Shared()
    checkpoints.put_weights(model, tensors | {"buffer.a": torch.ones(2), "buffer.other.b": torch.ones(2)})
    assert model.a is model.other.b
    assert model.a.sum() == 2


def _truncate(log, other):
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))


def _swap(log, other):
    log.write_bytes(other.read_bytes() + b"\n" * 1000)


def _remove(log, other):
    log.unlink()


def _folder(log, other):
    log.unlink()
    log.mkdir()


@pytest.mark.parametrize("change", [_truncate, _swap, _remove, _folder])
def test_a_log_that_does_not_fit_its_checkpoint_is_named(killed_at, config, tmp_path, change):
    fit(new_model(seed=5), new_task(), config, folder=tmp_path / "other")
    killed_at(9, new_model, config, tmp_path / "run")
    change(tmp_path / "run/log.jsonl", tmp_path / "other/log.jsonl")
    shutil.copytree(tmp_path / "run", tmp_path / "before")
    with pytest.raises(DamagedResultError, match=r"log\.jsonl is damaged.*Put back the log"):
        fit(new_model(), new_task(), config, folder=tmp_path / "run", resume=True)
    for file in (tmp_path / "before").glob("*.*"):
        if file.is_file():
            assert (tmp_path / "run" / file.name).read_bytes() == file.read_bytes(), "nothing may be lost by the try"
    with pytest.raises(DamagedResultError, match=r"log\.jsonl"):
        TrainingRun.load(tmp_path / "run")


def test_a_log_that_is_a_folder_is_named_before_the_first_checkpoint(killed_at, config, tmp_path):
    killed_at(1, new_model, config, tmp_path / "run")
    _folder(tmp_path / "run/log.jsonl", None)
    with pytest.raises(DamagedResultError, match=r"log\.jsonl.*is a folder"):
        fit(new_model(), new_task(), config, folder=tmp_path / "run", resume=True)


@pytest.mark.parametrize(("writes", "kept"), [(0, None), (2, 4)])
def test_a_full_disk_names_the_checkpoint_that_is_there(config, tmp_path, monkeypatch, writes, kept):
    real, written = checkpoints.write_atomically, []

    def write(path, content):
        written.append(path.name)
        if len(written) > writes:
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(checkpoints, "write_atomically", write)
    with pytest.raises(RunFolderError) as caught:
        fit(new_model(), new_task(), config, folder=tmp_path / "run")
    assert ("checkpoint" in str(caught.value)) == (kept is not None)
    assert kept is None or f"The checkpoint of step {kept} is kept" in str(caught.value)


def monitor_lines(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] in ("gradients", "warning")]


@pytest.mark.parametrize("layer", ["s4d", "linear", "rnn"])
def test_the_monitor_writes_the_same_lines_after_a_kill(killed_at, config, tmp_path, layer):
    def make():
        torch.manual_seed(0)
        return SequenceClassifier(1, 2, 8, depth=1, layer=layer, dropout=0.0)

    # a rate so large that warnings are given before and after the kill
    config |= {"monitor_every": 1, "lr": 0.3, "steps": 40, "checkpoint_every": 7}
    fit(make(), new_task(), config, folder=tmp_path / "whole")
    killed_at(30, make, config, tmp_path / "cut")
    fit(make(), new_task(), config, folder=tmp_path / "cut", resume=True)
    assert monitor_lines(tmp_path / "cut") == monitor_lines(tmp_path / "whole")
