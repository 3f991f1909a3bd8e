"""Language models with one parameterization each, trained on text: one family of runs for five figures and tables.

Hyena-type blocks around a real diagonal recurrence h+ = lam h + U x, y = C h in discrete time, lam = f(w). All models of a
seed start from the same eigenvalues, the same other weights and the same order of the data.
"""

from __future__ import annotations

import math
import pydoc_data.topics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.data import load_task
from holdfast.data._base import AbstractTask
from holdfast.data._download import set_folder
from holdfast.data._text import SHAKESPEARE
from holdfast.nn import AbstractRecurrent, HyenaBlock, LanguageModel
from holdfast.parameterizations import get
from holdfast.stability import recurrent_rate
from holdfast.training import TrainingRun
from holdfast_papers.experiments._runs import POINTS, Spectrum, record
from holdfast_papers.experiments._training import trained
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split

FAMILY = "stable-language"
NONE: Config = {}
VERSION = 2
# by the name in tables: f, and its constants
PARAMETERIZATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "best, b = 0.5": ("best", {"b": 0.5}),
    "best, b = 1": ("best", {"b": 1.0}),
    "exp": ("exp", {}),
    "softplus": ("softplus", {}),
    "tanh": ("tanh", {}),
    "relu": ("relu", {}),
    "direct": ("direct", {}),
    "clip": ("clip", {}),
}
COMPARED = ("best, b = 0.5", "best, b = 1", "exp", "softplus", "direct")  # below the paper's sizes
RULE = "rule"  # instead of a share: the recurrent rate of holdfast.recurrent_rate, for a memory of one window
SIZES = (
    "width", "depth", "state", "expansion", "length", "batch", "steps", "warmup", "weight_decay", "evaluated", "slowest",
    "fastest",
)  # fmt: skip
PAPER: dict[str, Any] = {
    "data": ["wikitext-103"], "download": True, "vocabulary": 50257, "rate": 0.005, "share": 0.8, "seeds": 3, "width": 768,
    "depth": 12, "state": 128, "expansion": 4, "length": 1024, "batch": 16, "steps": 115_200, "warmup": 1000,
    "weight_decay": 0.25, "evaluated": 0, "slowest": 0.001, "fastest": 0.5, "parameterizations": [*PARAMETERIZATIONS],
}  # fmt: skip
# all rates start where memory has still to be learned, and 3 million tokens make it move
STANDARD: dict[str, Any] = {
    "data": ["shakespeare"], "vocabulary": 2000, "width": 128, "depth": 4, "state": 32, "expansion": 2, "length": 256,
    "batch": 8, "steps": 1500, "warmup": 15, "evaluated": 27, "slowest": 0.05, "fastest": 0.5,
    "parameterizations": [*COMPARED],
}  # fmt: skip
QUICK: dict[str, Any] = {
    **STANDARD, "download": False, "seeds": 1, "width": 16, "depth": 1, "state": 16, "length": 64, "batch": 4, "steps": 200,
    "warmup": 2, "evaluated": 8,
}  # fmt: skip
EVERY_STEP = 1000  # up to this many steps each is recorded, and a point of a curve stands for some of them
NOTHING = (np.empty(0), np.empty(0))
SPREAD = ("minimum", "quantile_0.05", "quantile_0.5", "quantile_0.95", "maximum")


def experiment(
    id: str, where: str, title: str, summary: str, units: Callable[[Config], Sequence[Config]],
    conclude: Callable[[Config, Sequence[Unit]], Conclusion], *, paper: Config = NONE, standard: Config = NONE,
    quick: Config = NONE,
) -> Experiment:  # fmt: skip
    """A figure or table of the family: its runs, and what it alone reads off them.

    Args:
        id: paper and name.
        where: the place in the paper.
        title: a line.
        summary: what is computed.
        units: which of the family's runs it reads.
        conclude: its claims and figures.
        paper: settings of its own, beside the family's, at that preset.
        standard: the same.
        quick: the same.
    """
    made = presets({**PAPER, **paper}, standard={**STANDARD, **standard}, quick={**QUICK, **quick})
    return Experiment(id, where, title, summary, made, run, conclude, units, cost, VERSION, family=FAMILY)


def runs_at(config: Config, data: Iterable[str], rates: Iterable[float], shares: Iterable[float | str]) -> list[Config]:
    """One unit for each data set, parameterization, learning rate, share of it for recurrent weights (or RULE), and seed."""
    sizes = {name: config[name] for name in SIZES}
    units = []
    for name in data:
        which = _source(name, config["download"])
        words = {"vocabulary": config["vocabulary"]} if which.startswith("wikitext") else {}
        axes = {
            "parameterization": config["parameterizations"],
            "lr": rates,
            "share": shares,
            "seed": range(config["seeds"]),
        }
        units += split({"data": which, **words, **sizes}, **axes)
    return units


