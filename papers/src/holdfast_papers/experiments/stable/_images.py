"""Images read pixel by pixel, smaller than they are where a preset says so, and classified under each parameterization."""

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
from holdfast.data._archive import find_files
from holdfast.data._base import SPLITS, Split
from holdfast.data._cifar10 import ARCHIVE, TEST, TRAIN
from holdfast.data._download import set_folder
from holdfast.data._mnist import FILES
from holdfast.figures import Figure
from holdfast.nn import DiagonalSSM, SequenceClassifier
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
    "download": True, "train": 0, "valid": 5000, "test": 0, "pool": 1, "shares": [0.1, 0.3, 1.0, 3.0], "seeds": 3,
    "width": 64, "depth": 2, "states": 64, "lr": 0.01, "weight_decay": 0.01, "batch": 128, "warmup": 20, "slowest": 1e-3,
    "fastest": 0.5,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "download": False, "train": 4000, "valid": 200, "test": 500, "pool": 4, "steps": 30, "shares": [1.0], "seeds": 1,
    "warmup": 5,
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What is known of a set of images.

    Args:
        name: as in `load_task`.
        title: as people write it.
        side: pixels of a row.
        paper: the paper's test accuracies by parameterization.
        published: others' in words.
    """

    name: str
    title: str
    side: int
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
        presets=presets({**PAPER, **paper}, standard={"pool": 2, **standard}, quick=QUICK),
        units=partial(units, facts=facts),
        run=run,
        conclude=partial(conclude, facts=facts),
        cost=cost,
    )


def units(config: Config, facts: Facts) -> list[Config]:
    """One run for each parameterization, recurrent rate and seed; and direct from the authors' start."""
    names = ("train", "valid", "test", "pool", "width", "depth", "states", "lr", "weight_decay", "batch", "warmup")
    shared = {name: config[name] for name in (*names, "steps", "slowest", "fastest")}
    shared["images"] = source(facts.name, download=config["download"])
    axes = {"share": config["shares"], "seed": range(config["seeds"])}
    authors = {"start": "authors", "parameterization": "direct", "share": 1.0}
    return [
        *split({**shared, "start": "same"}, parameterization=compare.PARAMETERIZATIONS, **axes),
        *split({**shared, **authors}, seed=range(config["seeds"])),
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
    return compare.one_run(_model(config, task), task, compare.settings_of(config), work)


def _task(config: Config) -> tuple[AbstractTask, str]:
    """The images as the preset wants them, and in words what they are a part of."""
    if config["images"] == "digits":
        return _digits(config), "scikit-learn's 1,797 digits of 8 x 8 pixels"
    whole = load_task(config["images"], scale="standard", valid=config["valid"])
    train, valid, test = (_part(whole, name, config[name], config["pool"]) for name in SPLITS)
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
            "neither the images nor scikit-learn, whose digits stand in for them, are on this machine: pip install "
            "scikit-learn, or run with --preset standard, which downloads the images"
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
        *(_order(column, shown, facts) for column, shown in both.items()),
        _fails("direct", "from the stable eigenvalues of the others", both["same rate"]["direct"], facts),
        _fails("direct, authors' start", f"from the authors' start, every eigenvalue at +{GROWING:g}", authors, facts),
    ]
    figures = [
        Figure(
            "accuracy",
            "Test accuracy by the learning rate of the recurrent weights. Points are runs, lines their means; a run that "
            "diverged has accuracy 0.",
            [compare.accuracy_panel(facts.title, trials)],
            columns=1,
        ),
        compare.curves(
            "curves",
            "The first seed, all weights at one learning rate: loss, and gradient over weight, by step.",
            both["same rate"],
        ),
    ]
    return Conclusion(claims, figures, [_table(trials, authors, facts)], _notes(config, units, facts))


def _order(column: str, shown: Shown, facts: Facts) -> Claim:
    runs = {name: compare.accuracy(shown[name]) for name in ORDERED}
    numbers = {f"test accuracy, {name}": float(values.mean()) for name, values in runs.items()}
    leads = {}
    for k, better in enumerate(ORDERED):
        for worse in ORDERED[k + 1 :]:
            gap, error = difference(runs[better], runs[worse])
            leads[f"{better} less {worse}"] = gap
            numbers |= {f"{better} less {worse}": gap, f"{better} less {worse}, standard error": error}
    reversed_ = [pair for pair, gap in leads.items() if gap < -2 * numbers[f"{pair}, standard error"]]
    enough = min(map(len, runs.values())) >= compare.SEEDS
    return Claim.decide(
        "order" if column == "same rate" else "order, each at its best rate",
        "In test accuracy best is not below exp, and exp not below softplus, by more than 2 standard errors, "
        + ("all weights at one learning rate" if column == "same rate" else "each at its best recurrent rate"),
        not reversed_ if enough else None,
        numbers,
        paper={f"test accuracy, {name}": value for name, value in facts.paper.items() if name in ORDERED},
        otherwise=(f"Reversed: {', '.join(reversed_)}. " if enough else f"Fewer than {compare.SEEDS} seeds were run. ")
        + compare.said(shown),
    )


def difference(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The difference of two means, and its standard error from the spread over the seeds of each."""
    (mean_a, error_a), (mean_b, error_b) = compare.mean_and_error(a), compare.mean_and_error(b)
    return mean_a - mean_b, float(np.hypot(error_a, error_b))


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
    size: list[Any] = [
        f"Here: {side} x {side} pixels, {side * side} steps"
        + ("" if stand_in or config["pool"] == 1 else f" (each the mean of {config['pool']} x {config['pool']})"),
        f"{config['steps']} optimizer steps of {config['batch']} images, {examples:,} in all (the paper: 10 epochs of "
        f"{'60,000' if facts.name == 'mnist' else '50,000'})",
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
