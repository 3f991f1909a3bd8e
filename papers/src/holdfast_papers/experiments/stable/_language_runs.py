"""What is read off the runs of the language models: rankings by seed, how steady a loss is, and a table of every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.figures import Axis, Line, Panel
from holdfast_papers.experiments._paired import Decision
from holdfast_papers.experiments._paired import smaller as paired_smaller
from holdfast_papers.experiments._runs import failed, kept, speed
from holdfast_papers.experiments.base import Unit
from holdfast_papers.experiments.stable._language import PARAMETERIZATIONS
from holdfast_papers.pages import Note, Table

BESTS = ("best, b = 0.5", "best, b = 1")
STABLE = (*BESTS, "exp", "softplus", "tanh")
MOVED = 0.2  # share of the modes that has to move in every parameterization: frozen recurrences compare nothing
COLOURS = {name: k for k, name in enumerate(PARAMETERIZATIONS)}
WINDOW = 10  # points of the logged loss that a smoothed one is the mean of
SEEDS = 3  # fewer decide nothing
HEADS = ("data", "parameterization", "learning rate", "recurrent rate", "seed")
TEXTS = {
    "shakespeare": "Shakespeare by character",
    "manual": "Python's manual by character",
    "wikitext-2": "WikiText-2 by word",
    "wikitext-103": "WikiText-103 by word",
}
OTHER_TEXTS = Note(
    "other data",
    "The paper's text is WikiText-103, which takes a machine of another size: other texts stand in for it.",
)


@dataclass(frozen=True)
class Run:
    """One training run.

    Args:
        unit: its unit.
    """

    unit: Unit

    def __getitem__(self, key: str) -> float:
        return kept(self.unit.arrays, key)

    @property
    def finished(self) -> bool:
        """Whether it did not diverge."""
        return not failed(self.unit.arrays)

    @property
    def largest_ratio(self) -> float:
        """Largest |gradient| / |weight| of a recurrent weight over the whole training; +inf for a run that diverged."""
        return self["ratio.max"] if self.finished else math.inf

    @property
    def upward(self) -> float:
        """Sum of the upward moves of the smoothed training loss, in nats; +inf for a run that diverged."""
        loss = self.unit.arrays["loss"].astype(np.float64)
        if not self.finished:
            return math.inf
        window = max(1, min(WINDOW, len(loss) // 2))
        smooth = np.convolve(loss, np.full(window, 1 / window), "valid")
        return float(np.diff(smooth).clip(min=0).sum())


Runs = Mapping[str, Sequence[Run]]  # by parameterization, in the order of the seeds


def texts(units: Sequence[Unit]) -> list[str]:
    """The data sets, in the order of the units."""
    return list(dict.fromkeys(unit.config["data"] for unit in units))


def pick(units: Sequence[Unit], data: str, lr: float, share: float | str) -> Runs:
    """The runs on one data set at one pair of learning rates, by the parameterizations that were run."""
    wanted = [u for u in units if (u.config["data"], u.config["lr"], u.config["share"]) == (data, lr, share)]
    wanted.sort(key=lambda unit: unit.config["seed"])
    found = {name: [Run(u) for u in wanted if u.config["parameterization"] == name] for name in PARAMETERIZATIONS}
    return {name: runs for name, runs in found.items() if runs}


def rivals(runs: Runs) -> list[str]:
    """The parameterizations that best is compared with."""
    return [name for name in runs if name not in BESTS]


def stable(runs: Runs) -> list[str]:
    """The stable parameterizations that were run."""
    return [name for name in STABLE if name in runs]


def smallest(
    runs: Runs, name: str, others: Sequence[str], value: Callable[[Run], float], *, factor: bool = False
) -> Decision:
    """Whether `name` has the smallest value, by paired differences over the seeds.

    Args:
        runs: by parameterization.
        name: the one that has to be smallest.
        others: those that it is compared with.
        value: of a run.
        factor: whether ratios are compared.
    """
    arms = {arm: [value(run) for run in found] for arm, found in runs.items()}
    return paired_smaller(arms, name, [other for other in others if other != name], factor=factor)


def frozen(runs: Runs) -> str:
    """Why the runs compare nothing, in words: the parameterizations whose modes hardly moved; empty where all moved."""
    still = {name: median(found, lambda run: run["moved"]) for name, found in runs.items()}
    listed = "; ".join(f"{share:.0%} with {name}" for name, share in still.items() if share < MOVED)
    return f"Fewer than {MOVED:.0%} of the modes moved by a tenth, too few to compare: {listed}." if listed else ""


def median(runs: Sequence[Run], value: Callable[[Run], float]) -> float:
    """The median over seeds; +inf where most of them are."""
    return float(np.median([value(run) for run in runs]))


def medians(runs: Runs, what: str, value: Callable[[Run], float]) -> dict[str, float]:
    """The numbers of a claim: the median over seeds of each parameterization."""
    return {f"{what}, {name}": median(found, value) for name, found in runs.items()}


def account(runs: Runs, names: Sequence[str]) -> str:
    """In words, what the recurrent weights of these parameterizations did: medians over seeds."""
    parts = []
    for name in names:
        found = runs[name]
        first, last = (median(found, lambda run, k=k: run[k]) for k in ("margin.start", "margin.end"))  # type: ignore[misc]
        ended = sum(not run.finished for run in found)
        parts.append(
            f"{name}: slowest mode {first:.2g} from the boundary at the start and {last:.2g} at the end, "
            f"{median(found, lambda run: run['moved']):.0%} of the modes moved"
            + _growth(last, found[0].unit.config["length"])
            + (f", {ended} of {len(found)} runs diverged" if ended else "")
        )
    return f"{'; '.join(parts)}. The table of modes has all of them." if parts else ""


def _growth(distance: float, length: int) -> str:
    """What a mode past the boundary does within one window; the norm after it takes the size out again."""
    if distance >= 0:
        return ""
    digits = min(length * math.log10(1 - distance), 300.0)  # a float64 ends at 1e308
    return f", a mode that grows {10**digits:.2g}-fold over {length} steps"


def few(seeds: int) -> str:
    """Why a claim is undecided, where there are too few seeds."""
    return f"{seeds} of {SEEDS} seeds were run; the standard preset has them. " if seeds < SEEDS else ""


def loss_panel(title: str, runs: Runs, legend: bool = True) -> Panel:
    """Training loss by step, the median over seeds; +inf from where most seeds have diverged."""
    lines = []
    for name, found in runs.items():
        curves = [run.unit.arrays for run in found]
        steps = max((arrays["steps"] for arrays in curves), key=len)
        table = np.full((len(curves), len(steps)), np.inf)
        for row, arrays in zip(table, curves, strict=True):
            row[: len(arrays["loss"])] = arrays["loss"]
        if len(steps):
            lines.append(Line(name, steps, np.median(table, 0).astype(np.float32), colour=COLOURS[name], legend=legend))
    return Panel(title, Axis("step"), Axis("training loss, nats"), lines)


def runs_table(units: Sequence[Unit]) -> Table:
    """Every run: how it ended, and what its recurrent weights did."""
    heads = (
        *HEADS, "ended", "train loss", "test loss", "slowest mode to boundary, start", "end", "modes moved",
        "weights that changed sign", "largest gradient over weight, start", "in training", "upward moves of the loss",
    )  # fmt: skip
    rows = []
    for unit in units:
        one = Run(unit)
        keys = ("train.loss", "test.loss", "margin.start", "margin.end", "moved", "crossed", "ratio.start")
        numbers = (*(one[key] for key in keys), one.largest_ratio, one.upward)
        ended = "finished" if one.finished else f"diverged at step {int(one['done'])}"
        rows.append([*_settings(unit), ended, *map(_shown, numbers)])
    caption = (
        "Every run. A mode moved if its memory length 1/(1 - |lam|) changed by more than a tenth; a distance below 0 is a mode "
        "past the boundary; losses are in nats, those of a run that diverged are infinite."
    )
    return Table("runs", caption, heads, rows)


def modes_table(title: str, runs: Runs, name: str) -> Table:
    """What the recurrent weights of each parameterization did: medians over seeds."""
    values: dict[str, Callable[[Run], float]] = {
        "slowest mode to boundary, start": lambda run: run["margin.start"],
        "end": lambda run: run["margin.end"],
        "share of modes that moved": lambda run: run["moved"],
        "share of weights that changed sign": lambda run: run["crossed"],
        "largest gradient over weight, start": lambda run: run["ratio.start"],
        "in training": lambda run: run.largest_ratio,
        "train loss": lambda run: run["train.loss"],
    }
    rows = [[f, *(_shown(median(found, value)) for value in values.values())] for f, found in runs.items()]
    return Table(
        name, f"What the recurrent weights did, medians over seeds: {title}.", ("parameterization", *values), rows
    )


def modes_tables(found: Mapping[str, Runs]) -> list[Table]:
    """One for each data set."""
    return [modes_table(TEXTS[text], runs, f"modes-{text}") for text, runs in found.items()]


def speed_table(units: Sequence[Unit]) -> Table:
    """Tokens a second of every run: the only table that two runs of the same command do not agree on."""
    rows = [[*_settings(unit), round(speed([unit])), round(unit.seconds, 1)] for unit in units]
    caption = "Tokens a second while training, median over the log, and seconds of the whole run."
    return Table("speed", caption, (*HEADS, "tokens a second", "seconds"), rows)


def notes(units: Sequence[Unit]) -> list[str | Note]:
    """What a reader must know of all these runs."""
    config = units[0].config
    data = dict.fromkeys(str(unit.log[-1]["data"]) for unit in units if unit.log)
    stand_in = Note("other data", "Shakespeare's text is not on this machine: Python's manual stands in.")
    return [
        *([stand_in] if config["data"] == "manual" else []),
        *([] if any(unit.config["data"] == "wikitext-103" for unit in units) else [OTHER_TEXTS]),
        *(Note("data", f"{text}.") for text in data),
        f"Models: width {config['width']}, {config['depth']} Hyena-type blocks, {config['state']} real modes each, "
        f"{config['steps']:,} steps of {config['batch']} windows of {config['length']} tokens, warm-up {config['warmup']} "
        "steps (the paper's share of the training), then a cosine, AdamW with weight decay "
        f"{config['weight_decay']}, none on recurrent weights, no clipping (the paper names none). The paper's: width 768, 12 "
        "blocks, 128 modes, 115,200 steps of 16 windows of 1,024 tokens of WikiText-103; that is the preset `paper`.",
        f"Every parameterization starts from the same eigenvalues, exp(-rate) with rates geometric on [{config['slowest']:g}, "
        f"{config['fastest']:g}], and from the same other weights; the order of the data is the same.",
        f"Tests and validation use the first {config['evaluated']} batches of their split." if config["evaluated"] else
        "Tests and validation use their whole split.",
        "One family of runs serves stable-fig4, stable-fig5, stable-fig6, stable-table2 and stable-table3.",
    ]  # fmt: skip


def _settings(unit: Unit) -> tuple[str | float, ...]:
    c = unit.config
    return c["data"], c["parameterization"], c["lr"], float(f"{kept(unit.arrays, 'rate'):.4g}"), c["seed"]


def _shown(number: float) -> float | str:
    """A table has no NaN and no bare infinity."""
    return float(f"{number:.4g}") if math.isfinite(number) else "infinite"
