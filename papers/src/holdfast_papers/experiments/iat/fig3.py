"""iat-fig3: teachers that students of several widths approximate stably; those that are kept have exponential memory.

The criterion. Teachers are made of a kernel, so that their memory is known: five are exponential and five slower. Students of
five widths start with a longest memory of m, and with one of 2 at every width; all weights are perturbed, the sup searched
on a horizon that grows with m (`_sup`). A teacher is kept where one of its two families of students is stable by the rule of
`assess_stability`, since a stable approximation has only to exist; it is judged unstable where a family approximates it and
none that does is anything but unstable. Met if at least 3 are kept, all of them exponential, and at least 2 of the slower ones
are judged unstable; not met if a slower one is kept; undecided otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.stability import StabilityVerdict
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.iat import _curves, _students, _sup, _teachers
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

KEPT, UNSTABLE = 3, 2  # teachers that have to be kept; slower ones that have to be judged unstable
STARTS = {"m": "longest memory m", "2": "longest memory 2"}
SHOWN_TIME = 40.0  # of the kernels in the figure
Verdicts = Mapping[str, Mapping[str, StabilityVerdict]]  # by teacher and start


def units(config: Config) -> list[Config]:
    """A student of each width and start for each teacher."""
    shared = {name: config[name] for name in (*_students.TRAINING, *_sup.SETTINGS)}
    return split({**shared, "seed": 0}, teacher=config["teachers"], start=STARTS, m=config["widths"])


def cost(config: Config) -> float:
    """Seconds, roughly: training, and 12 radii of a search."""
    search = 12 * config["ascent"] * _sup.horizon(config) * config["sequences"] * (2e-6 + 1.1e-7 * config["m"])
    return _students.cost(config) + search


def run(config: Config, work: Work) -> Arrays:
    """One student: its training, and its perturbation curve."""
    given, size = lesson(config)
    model, record = _students.learn({**config, **_longest(config)}, given, work)
    if record["diverged"]:
        return _curves.kept(record, _sup.failed(config))
    x = _teachers.scales(_sup.noise(config)[0], seed=3)
    return _curves.kept(record, _sup.measured(model, (x, answers(config, x) / size), config, work, scope="all"))


def _longest(config: Config) -> dict[str, float]:
    return {} if config["start"] == "m" else {"longest": float(config["start"])}


def answers(config: Config, x: Tensor) -> Tensor:
    """What the unit's teacher makes of inputs."""
    rho, after = _teachers.BUILT[config["teacher"]]
    return _teachers.kernel_response(rho, after, x, config["dt"])


