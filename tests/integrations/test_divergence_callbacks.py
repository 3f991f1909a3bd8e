"""Real runs of transformers' and Lightning's Trainer with the callback of a divergence."""

import sys
import warnings

import pytest
import torch
from torch import nn

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

    model = Forecaster()
    given = TrainingArguments(
        str(folder), per_device_train_batch_size=4, num_train_epochs=1, learning_rate=1e-3, report_to=[], use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True, train_sampling_strategy="sequential",
    )  # fmt: skip
    trainer = Trainer(model, given, train_dataset=rows(30), callbacks=[callback])
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
    module = __import__(f"holdfast.integrations.{name}", fromlist=["DivergenceCallback"])
    return module.DivergenceCallback(*given, **choices)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_trainer_stops_before_the_step_that_diverges(name, tmp_path):
    callback = callback_of(name, "stop")
    _, step = RUNS[name](callback, tmp_path)
    # the jump is the batch of step 30; a Trainer may count the step that had no gradients
    assert callback.guard.stopped.startswith("step 30: ") and step in (30, 31)
    assert callback.guard.monitor.alarms[0].cause in ("loss", "gradient")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_trainer_rolls_back_and_goes_on_at_half_the_rate(name, tmp_path):
    callback = callback_of(name, "rollback", snapshot_every=8)
    model, step = RUNS[name](callback, tmp_path)
    guard = callback.guard
    assert guard.rollbacks == [(30, 24)] and not guard.stopped and guard.rate_scale == 0.5 and step == 40
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize("name", RUNS)
def test_an_adapter_without_its_package_says_how_to_get_it(name, monkeypatch):
    for package in ("lightning", "lightning.pytorch", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"holdfast.integrations.{name}", raising=False)
    with pytest.raises(BackendError, match="get it by: pip install"):
        __import__(f"holdfast.integrations.{name}")
