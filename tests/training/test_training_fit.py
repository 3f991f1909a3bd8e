"""One loop: what it computes, what it keeps, how it goes on, and how it ends."""

import json
import math

import numpy as np
import pytest
import torch
from small_training import new_model, new_task
from torch import nn

from holdfast import parameter_groups
from holdfast.data import ArrayTask
from holdfast.errors import ArgumentError, DamagedResultError
from holdfast.training import RunFolderError, TrainingConfig, TrainingRun, fit
from holdfast.training import _checkpoint as checkpoints
from holdfast.training._descent import Order, share


class Killed(BaseException):
    """Instead of kill -9: nothing of ours catches it."""


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_the_loop_is_the_bare_loop(task, tmp_path):
    model = new_model(dropout=0.0)
    fit(model, task, {"batch": 8, "steps": 5, "lr": 1e-2, "clip": 0.3, "warmup": 2}, folder=tmp_path / "run")
    bare, order = new_model(dropout=0.0), Order(48, 8, 0)
    optimizer = torch.optim.AdamW(parameter_groups(bare, lr=1e-2, weight_decay=0.01))
    for step in range(5):
        batch = task.batch("train", order.indices(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(bare(batch.inputs), batch.targets).backward()
        nn.utils.clip_grad_norm_(bare.parameters(), 0.3)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * share(step, 5, warmup=2, schedule="cosine", floor=0.0)
        optimizer.step()
    for name, value in bare.state_dict().items():
        # the mean is taken as a sum over a count, the norm in another order: a few units in the last place, times Adam's
        # quotients
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_a_run_learns_and_says_what_it_reached(task, config, tmp_path):
    model = new_model()
    run = fit(model, task, config | {"steps": 60, "batch": 16}, folder=tmp_path / "run")
    assert (run.status, run.step, run.steps) == ("finished", 60, 60)
    assert run.metrics["test"]["accuracy"] > 0.9  # the sign of a mean of 12 numbers that is 1 or -1 up to 0.29
    assert run.best["step"] in run.history.evaluated
    assert run.history.loss[-1] < run.history.loss[0]
    assert list(run.history.steps) == list(range(3, 61, 3))
    assert all(np.isfinite(a).all() for a in (run.history.loss, run.history.norm, run.history.metrics["accuracy"]))
    assert any(name.endswith("mixer.w/norm_ratio") for name in run.history.gradients)
    assert run.plot().get_xlabel() == "step"
    assert "finished at step 60" in run._repr_html_()
    for line in (tmp_path / "run/log.jsonl").read_text().splitlines():
        json.loads(line)


def test_saved_weights_are_those_of_the_run(task, config, tmp_path):
    model = new_model()
    run = fit(model, task, config, folder=tmp_path / "run")
    other = new_model(seed=1)
    TrainingRun.load(tmp_path / "run").load_weights(other, "last")
    assert all(torch.equal(a, b) for a, b in zip(weights(model).values(), weights(other).values(), strict=True))
    run.load_weights(other, "best")
    assert set(run.checkpoints) == {"last", "best"}
    assert all(path.exists() for path in run.checkpoints.values())


@pytest.mark.parametrize("moment", [0, 1, 5, 9])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(task, config, tmp_path, monkeypatch, moment):
    whole = new_model()
    finished = fit(whole, task, config, folder=tmp_path / "whole")
    real, calls = ArrayTask.batch, []

    def batch(self, split, indices):
        calls.append(split)
        if calls.count("train") == moment + 1:
            raise Killed
        return real(self, split, indices)

    with monkeypatch.context() as patch:
        patch.setattr(ArrayTask, "batch", batch)
        with pytest.raises(Killed):
            fit(new_model(), new_task(), config, folder=tmp_path / "cut", resume=True)
    again = new_model(seed=3)  # what a checkpoint does not hold must not matter, unless there is none
    run = fit(again if moment > 4 else new_model(), new_task(), config, folder=tmp_path / "cut", resume=True)
    done = weights(again) if moment > 4 else checkpoint_weights(run)
    assert all(torch.equal(value, done[name]) for name, value in weights(whole).items())
    for name in ("steps", "loss", "lr", "norm", "evaluated"):
        assert np.array_equal(getattr(run.history, name), getattr(finished.history, name)), name
    assert run.metrics == finished.metrics
    assert run.best == finished.best


def checkpoint_weights(run):
    body = checkpoints.read_body(run.folder, "last")
    tensors = checkpoints.read_tensors(run.folder, "last", body)
    return {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}


def test_a_checkpoint_is_old_or_new_whenever_the_writer_dies(task, config, tmp_path, monkeypatch):
    fit(new_model(), task, config | {"steps": 4}, folder=tmp_path / "run")
    before = checkpoints.read_body(tmp_path / "run", "last")
    for failing in (".safetensors", ".json"):
        real = checkpoints.write_atomically

        def write(path, content, failing=failing, real=real):
            if path.name.endswith(failing):
                raise Killed
            real(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "write_atomically", write)
            with pytest.raises(Killed):
                checkpoints.write(tmp_path / "run", "last", {"model.a": torch.ones(2)}, {"state": {}, "log": 0})
        body = checkpoints.read_body(tmp_path / "run", "last")
        assert body == before
        checkpoints.read_tensors(tmp_path / "run", "last", body)


def test_a_full_disk_is_told_and_the_run_goes_on_when_there_is_room(task, config, tmp_path, monkeypatch):
    whole = new_model()
    fit(whole, task, config, folder=tmp_path / "whole")
    real, written = checkpoints.write_atomically, []

    def write(path, content):
        written.append(path.name)
        if len(written) > 4:
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(checkpoints, "write_atomically", write)
    with pytest.raises(RunFolderError, match=r"No space left.*Free some space.*is kept"):
        fit(new_model(), task, config, folder=tmp_path / "run")
    monkeypatch.undo()
    model = new_model()
    fit(model, task, config, folder=tmp_path / "run", resume=True)
    assert all(torch.equal(a, b) for a, b in zip(weights(model).values(), weights(whole).values(), strict=True))


class Partly(nn.Module):
    """One weight is used, one frozen, one never used."""

    def __init__(self):
        super().__init__()
        self.used, self.unused, self.frozen = nn.Linear(1, 2), nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(False)

    def forward(self, x):
        return self.used(self.frozen(x).mean(1))


def test_weights_without_a_gradient_are_kept_and_resumed(task, config, tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = Partly()
    before = weights(model)
    fit(model, task, config, folder=tmp_path / "whole")
    assert all(torch.equal(before[n], value) for n, value in weights(model).items() if not n.startswith("used"))
    stop = iter([True] * 9 + [False])
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", lambda *a, real=checkpoints.write: real(*a) if next(stop) else kill())
        torch.manual_seed(0)
        begun = Partly()
        with pytest.raises(Killed):
            fit(begun, task, config | {"checkpoint_every": 1}, folder=tmp_path / "run")
    again = Partly()
    fit(again, task, config | {"checkpoint_every": 1}, folder=tmp_path / "run", resume=True)
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(model).items())


def kill():
    raise Killed


def test_a_finished_run_is_not_trained_again(task, config, tmp_path):
    fit(new_model(), task, config, folder=tmp_path / "run")
    log = (tmp_path / "run/log.jsonl").read_bytes()
    assert fit(new_model(), task, config, folder=tmp_path / "run", resume=True).status == "finished"
    assert (tmp_path / "run/log.jsonl").read_bytes() == log


class Explodes(nn.Module):
    """A linear model whose output grows with its own bias, until it is NaN."""

    def __init__(self, how):
        super().__init__()
        self.how, self.calls = how, 0
        self.linear = nn.Linear(1, 2)

    def forward(self, x):
        self.calls += 1
        y = self.linear(x.mean(1))
        if not self.training or self.calls < 4:
            return y
        return {"loss": y * math.inf, "gradient": y + torch.sqrt(0 * y), "growth": y * 1e6}[self.how]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("loss", "loss is not finite"),
        ("gradient", "gradient is not finite"),
        ("growth", "times that of the first step"),
    ],
)
def test_divergence_is_a_status_with_its_step_and_no_number_of_it_is_kept(task, config, tmp_path, how, reason):
    model = Explodes(how)
    run = fit(model, task, config | {"log_every": 1}, folder=tmp_path / "run")
    assert (run.status, run.step) == ("diverged", 3)
    assert reason in run.reason
    assert np.isfinite(run.history.loss).all()
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert run.metrics == {}
    assert "NaN" not in (tmp_path / "run/log.jsonl").read_text()
    assert "Infinity" not in (tmp_path / "run/log.jsonl").read_text()
    assert fit(Explodes(how), task, config | {"log_every": 1}, folder=tmp_path / "run", resume=True).step == 3