def lesson(config: Config) -> tuple[_students.Lesson, float]:
    """Inputs of all time scales and the teacher's answers, with a root mean square of SIZE; and what they were divided by."""
    noise = _students.lesson(config)
    inputs = [_teachers.scales(x, seed=k) for k, (x, _) in enumerate((noise.train, noise.valid, noise.test))]
    found = [answers(config, x) for x in inputs]
    size = float(found[0].square().mean().sqrt()) / _teachers.SIZE
    train, valid, test = ((x, y / size) for x, y in zip(inputs, found, strict=True))
    return _students.Lesson(train, valid, test), size


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Every kept teacher has exponential memory."""
    families = {
        (teacher, start): [u for u in units if (u.config["teacher"], u.config["start"]) == (teacher, start)]
        for teacher in config["teachers"]
        for start in STARTS
    }
    verdicts = {t: {s: _sup.verdict(families[t, s]) for s in STARTS} for t in config["teachers"]}
    rows = [
        (t, "exponential" if t in _teachers.EXPONENTIAL else "slower", judged(verdicts[t]), STARTS[s], *row[1:])
        for t in verdicts
        for s, row in zip(STARTS, _sums.rows({(s,): v for s, v in verdicts[t].items()}), strict=True)
    ]
    tables = [
        Table(
            "teachers",
            "Every teacher that was tried. Kept: one of its families is stable. Unstable: approximated, and none is stable.",
            ("teacher", "memory", "judged", "students' start", *_sums.HEADS),
            rows,
        ),
        Table(
            "students",
            "One student for each teacher, start and width.",
            ("teacher", "start", "m", *_students.RUN_HEADS),
            [
                (t, STARTS[s], u.config["m"], *_students.run_row([u]))
                for (t, s), found in families.items()
                for u in found
            ],
        ),
    ]
    notes = [
        "A teacher is the convolution with a kernel, or tanh of it: its memory function is that kernel, times the slope of "
        "tanh where it settles. The paper draws its teachers at random and does not say how.",
        "Half of the sequences are white noise; in the others a random sign is held for spans from a step to the whole "
        "sequence, since white noise hardly excites slow memory.",
        f"Students see {config['train_steps']} steps. {_sup.note(config)}",
    ]
    return Conclusion([_claim(verdicts)], _figures(config, families, verdicts), tables, notes)


def judged(verdicts: Mapping[str, StabilityVerdict]) -> str:
    """ "kept", "unstable", "no approximation" or "open", from the families of one teacher."""
    found = [v.verdict for v in verdicts.values() if v.verdict != "no approximation"]
    if not found:
        return "no approximation"
    return "kept" if "stable" in found else "unstable" if set(found) == {"unstable"} else "open"


def _claim(verdicts: Verdicts) -> Claim:
    answers = {t: judged(v) for t, v in verdicts.items()}
    kept = [t for t, answer in answers.items() if answer == "kept"]
    wrong = [t for t in kept if t in _teachers.SLOWER]
    unstable = [t for t, answer in answers.items() if answer == "unstable" and t in _teachers.SLOWER]
    enough = len(kept) >= KEPT and len(unstable) >= UNSTABLE
    return Claim.decide(
        "exponential",
        "Every teacher that is approximated, and stably, has exponential memory, and slower ones are approximated unstably",
        False if wrong else True if enough else None,
        {
            "teachers tried": len(answers), "kept": len(kept), "slower and kept": len(wrong),
            "slower and unstable": len(unstable),
            "not approximated": sum(answer == "no approximation" for answer in answers.values()),
            "open": sum(answer == "open" for answer in answers.values()),
        },
        otherwise=f"Kept although their memory is slower: {', '.join(wrong)}." if wrong else
        f"Fewer than {KEPT} teachers were kept, or fewer than {UNSTABLE} slower ones judged unstable.",
        essential=True,
    )  # fmt: skip


def _figures(config: Config, families: Mapping[tuple[str, str], Sequence[Unit]], verdicts: Verdicts) -> list[Figure]:
    t = np.linspace(0, SHOWN_TIME, 400)
    panels = []
    for title, wanted in (("kept", True), ("not kept", False)):
        lines = [
            Line(name, t, np.abs(np.asarray(_teachers.BUILT[name][0](t))), colour=k)
            for k, name in enumerate(verdicts)
            if (judged(verdicts[name]) == "kept") == wanted
        ]
        panels.append(Panel(title, Axis("time t"), Axis("kernel", log=True, limits=(1e-6, 2)), lines))
    curves = [
        _sums.panel(f"{teacher}, {STARTS[start]}", _sup.family(found), (1e-3, 1e2), legend=k == 0)
        for k, ((teacher, start), found) in enumerate(families.items())
    ]
    return [
        Figure("memory", "Kernels of the teachers that were kept, and of the others: straight lines are exponential.", panels),
        Figure(
            "perturbation",
            f"One panel for each teacher and start, one line for each width of its students: their largest error found when "
            f"all weights move by up to beta. {_curves.UNSTABLE}",
            curves,
        ),
    ]  # fmt: skip


EXPERIMENT = Experiment(
    id="iat-fig3",
    where="Figure 3",
    title="Teachers that are approximated stably have exponential memory",
    summary="Teachers of known memory, five exponential and five slower, are approximated by tanh RNNs of several widths. "
    "Those with students that stay close when their weights are perturbed are kept, and their memory is looked at.",
    presets=presets(
        {
            **_students.PAPER, **_sup.SETTINGS, "widths": [8, 16, 32, 64], "teachers": [*_teachers.BUILT], "train_steps": 400,
            "batch": 32,
        },
        standard={"steps": 10_000, "train_size": 4096, "widths": [4, 8, 12, 16, 24]},
        quick={
            "steps": 100, "train_size": 320, "teachers": ["e^-t", "(1+t)^-1.5"], "widths": [4, 6], "test_size": 16, "ascent": 2,
            "least_steps": 100, "sequences": 2, "train_steps": 100, "draws": 2,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=cost,
    version=2,
)  # fmt: skip
