"""recurrent_lr = "auto" in a run: resolved once, reported with its reason, and kept bit for bit when a run goes on."""

import json

import pytest
import torch
from small_training import new_model, new_task

import holdfast
from holdfast.data import ArrayTask
from holdfast.errors import ArgumentError
from holdfast.training import TrainingConfig, fit
from holdfast.training._descent import share
from holdfast.training._loop import Loop

STEPS = 12


class Killed(BaseException):
    """Instead of kill -9: nothing of ours catches it."""


@pytest.fixture
def auto(config):
    return {**config, "steps": STEPS, "warmup": 2, "recurrent_lr": "auto"}


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_run_takes_the_rate_of_its_own_schedule_and_of_the_length_of_its_task(auto, tmp_path):
    model, task = new_model(), new_task()
    shares = [share(k, STEPS, warmup=2, schedule="cosine", floor=0.0) for k in range(STEPS)]
    wanted = holdfast.recurrent_rate(model, steps=STEPS, memory=task.length, schedule=shares)
    run = fit(model, task, auto, folder=tmp_path / "run")
    about = json.loads((tmp_path / "run/run.json").read_text())
    rows = about.get("recurrent_rates") or about["body"]["recurrent_rates"]
    assert [row["rate"] for row in rows] == [part.rate for part in wanted.parts or (wanted,)]
    assert run.notes == tuple(f"recurrent_lr {row['rate']:.4g}: {row['reason']}" for row in rows)


def test_memory_in_the_config_is_what_is_asked_for(auto, tmp_path):
    run = fit(new_model(), new_task(), {**auto, "memory": 5000.0}, folder=tmp_path / "run")
    assert "5e+03" in run.notes[0]


def test_memory_by_the_data_is_the_delay_of_a_delayed_copy(auto, tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 60, 1, generator=generator)
    task = ArrayTask((x, x.roll(12, 1)), kind="regress")
    model = holdfast.nn.SequenceModel(1, 8, depth=1, state_size=4, layer="s4d", out_features=1)
    run = fit(model, task, {**auto, "memory": "data"}, folder=tmp_path / "run")
    assert "the data need the last 12 steps" in run.notes[0]
    noise = ArrayTask((x, torch.randn(64, 60, 1, generator=generator)), kind="regress")
    run = fit(model, noise, {**auto, "memory": "data"}, folder=tmp_path / "noise")
    assert "the length of the task, since its data do not tell" in run.notes[0]


def test_a_killed_run_continues_to_the_same_weights_with_the_rate_that_it_began_with(auto, tmp_path, monkeypatch):
    whole = new_model()
    fit(whole, new_task(), auto, folder=tmp_path / "whole")
    advance = Loop.advance

    def dies(self):
        if self.state.step == 7:
            raise Killed
        advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "advance", dies)
        with pytest.raises(Killed):
            fit(new_model(), new_task(), auto, folder=tmp_path / "cut")
    # other weights than it began with: a rate that was resolved again would be another
    other = new_model(seed=5)
    with torch.no_grad():
        for view in holdfast.recurrences(other):
            for weight in view.weights:
                for parameter in weight.free.values():
                    parameter.add_(0.5)
    run = fit(other, new_task(), auto, folder=tmp_path / "cut", resume=True)
    assert run.status == "finished"
    assert all(torch.equal(a, b) for a, b in zip(weights(whole).values(), weights(other).values(), strict=True))
    lines = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    notes = [[line for line in log if '"note"' in line] for log in lines]
    assert notes[0] == notes[1] != []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"recurrent_lr": 1e-3, "memory": 10.0}, "needs recurrent_lr = 'auto'"),
        ({"recurrent_lr": "auto", "memory": 0.5}, "or at least 1 step"),
        ({"recurrent_lr": "fast"}, "recurrent_lr"),
    ],
)
def test_mistakes_are_named(change, text):
    with pytest.raises(ArgumentError, match=text):
        TrainingConfig(steps=5, **change)


def test_a_model_without_a_recurrence_says_so(auto, tmp_path):
    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.read = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.read(x).mean(1)

    with pytest.raises(ArgumentError, match="a recurrence that holdfast recognizes"):
        fit(Mean(), new_task(), auto, folder=tmp_path / "run")
