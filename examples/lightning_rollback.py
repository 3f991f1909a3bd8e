"""
Lightning: a classifier that diverges, stopped and rolled back
==============================================================

You learn: how the Lightning callback stops a diverging run, or rolls it back.
Run time: about 16 s of CPU time, one thread. The model is an LSTM that reads digits by rows.
"""

import argparse
import math
import warnings
from pathlib import Path
from statistics import mean

import pytorch_lightning as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.data import load_task
from holdfast.integrations.lightning import HoldfastCallback


class Classifier(lightning.LightningModule):
    """An LSTM, and SGD with a warm-up."""

    def __init__(self, lr: float, warm_up: int = 200):
        super().__init__()
        torch.manual_seed(0)
        self.lr, self.warm_up, self.losses = lr, warm_up, []
        self.core, self.read = nn.LSTM(28, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, rows):
        return self.read(self.core(rows)[0][:, -1])

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / self.warm_up))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plan, "interval": "step"}}


def train(digits: TensorDataset, choices, on_divergence: str) -> tuple[Classifier, HoldfastCallback]:
    model, folder = Classifier(choices.lr), Path("runs/lightning", on_divergence)
    holdfast.accelerate(model)
    callback = HoldfastCallback(on_divergence, snapshot_every=20, inputs=digits.tensors[0][:8], folder=folder)
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[callback], default_root_dir=folder, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, logger=lightning.loggers.CSVLogger(folder, "csv"),
    )  # fmt: skip
    trainer.fit(model, DataLoader(digits, batch_size=64))
    return model, callback


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=10.0)
    choices = parser.parse_args()
    warnings.simplefilter("ignore")
    batch = load_task("mnist").batch("train", torch.arange(64 * 400))
    digits = TensorDataset(batch.inputs.reshape(-1, 28, 28), batch.targets)
    for on_divergence in ("warn", "stop", "rollback"):
        model, callback = train(digits, choices, on_divergence)
        alarm = callback.watch.monitor.alarms[0].step if callback.watch.monitor.alarms else None
        doubled = next((k for k, v in enumerate(model.losses) if v > 2 * min(model.losses[:k], default=math.inf)), None)
        print(
            f"{on_divergence:>8}: {len(model.losses)} steps, loss of the last 40 {mean(model.losses[-40:]):.2f}, "
            f"first alarm at {alarm}, loss doubled at {doubled}, rollbacks {callback.watch.guard.rollbacks}"
        )


if __name__ == "__main__":
    main()
