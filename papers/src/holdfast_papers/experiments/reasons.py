"""Why claims of the trained experiments are not met, or not decided: studies that could show a reason to be wrong.

    python -m holdfast_papers.experiments.reasons iat-fig2

A study trains models of the experiment again, with one seed and fewer steps, and measures them in the experiment's way and in
others that differ in one thing. It decides no claim. docs/reproduce.md has what the studies print.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BackendError, unknown_name
from holdfast.memory.huggingface import Reading
from holdfast.nn import ContinuousRNN
from holdfast.stability import StabilityVerdict, assess_stability
from holdfast.stability.perturbation._curve import slope_of
from holdfast.stability.perturbation._options import SearchName
from holdfast_papers.experiments import _measures, _sums
from holdfast_papers.experiments.base import Config, Unit, Work, drop
from holdfast_papers.experiments.iat import (
    _reparameterized,
    _repeated_words,
    _sentiment,
    _students,
    fig2,
    fig6,
    fig7,
    fig8,
)
from holdfast_papers.experiments.linrec import fig9
from holdfast_papers.pages import Cell, Table

UNTRAINED_LENGTHS = (400, 1600)  # steps of sequences that no student was trained on
EIGENVALUES, BASIS = "recurrence.free.1", "recurrence.free.0"  # of W = Q g(M) Q'
HEAD_STEPS = 1000  # of training a linear head on the frozen encoder
READINGS: dict[Reading, str] = {"pooled": "mean over the tokens", "first": "first token", "last": "last token"}
SEARCHES: dict[SearchName, str] = {"random": f"{_measures.DRAWS} random draws", "adversarial": "gradient ascent"}


def trained(configs: Iterable[Config], target: Callable[[Tensor], Tensor] | None = None) -> dict[int, ContinuousRNN]:
    """Students by width after training.

    Args:
        configs: of units with a student, one per width.
        target: what they learn of white noise; None is the functional of (t+1)^-1.5.
    """
    return {c["m"]: _students.learn(c, _students.lesson(c, target), Work())[0] for c in configs}


def study_fig2(config: Config) -> list[Table]:
    """iat-fig2: the search for the worst perturbation, the length of the sequences, and where slow rates come from."""
    units = _one_seed(fig2.units(config))
    students, short = trained(units), trained({**unit, "longest": 2.0} for unit in units)
    steps = config["test_steps"]
    cases = [("all", steps), ("recurrent", steps), ("recurrent", UNTRAINED_LENGTHS[-1])]
    rates = [*_rates("slowest rate 1/m", students), *_rates("slowest rate 1/2", short)]
    return [
        _searched(_ways(students, config, cases)),
        Table(
            "all times",
            "The slowest rate after training, and the distance to instability.",
            ("at the start", "quantity", "slope of its log in log m", "by m"),
            rates,
        ),
    ]


def study_fig8(config: Config) -> list[Table]:
    """iat-fig8: W free by draws and by ascent, on short and on long sequences; with softplus, which weights matter."""
    steps, found = config["test_steps"], []
    for activation in fig8.ACTIVATIONS:
        units = _one_seed(_reparameterized.units({**config, "complete": []}, [activation]))
        for form, words in _symmetric().items():
            students = trained(unit for unit in units if unit["parameterization"] == form)
            others = (
                [(EIGENVALUES, steps), (BASIS, steps)] if form == "softplus" else [("recurrent", UNTRAINED_LENGTHS[-1])]
            )
            cases = [("recurrent", steps), *others]
            found += [(activation, words, *row) for row in _ways(students, config, cases)]
    return [_searched(found, "activation", "parameterization")]


def study_fig7(config: Config) -> list[Table]:
    """iat-fig7: how states, outputs and radii of ReLU networks change with the length of the sequences."""
    units = _one_seed(_reparameterized.units({**config, "complete": []}, fig7.ACTIVATIONS))
    rows: list[tuple[Cell, ...]] = []
    for form, words in _symmetric().items():
        students = trained(unit for unit in units if unit["parameterization"] == form)
        for steps in (config["test_steps"], *UNTRAINED_LENGTHS):
            data = _measures.noise(steps, config["dt"])
            found = _measures.curves(students, data, "recurrent", "adversarial", own=True)
            for m, student in students.items():
                with torch.no_grad():
                    y, h = student(data[0])
                rows.append((words, m, steps, float(h.max()), float(y.abs().max()), _measures.radius(found[m])[1]))
    heads = ("parameterization", "m", "steps", "largest state", "largest output", "radius")
    return [Table("lengths", "Recurrent weights, gradient ascent, against the student's own outputs.", heads, rows)]


def study_fig6(config: Config) -> list[Table]:
    """iat-fig6: the encoder's memory where its tokens are averaged, and where one of them is read."""
    there = next((u for u in fig6.EXPERIMENT.units(config) if u["model"] == _sentiment.ENCODER), None)
    if there is None:
        raise BackendError(fig6.MISSING)
    unit = {**drop(there, "seed"), "seeds": config["seeds"], "head_steps": HEAD_STEPS}
    found = []
    for reading, words in READINGS.items():
        arrays = _sentiment.encoder(unit, Work(), reading)
        found += _repeated_words.judged([Unit({**unit, "model": words}, arrays)])
    return [_repeated_words.table(found)]


