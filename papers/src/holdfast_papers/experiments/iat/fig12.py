"""iat-fig12: causal transformers as targets, in evaluation mode, without dropout and without positions; students are tanh RNNs.

The criterion. Beside the transformers stand two controls: random RNNs of exponential memory, and a target of memory
(1+t)^-0.5. Students of several widths start with a longest memory of m, and with one of 2; all weights are perturbed, the sup
searched on a horizon that grows with m (`_sup`), and a target is judged as in iat-fig3. Met if the RNNs are kept (approximated
and stable), the slow control is approximated and unstable, and no transformer is kept; undecided where a control fails. Targets
are asked for less their instantaneous part, the best polynomial of degree 5 in the input of the same step. The memory of the
teachers is measured by an impulse: attention without positions answers a constant input with a constant, which shows none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast import laws
from holdfast.figures import Axis, Figure, Line, Panel
from holdfast.stability import StabilityVerdict
from holdfast_papers.experiments import _sums
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.iat import _curves, _students, _sup, _teachers
from holdfast_papers.experiments.iat.fig3 import STARTS, cost, judged
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

KINDS = {"transformer": "causal transformer", "rnn": "random RNN", "slow": "memory (1+t)^-0.5"}
SLOW = laws.PowerLaw(0.5)
DEGREE = 5
LEFT = 0.01  # of the memory of the first step, that transformers have to keep
EARLY, LATE = 1, 100  # the steps whose memory is compared
ROUNDING = 1e-6  # of M(0): a memory below it is float32 rounding
UNSEEN = "M(1) is rounding: the ratio would compare noise with noise."
FITTED = 256  # sequences that the instantaneous part is fitted on
Teacher = tuple[str, int]


def units(config: Config) -> list[Config]:
    """The memory of each random teacher, and students of each width and start for every one."""
    names = ("teacher_width", "gain", "shift", "transformer_width", "depth", "heads", "dt")
    about = {name: config[name] for name in names}
    random = [
        {**about, "kind": k, "teacher_seed": s} for k in ("transformer", "rnn") for s in range(config["teacher_seeds"])
    ]
    teachers = [*random, {**about, "kind": "slow", "teacher_seed": 0}]
    shared = {name: config[name] for name in (*_students.TRAINING, *_sup.SETTINGS)}
    student = {"part": "student", "seed": 0, **shared}
    return [
        *({"part": "memory", "probe": "impulse", "horizon": config["horizon"], **teacher} for teacher in random),
        *(unit for t in teachers for unit in split({**student, **t}, start=STARTS, m=config["widths"])),
    ]  # fmt: skip


def run(config: Config, work: Work) -> Arrays:
    """The memory function of a teacher, or one student of it."""
    if config["part"] == "memory":
        return {"memory": _teachers.memory(_teacher(config), config).values.astype(np.float32)}
    answers = target(config)
    noise = _students.lesson(config)
    parts = []
    for k, (x, _) in enumerate((noise.train, noise.valid, noise.test)):
        mixed = _teachers.scales(x, seed=k)
        parts.append((mixed, answers(mixed)))
    longest = {} if config["start"] == "m" else {"longest": float(config["start"])}
    model, record = _students.learn({**config, **longest}, _students.Lesson(*parts), work)
    if record["diverged"]:
        return _curves.kept(record, _sup.failed(config))
    x = _teachers.scales(_sup.noise(config)[0], seed=3)
    return _curves.kept(record, _sup.measured(model, (x, answers(x)), config, work, scope="all"))


def _teacher(config: Config) -> torch.nn.Module:
    return _teachers.transformer(config) if config["kind"] == "transformer" else _teachers.random_rnn(config)


def target(config: Config) -> Callable[[Tensor], Tensor]:
    """What the unit's teacher makes of inputs, less its instantaneous part, with a root mean square of SIZE."""
    if config["kind"] == "slow":
        given = lambda x: _teachers.kernel_response(SLOW, "linear", x, config["dt"])  # noqa: E731
    else:
        teacher = _teacher(config)
        given = lambda x: _teachers.outputs(teacher, x)  # noqa: E731
    x = _teachers.scales(_students.lesson({**config, "train_size": FITTED}).train[0], seed=9)
    y = given(x).double()
    weights = _fitted(_powers(x).flatten(0, 1), y.flatten(0, 1))
    size = float((y - _powers(x) @ weights).square().mean().sqrt())
    return lambda x: (_teachers.SIZE / size * (given(x).double() - _powers(x) @ weights)).float()


