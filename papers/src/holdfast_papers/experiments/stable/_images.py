"""Images read pixel by pixel, smaller than they are where a preset says so, and classified under each parameterization.

The criteria, two claims at each recurrent rate: best, exp and softplus are equal within a margin of points (the 95% intervals
of the paired differences lie inside it), and direct, started from the same stable eigenvalues, is below each of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from holdfast.data import AbstractTask, ArrayTask, MissingDataError, load_task
from holdfast.data._base import SPLITS, Split
from holdfast.data._cifar10 import ARCHIVE, TEST, TRAIN
from holdfast.data._download import set_folder
from holdfast.data._files import find_files
from holdfast.data._mnist import FILES
from holdfast.figures import Figure
from holdfast.nn import DiagonalSSM, SequenceClassifier
from holdfast_papers.experiments._paired import equal, smaller
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.stable import _comparison as compare
from holdfast_papers.pages import Note, Table
from holdfast_papers.results import Claim

CLASSES = 10
GROWING = 0.5  # where the authors' code starts every direct eigenvalue, in continuous time: all modes grow
CHANCE_ACCURACY = 0.15  # an accuracy at or below this has learned nothing, of ten classes
Shown = Mapping[str, Sequence[Unit]]
ORDERED = ("best", "exp", "softplus")
PAPER: dict[str, Any] = {
    "download": True, "train": 0, "valid": 5000, "test": 0, "pool": 1, "grey": False, "shares": [1.0, compare.RULE],
    "seeds": 3, "width": 64, "depth": 2, "states": 64, "lr": 0.01, "weight_decay": 0.01, "batch": 128, "warmup": 20,
    "slowest": 1e-3, "fastest": 0.5,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "download": False, "train": 4000, "valid": 200, "test": 500, "pool": 4, "steps": 30, "single_steps": 10, "seeds": 1,
    "warmup": 5,
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What is known of a set of images.

    Args:
        name: as in `load_task`.
        title: as people write it.
        side: pixels of a row.
        margin: points of accuracy within which the stable parameterizations are equal.
        paper: the paper's test accuracies by parameterization.
        published: others' in words.
    """

    name: str
    title: str
    side: int
    margin: float
    paper: Mapping[str, float]
    published: str


def experiment(id: str, where: str, facts: Facts, *, summary: str, paper: Config, standard: Config) -> Experiment:
    """A table of one set of images.

    Args:
        id: paper and name.
        where: the place in the paper.
        facts: about the images.
        summary: what is read; how it is trained follows.
        paper: settings that differ from set to set at the paper's sizes.
        standard: what the standard preset changes.
    """
    return Experiment(
        id=id,
        where=where,
        title=f"Sequential {facts.title} by parameterization",
        summary=f"{summary} read pixel by pixel and classified, the recurrent weights under five parameterizations from "
        "the same eigenvalues, and direct from the authors' start as well.",
        presets=presets({**PAPER, **paper}, standard={"depth": 4, **standard}, quick=QUICK),
        units=partial(units, facts=facts),
        run=run,
        conclude=partial(conclude, facts=facts),
        cost=cost,
        version=2,
    )


def units(config: Config, facts: Facts) -> list[Config]:
    """One run for each parameterization, recurrent rate and seed; and direct from the authors' start."""
    names = (
        "train",
        "valid",
        "test",
        "pool",
        "grey",
        "width",
        "depth",
        "states",
        "lr",
        "weight_decay",
        "batch",
        "warmup",
    )
    shared = {name: config[name] for name in (*names, "slowest", "fastest")}
    shared["images"] = source(facts.name, download=config["download"])
    seeds, single = range(config["seeds"]), {"share": 1.0, "steps": config["single_steps"]}
    steps = {1.0: config["single_steps"], compare.RULE: config["steps"]}
    return [
        *(
            unit
            for share in config["shares"]
            for unit in split(
                {**shared, "start": "same", "share": share, "steps": steps[share]},
                parameterization=compare.PARAMETERIZATIONS,
                seed=seeds,
            )
        ),
        *split({**shared, **single, "start": "authors", "parameterization": "direct"}, seed=seeds),
    ]


def source(name: str, *, download: bool) -> str:
    """The set that units read: scikit-learn's digits where `name` is missing and need not be downloaded.

    It is part of a unit's config, so that units run with the stand-in run again once the set is there.

    Args:
        name: "mnist" or "cifar10".
        download: whether the preset may download it.
    """
    if download:
        return name
    folder = set_folder(name)
    if name == "mnist":
        files = [file for split in FILES.values() for file in split]
        return name if all((folder / file.name).is_file() for file in files) else "digits"
    try:
        place = find_files(folder, (*TRAIN, TEST), ARCHIVE, download=False, part=True)
    except MissingDataError:
        return "digits"
    return name if (place / TEST).is_file() and any((place / train).is_file() for train in TRAIN) else "digits"


