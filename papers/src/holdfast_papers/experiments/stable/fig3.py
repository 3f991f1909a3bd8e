"""stable-fig3: gradient over weight of the recurrent weights while a functional with polynomial memory is learned.

Discrete state-space models with tanh start from the same eigenvalues, read the same noise in the same order, and differ
in f(w) alone. A ratio of exp grows without bound where its weight passes through 0 (lam = 1/e), which says nothing about
its gradient: such runs of exp are compared apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import parameterizations
from holdfast.data import load_task
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.nn import DiagonalSSM
from holdfast.parameterizations import AbstractParameterization
from holdfast_papers.experiments import _runs
from holdfast_papers.experiments._paired import equal, smaller, together
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, drop, presets, split
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

BEST = {"best, b = 0.5": 0.5, "best, b = 1": 1.0}
OTHERS = ("direct", "relu", "exp", "softplus", "tanh")  # those of the paper's Table 1, and none at all
BESIDE = "inverse"  # not in the paper: shown, and no part of its claim
NAMES = (*BEST, *OTHERS, BESIDE)
PAPER, CHOSEN = "the paper's rate", "the chosen rate"
SIMILAR = 2.0  # factor between losses that count as similar
Runs = Mapping[tuple[str, str, int], Arrays]


class Student(nn.Module):
    """A state-space layer that notes which of its recurrent weights have changed their sign.

    Args:
        parameterization: f.
        states: number of real modes.
    """

    crossed: Tensor
    sign: Tensor

    def __init__(self, parameterization: AbstractParameterization, states: int) -> None:
        super().__init__()
        self.layer = DiagonalSSM(1, states, parameterization=parameterization, time="discrete")
        self.register_buffer("sign", self.layer.w.detach().sign())
        self.register_buffer("crossed", torch.zeros(states))

    def forward(self, x: Tensor) -> Tensor:
        """y of the layer, (batch, time, 1)."""
        with torch.no_grad():
            self.crossed.copy_(torch.maximum(self.crossed, (self.layer.w.sign() != self.sign).float()))
        return self.layer(x)[0]


def units(config: Config) -> list[Config]:
    """One run a parameterization, seed and way to set the recurrent rate."""
    shared = drop(config, "seeds", "rates")
    return [
        *split({**shared, "rates": [config["lr"]], "short": 0}, f=NAMES, seed=range(config["seeds"])),
        *split({**shared, "rates": config["rates"]}, f=NAMES, seed=range(config["seeds"])),
    ]


def run(config: Config, work: Work) -> Arrays:
    """One training run."""
    task = load_task(
        "functional", law="power", constants=[1.1], length=config["length"], train=config["samples"], valid=1024, test=0,
        seed=config["seed"],
    )  # fmt: skip
    steps = config["samples"] // config["batch"]
    settings = {
        "lr": config["lr"], "batch": config["batch"], "steps": steps, "weight_decay": 0.0, "schedule": "constant",
        "clip": None, "seed": config["seed"], "monitor_every": 1, "evaluate_every": steps, "log_every": 5,
    }  # fmt: skip
    model, done, choice = _runs.fit_at(
        lambda: _student(config), task, settings, config["rates"], work, short=config["short"]
    )
    start, end = _runs.Spectrum.of(_student(config)), _runs.Spectrum.of(model)
    return {**_runs.record(done, start, end, work), **choice, "crossed": np.array(model.crossed.numpy().mean())}  # type: ignore[operator]


def _student(config: Config) -> Student:
    f = config["f"]
    constants = {"b": BEST[f]} if f in BEST else {}
    torch.manual_seed(config["seed"])
    return Student(parameterizations.get(f.split(",")[0], time="discrete", **constants), config["states"])


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """The largest ratio of each run, best against the others seed by seed."""
    runs = {(_column(u.config), u.config["f"], u.config["seed"]): u.arrays for u in units}
    seeds = range(config["seeds"])
    claims = [
        *(_smallest(runs, PAPER, name, seeds) for name in BEST),
        *(_against_exp(runs, PAPER, name, seeds) for name in BEST),
        *(_smallest(runs, CHOSEN, name, seeds) for name in BEST),
        _losses(runs, seeds),
        _against_inverse(runs, seeds),
    ]
    notes = [
        f"The paper gives neither the number of modes nor their start: here {config['states']} modes with rates geometric on "
        "[0.001, 0.5], Adam without decay or clipping, and the rate constant. The recurrent rate of the second column is the "
        f"one of {', '.join(f'{r:g}' for r in config['rates'])} with the least validation loss after {config['short']} steps.",
        "A run that diverges counts as one whose ratio has no bound.",
    ]
    return Conclusion(claims, _figures(runs, seeds), [_table(runs, seeds)], notes)


def _column(config: Config) -> str:
    return PAPER if len(config["rates"]) == 1 else CHOSEN


def _ratio(arrays: Arrays) -> float:
    return float("inf") if _runs.failed(arrays) else float(arrays["ratio.max"])


def _arms(runs: Runs, column: str, seeds: range) -> dict[str, list[float]]:
    return {f: [_ratio(runs[column, f, s]) for s in seeds] for f in NAMES}


def _smallest(runs: Runs, column: str, name: str, seeds: range) -> Claim:
    """Best below every other one; where exp's weight crosses 0 in some seed it is left to a claim of its own."""
    crossed = any(float(runs[column, "exp", seed]["crossed"]) > 0 for seed in seeds)
    arms = _arms(runs, column, seeds)
    found = smaller(arms, name, [f for f in OTHERS if f != "exp" or not crossed], factor=True)
    medians = {f: float(np.median(arms[f])) for f in (name, *OTHERS)}
    return Claim.decide(
        name if column == PAPER else f"{name}, {column}",
        f"The largest gradient over weight during training is smallest for {name}, at {column}"
        + ("; exp has a claim of its own" if crossed else ""),
        found.holds,
        found.numbers | _finite(medians, "median largest ratio, "),
        otherwise=found.why,
        essential=column == PAPER,
    )