def test_training_stops_early_when_validation_no_longer_becomes_better(task, config, tmp_path):
    settings = config | {"lr": 0.0, "steps": 100, "evaluate_every": 1, "patience": 2, "weight_decay": 0.0}
    run = fit(new_model(), task, settings, folder=tmp_path / "run")
    assert (run.status, run.step, run.best["step"]) == ("stopped early", 3, 1)


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path):
    x, lengths = torch.randn(16, 6, 1), torch.tensor([1, 6] * 8)
    task = ArrayTask((x, x.cumsum(1), lengths))
    models = []
    for accumulate in (1, 4):
        torch.manual_seed(0)
        models.append(Running())
        settings = {"batch": 8, "steps": 3, "lr": 1e-2, "accumulate": accumulate}
        fit(models[-1], task, settings, folder=tmp_path / str(accumulate))
    # sums of 28 terms in another order
    torch.testing.assert_close(models[0].linear.weight, models[1].linear.weight, rtol=1e-5, atol=1e-7)


class Running(nn.Module):
    """A weighted running sum, which takes lengths."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x, *, lengths=None):
        return self.linear(x).cumsum(1)


def test_a_loss_of_the_users_own_is_minimised(task, tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 1))
    run = fit(
        model, task, {"batch": 8, "steps": 20, "lr": 0.1}, folder=tmp_path / "run",
        loss=lambda outputs, batch: (outputs[:, 0] - batch.targets).square().mean(),
    )  # fmt: skip
    assert run.history.loss[-1] < run.history.loss[0]
    assert set(run.metrics["test"]) == {"loss"}


def test_random_states_and_threads_are_left_as_they_were(task, tmp_path):
    model = new_model()
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), torch.get_num_threads()
    fit(model, task, {"batch": 8, "steps": 2, "threads": 2}, folder=tmp_path / "run")
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])
    assert torch.get_num_threads() == before[2]


def test_every_epoch_has_each_example_once_and_another_order():
    order = Order(10, 3, seed=1)
    first, second = (torch.cat([order.indices(3 * e + i) for i in range(3)]) for e in range(2))
    assert len(first.unique()) == 9
    assert not torch.equal(first, second)
    assert torch.equal(Order(10, 3, seed=1).indices(4), order.indices(4))
    assert not torch.equal(Order(10, 3, seed=2).indices(4), order.indices(4))
    assert Order(None, 3, 0).indices(2).tolist() == [6, 7, 8]


def test_rates_rise_and_fall_as_the_schedule_says():
    def at(step):
        return share(step, 10, warmup=2, schedule="cosine", floor=0.1)

    assert (at(0), at(1), at(2)) == (0.5, 1.0, 1.0)
    assert at(6) == pytest.approx(0.1 + 0.9 / 2)
    assert at(10) == pytest.approx(0.1)
    assert share(9, 10, warmup=0, schedule="constant", floor=0.0) == 1.0


def refused(error, match, *arguments, **options):
    with pytest.raises(error, match=match):
        fit(*arguments, **options)


def test_a_folder_of_something_else_is_refused_and_kept(task, config, tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    refused(ArgumentError, "expected an empty or new folder", new_model(), task, config, folder=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    run = tmp_path / "run"
    fit(new_model(), task, config | {"steps": 2}, folder=run)
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    same = config | {"steps": 2}
    refused(ArgumentError, "continue it with resume", new_model(), task, same, folder=run)
    refused(ArgumentError, "lr was 0.01, is 0.5", new_model(), task, same | {"lr": 0.5}, folder=run, resume=True)
    refused(ArgumentError, "data: sha256 was", new_model(), new_task(40), same, folder=run, resume=True)
    refused(ArgumentError, r"model: .* was", new_model(depth=2), task, same, folder=run, resume=True)
    assert {p.name: p.read_bytes() for p in run.iterdir()} == before


def test_a_folder_that_another_run_uses_is_refused(task, config, tmp_path):
    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(1, 2)

        def forward(self, x):
            refused(RunFolderError, "another run is using", new_model(), task, config, folder=tmp_path / "run")
            return self.linear(x.mean(1))

    fit(Second(), task, {"batch": 8, "steps": 1}, folder=tmp_path / "run")


@pytest.mark.parametrize("damage", ["tensors", "json", "other"])
def test_a_damaged_checkpoint_is_told_by_name(task, config, tmp_path, damage):
    run = fit(new_model(), task, config | {"steps": 2}, folder=tmp_path / "run")
    target = run.checkpoints["last"] if damage == "tensors" else tmp_path / "run/last.json"
    content = target.read_bytes()
    target.write_bytes(b"{}" if damage == "other" else content[: len(content) // 2])
    refused(
        DamagedResultError, f"{target.name} is damaged", new_model(), task, config | {"steps": 2},
        folder=tmp_path / "run", resume=True,
    )  # fmt: skip


def test_bad_settings_and_data_are_named(task, config, tmp_path):
    folder = tmp_path / "run"
    refused(ArgumentError, "Did you mean 'batch'", new_model(), task, {"bach": 8, "steps": 1}, folder=folder)
    refused(ArgumentError, "steps or epochs", new_model(), task, {"batch": 8}, folder=folder)
    refused(ArgumentError, "at least one batch", new_model(), task, {"batch": 64, "steps": 1}, folder=folder)
    refused(ArgumentError, "multiple of 3", new_model(), task, {"batch": 8, "steps": 1, "accumulate": 3}, folder=folder)
    refused(ArgumentError, r"outputs of shape \(8, 2\).*got \(8, 3\)", Wrong(3), task, config, folder=tmp_path / "a")
    refused(ArgumentError, "must return a tensor", Wrong(None), task, config, folder=tmp_path / "b")
    padded = ArrayTask((torch.randn(8, 4, 1), torch.zeros(8, dtype=torch.int64), [4] * 8), classes=2)
    refused(ArgumentError, "an argument `lengths`", Wrong(2), padded, config, folder=tmp_path / "c")
    with pytest.raises(ArgumentError, match="lr must be"):
        TrainingConfig(lr=-1.0, steps=1)


class Wrong(nn.Module):
    """As many outputs as asked for, or none."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs, self.linear = outputs, nn.Linear(1, outputs or 1)

    def forward(self, x):
        return {} if self.outputs is None else self.linear(x.mean(1))


