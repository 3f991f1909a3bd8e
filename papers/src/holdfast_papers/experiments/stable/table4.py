"""stable-table4: associative recall, stable parameterizations against clipped and direct recurrent weights.

The criterion, for each length and start on its own, every parameterization at the recurrent rate of the rule: best and exp are
at least 5 points above clip and direct, by the 95% interval of the paired difference; undecided where no parameterization
passes 50%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.data import AbstractTask, load_task
from holdfast.figures import Figure, Panel
from holdfast.nn import LanguageModel
from holdfast_papers.experiments._paired import larger, together
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.stable import _comparison as compare
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

POINTS = 5.0  # of accuracy: how far above direct and clip the two must be
LEARNS = 50.0  # points that some parameterization has to pass
STABLE, OTHERS = ("best", "exp"), ("clip", "direct")
PAPER = {
    20: {"best": 0.998, "exp": 0.998, "clip": 0.766, "direct": 0.670},
    131072: {"best": 1.0, "exp": 1.0, "clip": 0.094, "direct": 0.056},
}
SHARED = ("width", "depth", "states", "lr", "weight_decay", "batch", "warmup")
Task = tuple[int, int, int, int, list[float]]  # length, vocabulary, steps, test sequences, slowest and fastest rate


def units(config: Config) -> list[Config]:
    """One run for each length and start, parameterization and seed, and the run at the longest length."""
    shared = {name: config[name] for name in SHARED}
    found: list[Config] = []
    for length, vocabulary, steps, test, (slowest, fastest) in _tasks(config):
        sizes = {
            **shared, "part": "decided", "length": length, "vocabulary": vocabulary, "steps": steps, "test": test,
            "slowest": slowest, "fastest": fastest,
        }  # fmt: skip
        axes = {
            "parameterization": config["parameterizations"], "share": config["shares"], "seed": range(config["seeds"]),
        }  # fmt: skip
        found += split({**sizes, "accumulate": 1}, **axes)
    if config["long_steps"]:
        long = {
            "part": "long", "length": config["long"], "vocabulary": 30, "steps": config["long_steps"], "test": 8,
            "slowest": 1e-3, "fastest": 0.5,
        }  # fmt: skip
        found.append({**shared, **long, "accumulate": 4, "parameterization": "best", "share": 1.0, "seed": 0})
    return found


def _tasks(config: Config) -> list[Task]:
    names = ("lengths", "vocabularies", "steps", "tests", "starts")
    return [*zip(*(config[name] for name in names), strict=True)]


def run(config: Config, work: Work) -> Arrays:
    """One training run.

    The memory that the rule's rate is for: a key comes about every vocabulary steps, so that the asked pair is within twice
    as many.
    """
    settings = compare.settings_of(config) | {"accumulate": config["accumulate"], "schedule": "constant"}
    if config["part"] == "long":
        settings |= {"log_every": 1, "monitor_every": 1, "checkpoint_every": 2}
    memory = float(max(2, 2 * config["vocabulary"])) if config["share"] == compare.RULE else None
    return compare.one_run(_model(config), _task(config), settings, work, memory)


def _task(config: Config) -> AbstractTask:
    valid = config["test"] // 2 if config["part"] == "decided" else 0
    return load_task(
        "recall", length=config["length"], vocabulary=config["vocabulary"], valid=valid, test=config["test"]
    )


def _model(config: Config) -> LanguageModel:
    return LanguageModel(
        config["vocabulary"], config["width"], depth=config["depth"], state_size=config["states"], layer="diagonal",
        parameterization=config["parameterization"], activation="identity", bias=False,
        eigenvalues=compare.falling(config["slowest"], config["fastest"], config["states"]),
    )  # fmt: skip


def chance(vocabulary: int) -> float:
    """The accuracy of a guess among the values."""
    plain = vocabulary - 2
    return 1 / (plain - plain // 2)


def _blind(vocabulary: int) -> float:
    """The loss of a model that knows keys from values and recalls nothing, in nats per token."""
    plain = vocabulary - 2
    return (math.log(plain // 2) + math.log(plain - plain // 2)) / 2


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Best and exp against clip and direct at each length, at one learning rate and at each one's best."""
    claims: list[Claim] = []
    tables: list[Table] = []
    panels: list[Panel] = []
    figures: list[Figure] = []
    for length, vocabulary, steps, _, start in _tasks(config):
        name = _name(config, length, start)
        trials = compare.trials(
            [
                u
                for u in units
                if u.config["part"] == "decided"
                and (u.config["length"], [u.config["slowest"], u.config["fastest"]]) == (length, start)
            ]
        )
        both = compare.columns(trials)
        claims += [_claim(name, vocabulary, length, share, shown) for share, shown in both.items()]
        caption = f"{name}, vocabulary {vocabulary}, {steps:,} steps: medians over the seeds, accuracy as a mean."
        key = f"{length}-{'-'.join(f'{1 / rate:g}' for rate in start)}"
        tables.append(compare.table(f"length-{key}", caption, trials, PAPER.get(length, {})))
        panels.append(compare.accuracy_panel(f"{name}, vocabulary {vocabulary}", trials))
        caption = f"{name}, first seed. A line that ends early is a run that diverged."
        figures.append(compare.curves(f"curves-{key}", caption, next(iter(both.values()))))
    caption = (
        "Accuracy of the answer by the learning rate of the recurrent weights. Points are runs; diverged ones have 0."
    )
    long = [u for u in units if u.config["part"] == "long"]
    tables += [_long_table(long)] if long else []
    figures += [_long_figure(long)] if long else []
    return Conclusion(claims, [Figure("accuracy", caption, panels), *figures], tables, _notes(config))