def study_linrec(config: Config) -> list[Table]:
    """linrec-fig9: the run that missed most, with other steps."""
    unit = next(u for u in fig9.units(config) if (u["state"], u["seed"]) == (fig9.RING, config["seeds"] - 1))
    arrays = fig9.run(unit, Work())
    row = (unit["steps"], float(arrays["loss"][-1]), *arrays["error.mlp"].tolist())
    heads = ("steps", "training", *(f"validation, {name}" for name in fig9.OUTPUTS[unit["system"]]))
    return [Table("steps", f"{unit['state']}, seed {unit['seed']}: error / variance.", heads, [row])]


# the sizes that the studies were first made at: 32 steps of training, as in the paper, and widths that double
SHORT: Config = {"batch": 128, "train_steps": 32, "widths": [8, 16, 32, 64], "draws": _measures.DRAWS}
STUDIES: dict[str, tuple[Callable[[Config], list[Table]], Config]] = {
    "iat-fig2": (study_fig2, fig2.EXPERIMENT.config("standard", {**SHORT, "steps": 3000, "train_size": 12_800})),
    "iat-fig6": (study_fig6, fig6.EXPERIMENT.config("standard", {"read": 2000})),
    "iat-fig7": (
        study_fig7,
        fig7.EXPERIMENT.config("standard", {**SHORT, "steps": 2000, "train_steps": 100, "widths": [12, 32]}),
    ),
    "iat-fig8": (study_fig8, fig8.EXPERIMENT.config("standard", {**SHORT, "steps": 1000})),
    "linrec-fig9": (study_linrec, fig9.EXPERIMENT.config("standard", {"steps": 14_000, "systems": ["lotka-volterra"]})),
}


def _symmetric() -> dict[str, str]:
    return {form: _reparameterized.FORMS[form] for form in _reparameterized.PAIRS["symmetric"]}


def _one_seed(units: Iterable[Config]) -> list[Config]:
    return [u for u in units if u["seed"] == 0]


def _searched(rows: Sequence[Sequence[Cell]], *heads: str) -> Table:
    caption = "The same students, measured in several ways."
    return Table("search", caption, (*heads, "perturbed", "steps", "search", *_sums.HEADS), rows)


def _ways(students: _measures.Students, config: Config, cases: Sequence[tuple[str, int]]) -> list[Sequence[Cell]]:
    verdicts: dict[tuple[Cell, ...], StabilityVerdict] = {}
    words = {EIGENVALUES: "eigenvalues of W", BASIS: "eigenvectors of W"}
    for scope, steps in cases:
        data, own = _measures.noise(steps, config["dt"]), steps > config["test_steps"]
        for search, name in SEARCHES.items():
            measured = _measures.curves(students, data, scope, search, own=own)
            verdicts[words.get(scope, f"{scope} weights"), steps, name] = assess_stability(measured)
    return _sums.rows(verdicts)


def _rates(start: str, students: _measures.Students) -> list[tuple[Cell, ...]]:
    measures = {
        "slowest rate": {m: student.margin() for m, student in students.items()},
        "distance to instability": {m: _measures.distance_to_instability(s.recurrence()) for m, s in students.items()},
    }
    rows: list[tuple[Cell, ...]] = []
    for name, found in measures.items():
        known = len(found) > 2 and min(found.values()) > 0
        slope = slope_of(np.array([*found]), np.array([*found.values()]), 0.95)[0] if known else math.nan
        rows.append((start, name, slope if known else "", ", ".join(f"{m}: {v:.2g}" for m, v in found.items())))
    return rows


def main(ids: Sequence[str]) -> None:
    """Runs the studies of some experiments and prints their tables.

    Args:
        ids: like "iat-fig2".
    """
    for id in ids:
        if id not in STUDIES:
            raise unknown_name("study", id, STUDIES)
    torch.set_num_threads(1)
    for id in ids:
        study, config = STUDIES[id]
        for text in (id, *map(_measures.markdown, study(config))):
            sys.stdout.write(f"{text}\n\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