def _source(name: str, download: bool) -> str:
    """Python's manual instead of Shakespeare only where that is missing and the preset need not download it."""
    there = (set_folder("shakespeare") / SHAKESPEARE.name).is_file()
    return name if name != "shakespeare" or download or there else "manual"


def load(config: Config) -> AbstractTask:
    """The text of a unit, cut into windows."""
    if config["data"] == "shakespeare":
        return load_task("text", length=config["length"])
    if config["data"] == "manual":
        return load_task("text", file=pydoc_data.topics.__file__, length=config["length"])
    return load_task(config["data"], length=config["length"], vocabulary=config["vocabulary"])


def build(config: Config, vocabulary: int) -> LanguageModel:
    """The model of a unit; eigenvalues exp(-rate) with geometric rates."""
    rates = torch.from_numpy(np.geomspace(config["slowest"], config["fastest"], config["state"]))
    name, constants = PARAMETERIZATIONS[config["parameterization"]]
    return LanguageModel(
        vocabulary, config["width"], depth=config["depth"], state_size=config["state"], expansion=config["expansion"],
        layer="diagonal", time="discrete", activation="identity", bias=False,
        parameterization=get(name, time="discrete", **constants), eigenvalues=torch.exp(-rates),
    )  # fmt: skip


def run(config: Config, work: Work) -> Arrays:
    """Trains one model and keeps its curves, its losses, and what its recurrent weights did.

    "rate" is the learning rate of the recurrent weights, "unit.rate" the one at which a step changes the slowest rate of the
    start by its own size.
    """
    task = load(config)
    model = build(config, task.inputs.size)
    start, weights = Spectrum.of(model), _weights(model)
    rule = recurrent_rate(model, steps=config["steps"], memory=float(config["length"]))
    rate = rule.rate if config["share"] == RULE else config["share"] * config["lr"]
    done = trained(model, task, _settings(config, rate), work)
    kept = record(done, start, Spectrum.of(model), work)
    work.log(data=task.describe())
    rates = {"rate": np.array(rate), "unit.rate": np.array(rule.high)}
    return {**kept, **_losses(done), "start": _spread(done, start.weights), **_modes(model, weights), **rates}


def _settings(config: Config, rate: float) -> dict[str, Any]:
    every = 1 if config["steps"] <= EVERY_STEP else math.ceil(config["steps"] / POINTS)
    return {
        "lr": config["lr"], "recurrent_lr": rate, "weight_decay": config["weight_decay"],
        "warmup": config["warmup"], "steps": config["steps"], "batch": config["batch"], "seed": config["seed"],
        "clip": None, "log_every": every, "monitor_every": every, "checkpoint_every": 100,
        "evaluate_every": config["steps"], "evaluate_batches": config["evaluated"] or None,
    }  # fmt: skip


def _mixers(model: LanguageModel) -> list[AbstractRecurrent]:
    return [block.mixer for block in model.blocks if isinstance(block, HyenaBlock)]


@torch.no_grad()
def _weights(model: LanguageModel) -> Tensor:
    """Free weights of all blocks, (blocks, modes); a copy."""
    return torch.stack([mixer.get_parameter("w") for mixer in _mixers(model)]).clone()


def _losses(done: TrainingRun) -> dict[str, np.ndarray]:
    """The first training loss, and the mean over the last tenth; +inf for a run that diverged."""
    loss = done.history.loss
    last = loss[-max(1, len(loss) // 10) :].mean() if done.status == "finished" else math.inf
    return {"train.first": np.array(loss[0] if len(loss) else math.inf), "train.loss": np.array(last)}


def _spread(done: TrainingRun, weights: Sequence[str]) -> np.ndarray:
    """The spread of |gradient| / |weight| at the first step, (blocks, SPREAD); +inf where the log has none."""
    found = [[done.history.gradients.get(f"{name}/{key}", NOTHING) for key in SPREAD] for name in weights]
    first = [[float(v[0]) if len(at) and at[0] == 0 else math.inf for at, v in block] for block in found]
    return np.array(first, dtype=np.float32)


@torch.no_grad()
def _modes(model: LanguageModel, weights: Tensor) -> dict[str, np.ndarray]:
    """The eigenvalues at the end, and the share of weights that changed sign."""
    lam = torch.stack([mixer.eigenvalues() for mixer in _mixers(model)])
    crossed = (weights * _weights(model) < 0).double().mean()
    return {"crossed": np.array(float(crossed)), "eigenvalues": lam.float().numpy()}


def cost(config: Config) -> float:
    """Seconds of one core, from weights and tokens."""
    width, vocabulary = config["width"], config.get("vocabulary", 100)
    block = width * ((4 + 2 * config["expansion"]) * width + 2 * config["state"])
    tokens = config["steps"] * config["batch"] * config["length"]
    return 1.0 + 0.003 * config["steps"] + 1.1e-10 * tokens * (vocabulary * width + config["depth"] * block)