def _name(config: Config, length: int, start: Sequence[float]) -> str:
    starts = {tuple(task[4]) for task in _tasks(config) if task[0] == length}
    return f"length {length}" + (f", rates from {start[0]:g} to {start[1]:g}" if len(starts) > 1 else "")


def _claim(name: str, vocabulary: int, length: int, share: compare.Share, shown: Mapping[str, Sequence[Unit]]) -> Claim:
    arms = compare.arms(shown)
    others = [other for other in OTHERS if other in arms]
    each = [larger(arms, stable, others, by=POINTS) for stable in STABLE]
    means = {f"test accuracy, {arm}": float(np.mean(values)) / 100 for arm, values in arms.items()}
    best = max(float(np.mean(values)) for values in arms.values())
    weak = "" if best > LEARNS else f"No parameterization passes {LEARNS:g} points. "
    ends = float(np.median([u.arrays["loss"][-1] for u in shown["best"]]))
    return Claim.decide(
        name if share == compare.RULE else f"{name}, one rate",
        f"At {name} best and exp recall at least {POINTS:g} points better than clip and direct, {compare.COLUMNS[share]}",
        None if weak else together([found.holds for found in each]),
        {k: v for found in each for k, v in found.numbers.items()} | means
        | {"accuracy of a guess": chance(vocabulary)}
        | {"training loss at the end, best": ends, "training loss without recall": _blind(vocabulary)},
        paper={f"test accuracy, {arm}": value for arm, value in PAPER.get(length, {}).items()},
        otherwise=weak + "".join(found.why for found in each) + compare.said(shown),
        essential=share == compare.RULE,
    )  # fmt: skip


def _long_table(units: Sequence[Unit]) -> Table:
    heads = ("length", "steps", "loss, first step", "loss, last step", "slowest rate, end", "modes moved", "tokens/s")
    rows: list[list[Any]] = [
        [
            u.config["length"], int(u.arrays["done"]), float(u.arrays["loss"][0]), float(u.arrays["loss"][-1]),
            float(u.arrays["margin.end"]), float(u.arrays["moved"]), round(compare.speed([u])),
        ]
        for u in units
    ]  # fmt: skip
    caption = (
        "Timed steps at the longest length, best, batch 4, on one core. S5's 97.2% (mean of 10 seeds) takes 50,000 steps, and "
        "the paper's 100% a number that it does not state: no accuracy is claimed here."
    )
    return Table("longest", caption, heads, rows)


def _long_figure(units: Sequence[Unit]) -> Figure:
    caption = "The run at the longest length: loss of each step, over keys too, which nobody can predict."
    return compare.curves("curves-longest", caption, {"best": units})


def _notes(config: Config) -> list[str]:
    return [
        f"Two Hyena-type blocks of width {config['width']}, {config['states']} real modes each in continuous time, AdamW, "
        f"learning rate {config['lr']:g}, weight decay {config['weight_decay']:g} (none on recurrent weights), batch "
        f"{config['batch']}, constant rates. The paper does not state its number of steps; "
        f"S5's repository trains 50,000. Here: {_steps(config)}.",
        "In training every token is asked for, the unpredictable keys too, so that train accuracies near one half are perfect "
        "(the paper's 57.95 and 53.57). Test accuracy is that of the answer alone.",
        "Of a vocabulary of 30, each of the 14 keys comes about every 28 tokens: the last pair with the asked key is near the "
        "end at every length. A longer sequence asks for steadiness rather than for longer memory.",
        "The rule's rate is for a memory of twice the vocabulary. Where rates start between 0.1 and 1 no mode remembers more "
        "than 10 steps at first: memory has to be learned.",
    ]


def _steps(config: Config) -> str:
    each = [f"{task[2]:,} at {_name(config, task[0], task[4])}" for task in _tasks(config)]
    return ", ".join([*each, *([f"{config['long_steps']} at {config['long']:,}"] if config["long_steps"] else [])])


def cost(config: Config) -> float:
    """Seconds of a unit."""
    tokens = config["batch"] * (config["length"] + 2)
    return config["steps"] * (0.012 + 1.9e-5 * tokens) + config["test"] * config["length"] * 9e-6


EXPERIMENT = Experiment(
    id="stable-table4",
    where="Table 4",
    title="Associative recall by parameterization",
    summary="Language models of two Hyena-type blocks are trained to answer which value followed a key, with the recurrent "
    "weights under five parameterizations from the same eigenvalues.",
    presets=presets(
        {
            "lengths": [20, 2048, 131072], "vocabularies": [10, 30, 30], "steps": [50_000, 50_000, 50_000],
            "tests": [2048, 2048, 512], "starts": [[1e-3, 0.5]] * 3, "shares": [1.0, compare.RULE],
            "parameterizations": [*compare.PARAMETERIZATIONS], "seeds": 3, "long": 131_072, "long_steps": 0, "width": 64,
            "depth": 2, "states": 32, "lr": 1e-3, "weight_decay": 0.1, "batch": 4, "warmup": 0,
        },
        standard={
            "lengths": [20, 2048, 2048], "vocabularies": [10, 30, 30], "steps": [50_000, 10_000, 3000],
            "tests": [1024, 256, 256], "starts": [[1e-3, 0.5], [0.1, 1.0], [1e-3, 0.5]], "shares": [compare.RULE],
            "parameterizations": [*STABLE, *OTHERS], "long_steps": 200,
        },
        quick={
            "lengths": [20], "vocabularies": [10], "steps": [150], "tests": [128], "starts": [[1e-3, 0.5]],
            "shares": [compare.RULE], "parameterizations": [*STABLE, *OTHERS], "seeds": 1, "long": 2048, "long_steps": 10,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
    version=2,
)  # fmt: skip