class Odd(ArrayTask):
    """A task of the user's that gives what it should not."""

    def _batch(self, split, indices):
        batch = super()._batch(split, indices)
        return type(batch)(batch.inputs * self.factor, batch.targets + self.shift)


def test_nan_data_and_labels_out_of_range_are_no_divergence(task, config, tmp_path):
    odd = Odd((torch.randn(8, 4, 1), torch.tensor([0, 1] * 4)))
    odd.factor, odd.shift = math.nan, 0
    refused(
        ArgumentError,
        "inputs must be finite, got NaN or infinity in example 0 of the batch of step 0",
        Wrong(2),
        odd,
        config,
        folder=tmp_path / "a",
    )
    odd.factor, odd.shift = 1.0, 1
    refused(ArgumentError, "targets must be 0 to 1, got 1 to 2", Wrong(2), odd, config, folder=tmp_path / "b")


class Recorder:
    """The one method that Fabric asks of a logger."""

    def __init__(self):
        self.lines = []

    def log_metrics(self, metrics, step):
        self.lines.append((step, dict(metrics)))


def test_any_logger_of_fabric_gets_every_line_of_the_log(task, config, tmp_path):
    recorder = Recorder()
    run = fit(new_model(), task, config | {"steps": 6}, folder=tmp_path / "run", loggers=[recorder])
    losses = [metrics["train/loss"] for _, metrics in recorder.lines if "train/loss" in metrics]
    assert losses == list(run.history.loss)
    assert [step for step, metrics in recorder.lines if "evaluate/accuracy" in metrics] == list(run.history.evaluated)