def run(config: Config, work: Work) -> Arrays:
    """One training run."""
    task, about = _task(config)
    work.log(data=about)
    memory = float(task.length) if config["share"] == compare.RULE else None
    return compare.one_run(_model(config, task), task, compare.settings_of(config), work, memory)


def _task(config: Config) -> tuple[AbstractTask, str]:
    """The images as the preset asks, and in words what they are a part of."""
    if config["images"] == "digits":
        return _digits(config), "scikit-learn's 1,797 digits of 8 x 8 pixels"
    whole = load_task(config["images"], scale="standard", valid=config["valid"])
    train, valid, test = (_part(whole, name, config[name], config["pool"]) for name in SPLITS)
    if config["grey"]:
        train, valid, test = ((x.mean(-1, keepdim=True), y) for x, y in (train, valid, test))
    return ArrayTask(train, valid, test, classes=CLASSES, name=config["images"]), whole.describe()


def _part(whole: AbstractTask, name: Split, count: int, pool: int) -> tuple[Tensor, Tensor]:
    """The first `count` images of a split, each pixel the mean of `pool` x `pool`."""
    size = whole.size(name) or 0
    found = whole.batch(name, torch.arange(min(count or size, size)))
    side = round(whole.length**0.5)
    pictures = found.inputs.mT.unflatten(-1, (side, side))
    return functional.avg_pool2d(pictures, pool).flatten(2).mT.contiguous(), found.targets


def _digits(config: Config) -> AbstractTask:
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDataError(
            "this preset needs the images, or scikit-learn for its digits instead of them, and neither is on this machine: "
            "pip install scikit-learn, or run with --preset standard, which downloads the images"
        ) from error
    digits = load_digits()
    x = (torch.from_numpy(np.asarray(digits.images)).float() / 16 - 0.305) / 0.376  # their mean and deviation
    y = torch.from_numpy(np.asarray(digits.target)).long()
    x = x.flatten(1).unsqueeze(-1)
    cuts = [slice(0, 1200), slice(1200, 1400), slice(1400, None)]
    train, valid, test = ((x[cut], y[cut]) for cut in cuts)
    return ArrayTask(train, valid, test, classes=CLASSES, name="digits")


def _model(config: Config, task: AbstractTask) -> SequenceClassifier:
    lam = compare.falling(config["slowest"], config["fastest"], config["states"])

    def mixer(width: int) -> DiagonalSSM:
        made = DiagonalSSM(
            width,
            len(lam),
            parameterization=config["parameterization"],
            activation="identity",
            bias=False,
            eigenvalues=lam,
        )
        compare.level_(made)
        if config["start"] == "authors":
            made.set_eigenvalues_(torch.full_like(lam, GROWING))
        return made

    return SequenceClassifier(task.inputs.size, CLASSES, config["width"], depth=config["depth"], layer=mixer)


def conclude(config: Config, units: Sequence[Unit], facts: Facts) -> Conclusion:
    """The order of best, exp and softplus; what direct does from stable eigenvalues, and from the authors'."""
    trials = compare.trials([u for u in units if u.config["start"] == "same"])
    authors = sorted((u for u in units if u.config["start"] == "authors"), key=lambda u: u.config["seed"])
    both = compare.columns(trials)
    claims = [
        *(claim for share, shown in both.items() for claim in _order(share, shown, facts)),
        _fails("direct, authors' start", f"from the authors' start, every eigenvalue at +{GROWING:g}", authors, facts),
    ]
    figures = [
        Figure(
            "accuracy",
            "Test accuracy by the learning rate of the recurrent weights. Points are runs; one that diverged has accuracy 0.",
            [compare.accuracy_panel(facts.title, trials)],
            columns=1,
        ),
        compare.curves(
            "curves",
            "The first seed at the rule's rates: loss, and gradient over weight, by step.",
            both[compare.RULE] if compare.RULE in both else both[1.0],
        ),
    ]
    return Conclusion(claims, figures, [_table(trials, authors, facts)], _notes(config, units, facts))


