"""Whole runs in the frameworks, on data: Trainer on Shakespeare, Lightning on digits, LoRA on a trained Mamba."""

import math
import re

import pytest
import torch

from holdfast.data._download import data_root

pytestmark = pytest.mark.slow


def needs(package, file):
    pytest.importorskip(package)
    if not (data_root() / file).exists():
        pytest.skip(f"{file} is not in {data_root()}; set HOLDFAST_DATA")


def scalars(folder):
    """The steps and values of every series in TensorBoard's files under a folder."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    series = {}
    for file in folder.rglob("events.out.tfevents.*"):
        events = accumulator.EventAccumulator(str(file))
        events.Reload()
        series |= {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return series


LOGGED = {"margin", "time_constant", "gradient_over_weight", "reach", "memory", "step_size_median", "step_size_p99"}


@pytest.mark.filterwarnings("ignore")
def test_trainer_on_shakespeare_is_faster_logged_and_resumed_to_the_bit(printed, tmp_path):
    needs("accelerate", "shakespeare/input.txt")
    text = printed("trainer_shakespeare", "--steps", "60", "--report-to", "tensorboard")
    ratio = float(re.search(r"([\d.]+) times\n", text)[1])
    first, last = map(float, re.search(r"^loss ([\d.]+) -> ([\d.]+)", text, re.MULTILINE).groups())
    assert ratio > 3  # of processor time; 19 was measured
    assert last < first and last < 2.5  # the entropy of a single character is 3.3
    assert "largest difference of resumed and whole run: 0\n" in text
    series = scalars(tmp_path / "runs" / "shakespeare" / "whole")
    found = {tag: pairs for tag, pairs in series.items() if "holdfast/" in tag}
    assert {tag.rsplit("/", 1)[-1] for tag in found} >= LOGGED
    margins = next(pairs for tag, pairs in found.items() if tag.endswith("mixer.A_log/margin"))
    assert [step for step, _ in margins] == [*range(0, 60, 10)] and all(value > 0 for _, value in margins)


@pytest.mark.filterwarnings("ignore")
def test_lightning_stops_or_rolls_back_a_classifier_that_diverges(printed, tmp_path):
    needs("pytorch_lightning", "mnist")
    text = printed("lightning_rollback")
    lines = dict(re.findall(r"^ *(warn|stop|rollback): (.*)$", text, re.MULTILINE))
    loss = {name: float(re.search(r"last 40 ([\d.]+)", line)[1]) for name, line in lines.items()}
    steps = {name: int(re.match(r"\d+", line)[0]) for name, line in lines.items()}
    alarm, doubled = (int(re.search(rf"{what} at (\d+)", lines["warn"])[1]) for what in ("alarm", "doubled"))
    assert loss["warn"] > 0.95 * math.log(10) > 1 > loss["rollback"]  # left alone it ends at chance
    assert alarm < doubled and steps == {"warn": 400, "stop": alarm + 1, "rollback": 400}
    assert len(re.findall(r"\(\d+, \d+\)", lines["rollback"])) >= 1
    head = (tmp_path / "runs/lightning/rollback/csv/version_0/metrics.csv").read_text().splitlines()[0].split(",")
    assert {"holdfast/memory", "holdfast/core.weight_hh_l0/margin", "holdfast/gradient_norm"} <= {*head}


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_gets_what_lightning_logs(tmp_path):
    pytest.importorskip("tensorboard")
    lightning = pytest.importorskip("pytorch_lightning")
    from holdfast.integrations.lightning import HoldfastCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.core = torch.nn.LSTM(2, 4, batch_first=True)

        def forward(self, x):
            return self.core(x)[0]

        def training_step(self, x, index):
            return self(x).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    x = torch.randn(24, 12, 2)
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[HoldfastCallback(every=2, inputs=x[:4])], enable_progress_bar=False, accelerator="cpu",
        logger=lightning.loggers.TensorBoardLogger(tmp_path), enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(x, batch_size=4))
    series = scalars(tmp_path)
    assert [step for step, _ in series["holdfast/gradient_norm"]] == [0, 2, 4]
    assert {"holdfast/memory", "holdfast/core.weight_hh_l0/gradient_over_weight"} <= series.keys()


@pytest.mark.filterwarnings("ignore")
def test_adapters_learn_a_text_and_are_read_by_plain_transformers(printed):
    needs("peft", "shakespeare/input.txt")
    needs("peft", "movie-reviews")
    text = printed("lora_mamba", "--steps", "60")
    before = float(re.search(r"before: ([\d.]+)", text)[1])
    after = float(re.search(r"weights: ([\d.]+)", text)[1])
    assert after < before - 0.1
    differences = re.search(r"loaded ([\d.e+-]+), merged in plain transformers ([\d.e+-]+)", text).groups()
    assert all(float(d) < 1e-5 for d in differences)  # a mean of 2,000 float32 logarithms