class JumpsAt(nn.Module):
    """A classifier whose loss and gradient jump at one call in training."""

    def __init__(self, call):
        super().__init__()
        self.body, self.call, self.calls = new_model(dropout=0.0), call, 0

    def forward(self, x):
        self.calls += self.training
        y = self.body(x)
        y = y[0] if isinstance(y, tuple) else y
        return y * 1e4 if self.training and self.calls == self.call else y


def test_a_run_stops_before_the_step_of_an_acute_alarm(task, config, tmp_path):
    settings = config | {"steps": 40, "on_divergence": "stop", "lr": 1e-4}
    run = fit(JumpsAt(31), task, settings, folder=tmp_path / "run")
    assert (run.status, run.step) == ("diverged", 30)
    assert "times its recent median" in run.reason


def test_a_run_rolls_back_once_and_ends_at_half_the_rate(task, config, tmp_path):
    settings = config | {"steps": 40, "on_divergence": "rollback", "lr": 1e-4, "schedule": "constant", "log_every": 1}
    run = fit(JumpsAt(31), task, settings, folder=tmp_path / "run")
    assert (run.status, run.step) == ("finished", 40)
    assert any("back to the weights of step" in text for text in run.warnings)
    assert run.history.lr[-1] == pytest.approx(0.5e-4)


def test_acting_on_divergence_needs_the_monitor():
    with pytest.raises(ArgumentError, match="needs the monitor"):
        TrainingConfig(steps=1, on_divergence="stop", monitor_every=0)