def _against_exp(runs: Runs, column: str, name: str, seeds: range) -> Claim:
    apart = sum(float(runs[column, "exp", s]["crossed"]) > 0 for s in seeds)
    found = smaller(_arms(runs, column, seeds), name, ["exp"], factor=True)
    return Claim.decide(
        f"{name}, exp apart",
        f"{name} has the smaller largest ratio than exp also where a weight of exp crosses 0",
        found.holds if apart else None,
        found.numbers | {"seeds where exp crosses 0": float(apart)},
        otherwise=found.why if apart else "No weight of exp crosses 0 in any seed.",
    )


def _against_inverse(runs: Runs, seeds: range) -> Claim:
    each = [smaller(_arms(runs, PAPER, seeds), name, [BESIDE], factor=True) for name in BEST]
    return Claim.decide(
        BESIDE,
        f"Best has the smaller largest ratio than {BESIDE} too, which the paper does not compare",
        together([found.holds for found in each]),
        {k: v for found in each for k, v in found.numbers.items()},
        otherwise="".join(found.why for found in each)
        + "f(w) = 1 - 1/w moves less for the same w: its gradient scale over the weight is 1/w, best's is constant.",
    )


def _losses(runs: Runs, seeds: range) -> Claim:
    arms = {f: [_runs.kept(runs[PAPER, f, s], "valid.loss") for s in seeds] for f in (*BEST, *OTHERS)}
    found = equal(arms, math.log(SIMILAR), factor=True)
    medians = {f: float(np.median(values)) for f, values in arms.items()}
    return Claim.decide(
        "similar losses",
        f"The losses of the parameterizations at the end are similar: within a factor {SIMILAR:g} of each other",
        found.holds,
        _finite(medians, "median validation loss, "),
        otherwise=found.why + _pace(runs, seeds, medians),
    )