def _order(share: compare.Share, shown: Shown, facts: Facts) -> list[Claim]:
    arms = compare.arms(shown)
    alike = equal({name: arms[name] for name in ORDERED}, facts.margin)
    lower = smaller(arms, "direct", ORDERED)
    means = {f"test accuracy, {name}": float(np.mean(values)) / 100 for name, values in arms.items()}
    paper = {f"test accuracy, {name}": value for name, value in facts.paper.items()}
    last = "" if share == compare.RULE else ", one rate"
    return [
        Claim.decide(
            f"equal{last}",
            f"Best, exp and softplus are equal within {facts.margin:g} points of test accuracy, {compare.COLUMNS[share]}",
            alike.holds, alike.numbers | means, paper=paper, otherwise=alike.why + compare.said(shown),
        ),
        Claim.decide(
            f"direct{last}",
            "Direct, from the same stable eigenvalues, has a lower test accuracy than best, exp and softplus, "
            f"{compare.COLUMNS[share]}",
            lower.holds, lower.numbers | means, paper=paper, otherwise=lower.why + compare.said(shown),
        ),
    ]  # fmt: skip


def _fails(name: str, start: str, units: Sequence[Unit], facts: Facts) -> Claim:
    values = compare.accuracy(units)
    low = int((values <= CHANCE_ACCURACY).sum())
    enough = len(values) >= compare.SEEDS
    diverged = sum(int(u.arrays["diverged"]) for u in units)
    return Claim.decide(
        name,
        f"Direct recurrent weights learn nothing {start}: accuracy at most {CHANCE_ACCURACY:.0%} in 2 of 3 seeds, diverged "
        "or not",
        low >= 2 if enough else None,
        {"mean test accuracy": float(values.mean()), "runs at or below 15%": low, "runs that diverged": diverged},
        paper={"mean test accuracy": facts.paper["direct"]},
        otherwise=("" if enough else f"Fewer than {compare.SEEDS} seeds were run. ") + compare.said({"direct": units}),
    )


def _table(trials: compare.Trials, authors: Sequence[Unit], facts: Facts) -> Table:
    more = [compare.row(f"direct, from +{GROWING:g}", authors, facts.paper["direct"])]
    caption = (
        "Mean test accuracy with its standard error over the seeds, the paper's beside it; what the recurrences did, medians. "
        "The last row starts as the authors' code did."
    )
    return compare.table("accuracy", caption, trials, facts.paper, more)


def _notes(config: Config, units: Sequence[Unit], facts: Facts) -> list[str | Note]:
    about = sorted({str(entry["data"]) for u in units for entry in u.log if "data" in entry})
    stand_in = any(u.config["images"] == "digits" for u in units)
    side = 8 if stand_in else facts.side // config["pool"]
    examples = config["steps"] * config["batch"]
    grey = ", the mean of the three colours" if config["grey"] else ""
    size: list[Any] = [
        f"Here: {side} x {side} pixels{grey}, {side * side} steps"
        + ("" if stand_in or config["pool"] == 1 else f" (each the mean of {config['pool']} x {config['pool']})"),
        f"{config['steps']} optimizer steps of {config['batch']} images at the rule's rates, {examples:,} in all, and "
        f"{config['single_steps']} at one rate (the paper: 10 epochs of {'60,000' if facts.name == 'mnist' else '50,000'})",
    ]
    missing = Note("other data", f"{facts.title} was not on this machine and this preset does not download.")
    return [
        Note("data", f"{'; '.join(about)}. {'. '.join(size)}."),
        *([missing] if stand_in else []),
        f"Accuracies elsewhere, at full size: the paper {facts.paper['best']:.2%} (best), {facts.published}. A short run on "
        "small images is below them whatever the parameterization; what is compared is parameterizations with each other.",
        f"{config['depth']} gated blocks of width {config['width']}, {config['states']} real modes each in continuous time, "
        f"mean over time, AdamW, learning rate {config['lr']:g}, cosine. Depth, states and learning rate are not in the paper. "
        f"Rates start geometric from {config['slowest']:g} to {config['fastest']:g} per pixel, input weights so that white "
        "noise gives every mode the same variance.",
        f"The authors' code starts direct weights at +{GROWING:g}, where every mode grows by e^{GROWING:g} at each step, and "
        "merges train and test images; here direct starts from the eigenvalues of the others, and the official test images "
        "are kept apart. The second row for direct starts as theirs did.",
    ]


def cost(config: Config) -> float:
    """Seconds of a unit; from the authors' start the first loss is not finite."""
    if config["images"] == "digits":
        return 0.05 * config["steps"]
    if config["start"] == "authors":
        return 2.0
    pixels = (784 if config["images"] == "mnist" else 1024) / config["pool"] ** 2
    step = pixels * config["batch"] * config["depth"] * 2.8e-6
    tests = (config["valid"] + config["test"]) / config["batch"]
    return 2 + step * config["steps"] + 0.35 * step * tests
