"""TrainingWatch in a plain loop, its folder, and the page that `holdfast watch` makes of it."""

import json
import warnings

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import holdfast
from holdfast.cli.app import app
from holdfast.errors import ArgumentError
from holdfast.integrations import TrainingWatch, regroup
from holdfast.nn import S4D
from holdfast.stability.monitor.vitals import time_constant_of
from holdfast.training import TrainingConfig, fit
from holdfast.training._log import LOG, continued_log, read_log
from holdfast.training._view import read_view


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.read = S4D(2, 4), nn.Linear(2, 1)

    def forward(self, x):
        return self.read(self.layer(x)[0])


def train(folder, steps, first=0, jump=None, **choices):
    """A few optimizer steps; at `jump` the targets are large."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(4, 12, 2)
    told = {}
    with warnings.catch_warnings(), TrainingWatch(
        model, optimizer, folder=folder, steps=steps, log=lambda v, k: told.update({k: v}), **choices
    ) as watch:  # fmt: skip
        warnings.simplefilter("ignore")
        for step in range(first, steps):
            loss = (model(x) - (1e6 if step == jump else 1.0)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if watch.check(loss, step=step):
                optimizer.step()
            if watch.stopped:
                break
    return watch, told


def test_a_loop_logs_margins_time_constants_reach_and_gradients(tmp_path):
    watch, told = train(tmp_path / "run", 30, every=10)
    assert [*told] == [0, 10, 20]
    (view,) = holdfast.recurrences(watch.guard.model)
    margin = told[20]["holdfast/layer.w/margin"]
    assert told[20]["holdfast/layer.w/time_constant"] == pytest.approx(time_constant_of(margin), rel=1e-12)
    # reach is computed at one record in ten, and is no shorter than what there is
    assert told[0]["holdfast/layer/reach"] >= told[0]["holdfast/layer.w/time_constant"] * (1 - 1e-6)
    assert "holdfast/layer/reach" not in told[10] and told[10]["holdfast/layer.w/gradient_over_weight"] > 0
    assert view.path == "layer"
    run = read_view(tmp_path / "run")
    assert run.status == "finished" and run.step == 20 and run.steps == 30 and not run.alarms
    assert [figure.panels[0].title for figure in run.figures()] == [
        "Loss", "Margin", "Time constants", "Gradient over weight",
    ]  # fmt: skip


def test_memory_on_data_is_logged_and_shown(tmp_path):
    torch.manual_seed(0)
    model, x, told = nn.LSTM(2, 4, batch_first=True), torch.randn(4, 40, 2), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with TrainingWatch(
        model, optimizer, every=1, inputs=x, folder=tmp_path / "run", log=lambda v, k: told.update({k: v})
    ) as watch:
        for step in range(11):
            loss = model(x)[0].square().mean()
            optimizer.zero_grad()
            loss.backward()
            assert watch.check(loss)
            if step == 0:  # before the weights move
                measured = holdfast.memory.memory_on_data(model, x, places=8).steps
            optimizer.step()
    kept = {step: values["holdfast/memory"] for step, values in told.items() if "holdfast/memory" in values}
    assert [*kept] == [0, 10] and kept[0] == measured  # one record in ten
    run = read_view(tmp_path / "run")
    assert [*run.memory[1]] == [*kept.values()] and "Memory" in run.page()


def test_a_divergence_stops_the_loop_and_the_page_says_why(tmp_path):
    watch, _ = train(tmp_path / "run", 60, jump=40, on_divergence="stop", every=5)
    assert watch.stopped.startswith("step 40: ") and watch.guard.monitor.alarms[0].step == 40
    run = read_view(tmp_path / "run")
    assert run.status == "diverged" and run.reason == watch.stopped and run.alarms[0][0] == 40
    told = CliRunner().invoke(app, ["watch", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
    assert told.exit_code == 0 and "ALARM" in told.stdout and "diverged" in told.stdout
    page = (tmp_path / "page.html").read_text()
    # a run that has ended is not loaded again, and nothing is fetched from elsewhere
    assert 'http-equiv="refresh"' not in page and "alarm at 40" in page and "src=" not in page


def test_a_rollback_goes_on_and_is_told(tmp_path):
    watch, _ = train(tmp_path / "run", 60, jump=40, on_divergence="rollback", snapshot_every=20)
    assert watch.guard.rollbacks == [(40, 20)] and not watch.stopped
    assert any("the weights of step 20" in text for _, text in read_view(tmp_path / "run").alarms)


def test_a_running_run_is_loaded_again_by_the_browser(tmp_path):
    train(tmp_path / "run", 20)
    lines = (tmp_path / "run" / LOG).read_text().splitlines()
    (tmp_path / "run" / LOG).write_text("\n".join(lines[:-1]) + '\n{"event": "tr')  # no end yet, and half a line
    run = read_view(tmp_path / "run")
    assert run.status == "running" and 'http-equiv="refresh" content="2"' in run.page(2)
    told = CliRunner().invoke(app, ["watch", str(tmp_path / "run"), "--once"])
    assert told.exit_code == 0 and (tmp_path / "run" / "watch.html").exists()


def test_a_resumed_loop_continues_its_log(tmp_path):
    train(tmp_path / "run", 30, every=5)
    train(tmp_path / "run", 40, first=20, every=5)
    steps = [entry["step"] for entry in read_log(tmp_path / "run" / LOG) if entry["event"] == "train"]
    assert steps == [0, 5, 10, 15, 20, 25, 30, 35]
    kept = continued_log(tmp_path / "run" / LOG, 10)
    kept.close()
    assert max(e["step"] for e in read_log(tmp_path / "run" / LOG)) < 10


def test_the_page_shows_a_run_of_fit(tmp_path):
    from holdfast.data import load_task

    task = load_task("recall", length=8, vocabulary=6)
    model = holdfast.nn.LanguageModel(task.inputs.size, 8, depth=1, state_size=4)
    fit(model, task, TrainingConfig(steps=12, batch=4, log_every=2, monitor_every=2), folder=tmp_path / "run")
    run = read_view(tmp_path / "run")
    assert run.status == "finished" and run.steps == 12 and run.reach
    assert "Time constants" in run.page()


def test_tensorboard_gets_what_the_monitor_sees(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from holdfast.data import load_task

    task = load_task("recall", length=8, vocabulary=6)
    model = holdfast.nn.LanguageModel(task.inputs.size, 8, depth=1, state_size=4)
    config = TrainingConfig(steps=4, batch=4, monitor_every=2, tensorboard=True)
    fit(model, task, config, folder=tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert any(tag.startswith("gradients/") and tag.endswith("/margin") for tag in events.Tags()["scalars"])


def test_a_folder_without_a_run_is_an_error_that_says_what_was_expected(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ArgumentError, match="expected"):
            read_view(folder)


def test_groups_of_an_optimizer_become_those_of_memory():
    model = Model()
    foreign = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([*model.parameters(), foreign], lr=1e-2, weight_decay=0.1)
    model.read.bias.requires_grad_(True)
    regroup(optimizer, model, recurrent_lr="auto", steps=100, memory=50_000)
    names = {group.get("name"): group for group in optimizer.param_groups}
    expected = holdfast.recurrent_rate(model, steps=100, memory=50_000).rate
    assert names["recurrent"]["lr"] == expected and names["recurrent"]["weight_decay"] == 0
    assert names["decayed"]["lr"] == 1e-2 and names["decayed"]["weight_decay"] == 0.1
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(map(id, [*model.parameters(), foreign]))  # each once
    model(torch.randn(2, 5, 2)).square().mean().backward()
    optimizer.step()
    with pytest.raises(ArgumentError, match="must not have taken a step"):
        regroup(optimizer, model, recurrent_lr=1e-3)


@pytest.mark.parametrize(("margin", "expected"), [(0.5, 1.4427), (1e-6, 1e6 - 0.5), (0.0, float("inf")), (1.5, 0.0)])
def test_a_time_constant_follows_from_the_margin(margin, expected):
    assert time_constant_of(margin) == pytest.approx(expected, rel=1e-4)


def test_the_log_is_plain_json(tmp_path):
    train(tmp_path / "run", 11)
    events = [json.loads(line)["event"] for line in (tmp_path / "run" / LOG).read_text().splitlines()]
    assert events[0] == "begin" and events[-1] == "end" and {"train", "gradients", "reach"} <= set(events)