def _pace(runs: Runs, seeds: range, losses: Mapping[str, float]) -> str:
    """What the modes of the least and of the largest loss did, at the paper's rate and at the chosen one."""

    def median(column: str, f: str, key: str) -> float:
        return float(np.median([_runs.kept(runs[column, f, s], key) for s in seeds]))

    parts = []
    for f in (min(losses, key=losses.__getitem__), max(losses, key=losses.__getitem__)):
        end = median(PAPER, f, "margin.end")
        place = f"{end:.2g} inside" if end >= 0 else f"{-end:.2g} beyond"
        parts.append(
            f"{f} moved {median(PAPER, f, 'moved'):.0%} of its modes, the slowest ended {place} the boundary, and at its "
            f"chosen rate its loss is {median(CHOSEN, f, 'valid.loss'):.2g}"
        )
    return f"At one rate the modes do not move equally fast: {'; '.join(parts)}."


def _finite(values: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {prefix + name: value for name, value in values.items() if np.isfinite(value)}


def _table(runs: Runs, seeds: range) -> Table:
    rows = []
    for column in (PAPER, CHOSEN):
        for f in NAMES:
            chosen = [runs[column, f, s] for s in seeds]
            rows.append(
                (
                    column, f, ", ".join(sorted({f"{float(a['rate']):g}" for a in chosen})), sum(map(_runs.failed, chosen)),
                    *(_shown(np.median([_value(a, k) for a in chosen])) for k in ("ratio.start", "ratio.max", "valid.loss")),
                    *(float(np.median([a[k] for a in chosen])) for k in ("margin.start", "margin.end", "moved", "crossed")),
                )
            )  # fmt: skip
    heads = (
        "column", "f", "recurrent rate", "diverged", "ratio at the start", "largest ratio", "validation loss",
        "1 - |lam| of the slowest mode, start", "end", "modes moved", "weights that crossed 0",
    )  # fmt: skip
    return Table("ratios", "Medians over the seeds; gradient over weight is the largest over the modes.", heads, rows)


def _value(arrays: Arrays, key: str) -> float:
    return float("inf") if _runs.failed(arrays) and key != "ratio.start" else _runs.kept(arrays, key)


def _shown(value: float) -> float | str:
    return float(value) if np.isfinite(value) else "diverged"


def _figures(runs: Runs, seeds: range) -> list[Figure]:
    def panel(column: str, key: str, label: str) -> Panel:
        lines = []
        for k, f in enumerate(NAMES):
            chosen = [runs[column, f, s] for s in seeds]
            count = min(len(a[key]) for a in chosen)
            values = np.array([a[key][:count] for a in chosen])
            x = chosen[0]["ratio.steps" if key == "ratio" else "steps"][:count]
            lines.append(Line(f, x, np.median(values, 0), values.min(0), values.max(0), colour=k))
        return Panel(column, Axis("step"), Axis(label, log=True), lines)

    return [
        Figure(
            "gradient-over-weight",
            "Largest |gradient| / |weight| over the recurrent weights at each step; median and range of the seeds.",
            [panel(c, "ratio", "largest |grad| / |w|") for c in (PAPER, CHOSEN)],
        ),
        Figure(
            "loss",
            "Training loss; median and range of the seeds.",
            [panel(c, "loss", "mean squared error") for c in (PAPER, CHOSEN)],
        ),
    ]


EXPERIMENT = Experiment(
    id="stable-fig3",
    where="Figure 3",
    title="Gradient over weight while a polynomial functional is learned",
    summary="State-space models with tanh learn the functional with rho = (t+1)^-1.1 from the same eigenvalues through each "
    "parameterization; the largest gradient over weight of their recurrent weights is followed along training.",
    presets=presets(
        {
            "samples": 153_600, "batch": 512, "lr": 0.01, "length": 100, "states": 64, "seeds": 5, "short": 75,
            "rates": [0.001, 0.003, 0.01, 0.03],
        },
        standard={"short": 40},
        quick={"samples": 1600, "batch": 64, "length": 50, "states": 16, "seeds": 2, "short": 8},
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: config["samples"] / 12_000 + len(config["rates"]) * config["short"] * config["batch"] / 12_000,
)  # fmt: skip
