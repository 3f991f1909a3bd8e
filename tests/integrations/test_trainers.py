"""Real runs of transformers' and Lightning's Trainer: alarms, logs, rates by law, a resumed run."""

import sys
import warnings

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import BackendError


class Forecaster(nn.Module):
    """An RNN whose gradient jumps at one batch, which holds large targets."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.core, self.read = nn.RNN(1, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x, labels):
        return {"loss": nn.functional.mse_loss(self.read(self.core(x)[0]), labels)}


def rows(jump):
    generator = torch.Generator().manual_seed(0)
    # every batch is nearly the same, so that noise is no reason for an alarm
    x = torch.randn(4, 10, 1, generator=generator).repeat(40, 1, 1)
    x = x + 0.01 * torch.randn(160, 10, 1, generator=generator)
    y = x.cumsum(1) / 10
    y[jump * 4 : jump * 4 + 4] *= 1e4
    return [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]


def run_transformers(callback, folder):
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    class InOrder(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(rows(30))

    model = Forecaster()
    given = TrainingArguments(
        str(folder), per_device_train_batch_size=4, max_steps=40, learning_rate=1e-3, report_to=[], use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model, given, train_dataset=InOrder(), callbacks=[callback])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    return model, trainer.state.global_step


def run_lightning(callback, folder):
    from pytorch_lightning import LightningModule, Trainer
    from torch.utils.data import DataLoader

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Forecaster()

        def training_step(self, batch, index):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module = Module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_epochs=1, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, accelerator="cpu", default_root_dir=folder, gradient_clip_val=1.0,
        )  # fmt: skip
        trainer.fit(module, DataLoader(rows(30), batch_size=4))
    return module, trainer.global_step


RUNS = {"transformers": run_transformers, "lightning": run_lightning}


def callback_of(name, *given, **choices):
    pytest.importorskip({"lightning": "pytorch_lightning"}.get(name, name))
    module = __import__(f"holdfast.integrations.{name}", fromlist=["HoldfastCallback"])
    return module.HoldfastCallback(*given, **choices)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_trainer_stops_before_the_step_that_diverges(name, tmp_path):
    callback = callback_of(name, "stop")
    _, step = RUNS[name](callback, tmp_path)
    # the jump is the batch of step 30; a Trainer may count the step that had no gradients
    assert callback.watch.guard.stopped.startswith("step 30: ") and step in (30, 31)
    assert callback.watch.guard.monitor.alarms[0].cause in ("loss", "gradient")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_trainer_rolls_back_and_goes_on_at_half_the_rate(name, tmp_path):
    callback = callback_of(name, "rollback", snapshot_every=8)
    model, step = RUNS[name](callback, tmp_path)
    guard = callback.watch.guard
    assert guard.rollbacks == [(30, 24)] and not guard.stopped and guard.rate_scale == 0.5 and step == 40
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


def accelerated():
    """Whether this version of transformers has mixers that `accelerate` knows; the Trainer is adapted to older ones too."""
    import transformers

    return tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 15)


def mamba_trainer(folder, steps):
    """A small Mamba of transformers on random tokens; the schedule is that of 12 steps whenever it is stopped."""
    pytest.importorskip("accelerate")
    from transformers import MambaConfig, MambaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    torch.manual_seed(0)
    model = MambaForCausalLM(
        MambaConfig(vocab_size=12, hidden_size=8, state_size=4, num_hidden_layers=1, use_cache=False)
    )
    if accelerated():
        holdfast.accelerate(model)
    tokens = torch.randint(0, 12, (64, 10), generator=torch.Generator().manual_seed(1))
    given = TrainingArguments(
        str(folder), per_device_train_batch_size=4, max_steps=12, learning_rate=1e-2, weight_decay=0.1, report_to=[],
        use_cpu=True, save_strategy="steps", save_steps=6, logging_steps=4, disable_tqdm=True, lr_scheduler_type="cosine",
    )  # fmt: skip

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            control.should_training_stop = state.global_step >= steps

    return Trainer(model, given, train_dataset=[{"input_ids": t, "labels": t} for t in tokens], callbacks=[Stop()])


@pytest.mark.slow
def test_a_resumed_trainer_with_rates_by_law_equals_the_uninterrupted_run(tmp_path):
    pytest.importorskip("transformers")
    from holdfast.integrations.transformers import attach

    trainers = {}
    for name, steps in (("whole", 12), ("part", 6), ("rest", 12)):
        trainer = mamba_trainer(tmp_path / ("whole" if name == "whole" else "cut"), steps)
        attach(trainer, recurrent_lr="auto", memory=500, every=2, folder=tmp_path / f"log-{name}")
        trainer.train(resume_from_checkpoint=name == "rest")
        trainers[name] = trainer
    whole, rest = trainers["whole"], trainers["rest"]
    assert [g["lr"] for g in whole.optimizer.param_groups] == [g["lr"] for g in rest.optimizer.param_groups]
    assert len({g["initial_lr"] for g in whole.optimizer.param_groups}) > 1  # a rate of their own
    for (name, a), b in zip(whole.model.named_parameters(), rest.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    logged = {key for line in whole.state.log_history for key in line if key.startswith("holdfast/")}
    ends = {"margin", "time_constant", "gradient_over_weight", "reach"}
    ends |= {"step_size_p99", "step_size_median"} if accelerated() else set()
    assert ends <= {key.rsplit("/", 1)[-1] for key in logged}


@pytest.mark.slow
def test_lightning_logs_and_sets_rates_by_law(tmp_path):
    pytest.importorskip("pytorch_lightning")
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.loggers import CSVLogger
    from torch.utils.data import DataLoader

    from holdfast.integrations.lightning import HoldfastCallback

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Forecaster()

        def training_step(self, batch, index):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    callback = HoldfastCallback(recurrent_lr="auto", memory=30, every=5, folder=tmp_path / "watch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_epochs=1, callbacks=[callback], logger=CSVLogger(str(tmp_path), name="", version=""), log_every_n_steps=1,
            enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        )  # fmt: skip
        trainer.fit(Module(), DataLoader(rows(10**6), batch_size=4))
    assert len({group["lr"] for group in trainer.optimizers[0].param_groups}) > 1
    head = (tmp_path / "metrics.csv").read_text().splitlines()[0]
    assert "holdfast/model.core.weight_hh_l0/margin" in head and "time_constant" in head
    assert callback.state_dict()["windows"]["loss"]


@pytest.mark.parametrize("name", RUNS)
def test_an_adapter_without_its_package_says_how_to_get_it(name, monkeypatch):
    for package in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"holdfast.integrations.{name}", raising=False)
    with pytest.raises(BackendError, match="is not installed: pip install"):
        __import__(f"holdfast.integrations.{name}")