def _fitted(powers: Tensor, y: Tensor) -> Tensor:
    """Least squares of a column on a few others, equal to the last bit in every call.

    The last digits of LAPACK's solution depend on where in memory its arrays lie: data that differ in a bit are the data of
    another run, which a killed one refuses to continue with.
    """
    columns = torch.cat([powers, y], 1)
    moments = torch.stack([(columns * column.unsqueeze(1)).sum(0) for column in powers.unbind(1)])
    return torch.from_numpy(np.linalg.solve(moments[:, :-1].numpy(), moments[:, -1:].numpy()))


def _powers(x: Tensor) -> Tensor:
    return torch.cat([x.double() ** k for k in range(DEGREE + 1)], -1)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Controls behave as their memory says, and no transformer is approximated stably."""
    memories = {_key(u): u.arrays["memory"] for u in units if u.config["part"] == "memory"}
    students = [u for u in units if u.config["part"] == "student"]
    teachers = list(dict.fromkeys(_key(u) for u in students))
    families = {
        (t, s): [u for u in students if _key(u) == t and u.config["start"] == s] for t in teachers for s in STARTS
    }
    verdicts = {t: {s: _sup.verdict(families[t, s]) for s in STARTS} for t in teachers}
    left = {t: _left(memory) for t, memory in memories.items()}
    rows = [
        (KINDS[t[0]], t[1], left.get(t), judged(verdicts[t]), STARTS[s], *row[1:])
        for t in teachers
        for s, row in zip(STARTS, _sums.rows({(s,): v for s, v in verdicts[t].items()}), strict=True)
    ]
    tables = [
        Table(
            "teachers", "Kept: one of its families of students is stable. Unstable: approximated, and none is stable.",
            ("teacher", "seed", f"M({LATE}) / M({EARLY})", "judged", "students' start", *_sums.HEADS), rows,
        ),
        Table(
            "students", "One student for each teacher, start and width.",
            ("teacher", "seed", "start", "m", *_students.RUN_HEADS),
            [
                (KINDS[t[0]], t[1], STARTS[s], u.config["m"], *_students.run_row([u]))
                for (t, s), found in families.items() for u in found
            ],
        ),
    ]  # fmt: skip
    notes = [
        "The authors' transformer had dropout switched on, no causal mask, and batch and time swapped. Here it has a causal "
        "mask, no positions and no dropout, and is in evaluation mode. Its answer to zero input is subtracted from its memory.",
        "Half of the sequences are white noise; in the others a random sign is held for spans from a step to the whole "
        "sequence. Students, steps and learning rate are the same for all teachers, and so is what is subtracted.",
        _sup.note(config),
    ]
    return Conclusion([_memory(left), _claim(verdicts)], _figures(memories, families), tables, notes)


def _key(unit: Unit) -> Teacher:
    return unit.config["kind"], unit.config["teacher_seed"]


def _left(memory: np.ndarray) -> float:
    """M(100) / M(1); NaN where M(1) is rounding of M(0), so that a ratio would compare noise with noise."""
    return float(memory[LATE] / memory[EARLY]) if memory[EARLY] > ROUNDING * memory[0] else math.nan


def _memory(left: Mapping[Teacher, float]) -> Claim:
    smallest = float(np.min([value for t, value in left.items() if t[0] == "transformer"]))  # NaN if one is NaN
    largest = max(value for t, value in left.items() if t[0] == "rnn")
    return Claim.decide(
        "memory",
        f"A causal transformer's memory of an impulse does not decay exponentially: M({LATE}) / M({EARLY}) above {LEFT} for "
        "every one",
        None if math.isnan(smallest) else smallest > LEFT,
        {} if math.isnan(smallest) else {
            f"smallest M({LATE}) / M({EARLY}), transformer": smallest, "largest, random RNN": largest
        },
        otherwise=UNSEEN if math.isnan(smallest) else "Some transformer forgets.",
    )  # fmt: skip


def _claim(verdicts: Mapping[Teacher, Mapping[str, StabilityVerdict]]) -> Claim:
    answers = {t: judged(v) for t, v in verdicts.items()}
    kinds = {kind: [answer for t, answer in answers.items() if t[0] == kind] for kind in KINDS}
    controls = set(kinds["rnn"]) == {"kept"} and set(kinds["slow"]) == {"unstable"}
    kept = kinds["transformer"].count("kept")
    open_ = "open" in kinds["transformer"]
    return Claim.decide(
        "no stable approximation",
        "RNNs of exponential memory are approximated stably, a target of memory (1+t)^-0.5 unstably, and causal transformers "
        "not at all or unstably",
        None if not controls or (open_ and not kept) else not kept,
        {f"{KINDS[k]}: {word}": float(found.count(word)) for k, found in kinds.items() for word in sorted(set(found))},
        otherwise="A transformer is approximated stably." if controls and kept
        else "A control fails: every random RNN has to be approximated stably, and the target of slow memory unstably."
        if not controls else "The verdict on a transformer is inconclusive.",
    )  # fmt: skip


def _figures(
    memories: Mapping[Teacher, np.ndarray], families: Mapping[tuple[Teacher, str], Sequence[Unit]]
) -> list[Figure]:
    memory = []
    for k, kind in enumerate(("transformer", "rnn")):
        lines = [
            Line(f"seed {t[1]}", np.arange(len(m)), m / m.max(), colour=i, legend=k == 0)
            for i, (t, m) in enumerate((t, m) for t, m in memories.items() if t[0] == kind)
        ]
        memory.append(Panel(KINDS[kind], Axis("steps"), Axis("M / largest", log=True, limits=(1e-12, 2)), lines))
    curves = [
        _sums.panel(f"{KINDS[t[0]]} {t[1]}, {STARTS[s]}", _sup.family(found), (1e-3, 1e2), legend=k == 0)
        for k, ((t, s), found) in enumerate(families.items())
    ]
    return [
        Figure("memory", "Memory functions of the teachers: transformers keep theirs, the random RNNs forget.", memory),
        Figure(
            "perturbation", f"Errors of the students when all weights move by up to beta. {_curves.UNSTABLE}", curves
        ),
    ]


EXPERIMENT = Experiment(
    id="iat-fig12",
    where="Figure 12, App. I.2",
    title="A causal transformer as target",
    summary="Tanh RNNs learn what random causal transformers, random RNNs of exponential memory and a target of slow memory "
    "make of their inputs beyond that of the same step, and their weights are perturbed.",
    presets=presets(
        {
            **_students.PAPER, **_sup.SETTINGS, "widths": [8, 16, 32, 64], "teacher_seeds": 3, "teacher_width": 256,
            "gain": 0.5, "shift": 1.0, "transformer_width": 64, "depth": 2, "heads": 4, "horizon": 200, "train_steps": 400,
            "batch": 32,
        },
        standard={"steps": 10_000, "train_size": 2048, "widths": [4, 8, 12, 16, 24], "teacher_seeds": 2},
        quick={
            "steps": 80, "train_size": 64, "teacher_width": 32, "transformer_width": 16, "teacher_seeds": 1, "widths": [4],
            "test_size": 8, "horizon": 120, "ascent": 2, "least_steps": 100, "sequences": 2, "train_steps": 100, "draws": 2,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 3.0 if config["part"] == "memory" else 6 + cost(config),
    version=2,
)  # fmt: skip
