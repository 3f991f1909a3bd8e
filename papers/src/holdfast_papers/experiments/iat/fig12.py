"""iat-fig12: causal transformers as targets, in evaluation mode and without dropout; students are tanh RNNs.

The criterion: for every transformer M(100) / M(1) > 0.01 (Heaviside memory, in steps), and no width has an error, root mean
square on the test sequences, below 0.1 of the target less its instantaneous part. The instantaneous part is the best
polynomial of degree 5 in the input of the same step, one for each step; students are asked for what is left. Random RNNs of
exponential memory go through the same: with fewer than three transformers tried, or fewer than three RNNs that some width
does bring below 0.1, the claim is undecided, since then training, and not the target, may be what failed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.figures import Axis, Figure, Line, Panel, Rule
from holdfast.stability import StabilityVerdict
from holdfast_papers.experiments.base import Arrays, Conclusion, Config, Experiment, Unit, Work, presets, split
from holdfast_papers.experiments.iat import _curves, _students, _teachers
from holdfast_papers.pages import Table
from holdfast_papers.results import Claim

KINDS = {"transformer": "causal transformer", "rnn": "random RNN"}
DEGREE = 5
LEFT, CLOSE, ENOUGH = 0.01, 0.1, 3
EARLY, LATE = 1, 100  # the steps whose memory is compared
Teacher = tuple[str, int]


def units(config: Config) -> list[Config]:
    """The memory of each teacher, and a student of each width for it."""
    about = {
        name: config[name] for name in ("teacher_width", "gain", "shift", "transformer_width", "depth", "heads", "dt")
    }
    teachers = [
        {**about, "kind": kind, "teacher_seed": seed} for kind in KINDS for seed in range(config["teacher_seeds"])
    ]
    shared = {name: config[name] for name in (*_students.TRAINING, "smallest", "doublings", "draws")}
    return [
        *({"part": "memory", "horizon": config["horizon"], **teacher} for teacher in teachers),
        *(unit for t in teachers for unit in split({"part": "student", "seed": 0, **shared, **t}, m=config["widths"])),
    ]  # fmt: skip


def run(config: Config, work: Work) -> Arrays:
    """The memory function of a teacher, or one student of it."""
    teacher = _teachers.transformer(config) if config["kind"] == "transformer" else _teachers.random_rnn(config)
    if config["part"] == "memory":
        curve = _teachers.memory(teacher, {**config, "memory_dt": 1.0}, burn_in=0)
        return {"memory": curve.values.astype(np.float32)}
    given = _without_instant(_students.lesson({**config, "train_steps": config["test_steps"]}), teacher)
    cut = _students.Lesson(
        _cut(given.train, config["train_steps"]), _cut(given.valid, config["train_steps"]), given.test
    )
    model, record = _students.learn(config, cut, work)
    betas = _curves.betas_of(config)
    with torch.no_grad():
        error = model(given.test[0])[0] - given.test[1]
    missed = math.inf if record["diverged"] else float((error.square().mean() / given.test[1].square().mean()).sqrt())
    curves = (
        _curves.failed(betas, ("all",))
        if record["diverged"]
        else _curves.measured(model, given.test, betas, config, ("all",))
    )
    return {**_curves.kept(record, curves), "missed": np.array(missed)}


def _cut(data: tuple[Tensor, Tensor], steps: int) -> tuple[Tensor, Tensor]:
    return data[0][:, :steps].contiguous(), data[1][:, :steps].contiguous()


def _without_instant(noise: _students.Lesson, teacher: torch.nn.Module) -> _students.Lesson:
    """The teacher's outputs on the noise less the best polynomial of each step's own input, fitted on the training part."""
    x, y = noise.train[0], _teachers.outputs(teacher, noise.train[0])
    powers = _powers(x)  # (time, sequences, powers)
    weights = torch.linalg.lstsq(powers, y.transpose(0, 1).double()).solution
    size = float((y - (powers @ weights).transpose(0, 1)).square().mean().sqrt())

    def rest(x: Tensor) -> tuple[Tensor, Tensor]:
        found = _teachers.outputs(teacher, x) - (_powers(x) @ weights).transpose(0, 1)
        return x, (_teachers.SIZE / size * found).float()

    return _students.Lesson(rest(x), rest(noise.valid[0]), rest(noise.test[0]))


def _powers(x: Tensor) -> Tensor:
    return torch.cat([x.double() ** k for k in range(DEGREE + 1)], -1).transpose(0, 1)


def conclude(config: Config, units: Sequence[Unit]) -> Conclusion:
    """Transformers' memory does not decay, and no student approximates them."""
    memories = {_teacher(u): u.arrays["memory"] for u in units if u.config["part"] == "memory"}
    students = {t: [u for u in units if u.config["part"] == "student" and _teacher(u) == t] for t in memories}
    missed = {t: {u.config["m"]: float(u.arrays["missed"]) for u in found} for t, found in students.items()}
    left = {t: _left(memory) for t, memory in memories.items()}
    verdicts = {t: _curves.verdict(found, "all") for t, found in students.items()}
    tables = [
        Table(
            "teachers",
            "Error at beta = 0, root mean square, as a share of the target less its instantaneous part, by width.",
            ("teacher", "seed", f"M({LATE}) / M({EARLY})", *(f"m = {m}" for m in config["widths"]), "stable approximation"),
            [
                (KINDS[t[0]], t[1], left[t], *(missed[t].get(m) for m in config["widths"]), verdicts[t].verdict)
                for t in memories
            ],
        ),
        Table(
            "students",
            "One student for each teacher and width.",
            ("teacher", "seed", "m", *_students.RUN_HEADS),
            [(KINDS[t[0]], t[1], u.config["m"], *_students.run_row([u])) for t, found in students.items() for u in found],
        ),
    ]  # fmt: skip
    notes = [
        "The authors' transformer had dropout switched on, no causal mask, and batch and time swapped. Here it has a causal "
        "mask, sinusoidal positions, no dropout, and is in evaluation mode. Its answer to zero input is subtracted.",
        "The random RNNs are the control: students, steps and learning rate are the same, and so is what is subtracted.",
    ]
    return Conclusion([_claim(left, missed), _stable(verdicts)], _figures(memories, missed), tables, notes)


def _left(memory: np.ndarray) -> float:
    """M(100) / M(1); infinite where there was none at first."""
    return float(memory[LATE] / memory[EARLY]) if memory[EARLY] > 0 else math.inf


def _claim(left: Mapping[Teacher, float], missed: Mapping[Teacher, Mapping[int, float]]) -> Claim:
    best = {t: min(errors.values()) for t, errors in missed.items()}
    targets = [t for t in left if t[0] == "transformer"]
    close = [t for t in left if t[0] == "rnn" and best[t] < CLOSE]
    enough = len(targets) >= ENOUGH and len(close) >= ENOUGH
    holds = all(left[t] > LEFT and best[t] >= CLOSE for t in targets)
    return Claim.decide(
        "not approximated",
        "A causal transformer's memory does not decay exponentially, and no student approximates it",
        holds if enough else None,
        {
            f"smallest M({LATE}) / M({EARLY}) of a transformer": min((left[t] for t in targets), default=math.nan),
            "smallest error / target of a transformer's student": min((best[t] for t in targets), default=math.nan),
            "transformers": len(targets),
            "random RNNs approximated": len(close),
        },
        otherwise="A transformer's memory fell below a hundredth, or a student came below a tenth of the target less its "
        "instantaneous part."
        if enough
        else f"Fewer than {ENOUGH} transformers were tried, or fewer than {ENOUGH} of the random RNNs were approximated by the "
        "same training.",
    )


def _stable(verdicts: Mapping[Teacher, StabilityVerdict]) -> Claim:
    found = [v.verdict for t, v in verdicts.items() if t[0] == "transformer"]
    return Claim.decide(
        "no stable approximation",
        "No causal transformer is approximated stably, by the rule for families of widths",
        "stable" not in found,
        {f"transformers, {word}": found.count(word) for word in sorted(set(found))},
        otherwise="Some transformer's students are stable by the rule.",
    )


def _teacher(unit: Unit) -> Teacher:
    return unit.config["kind"], unit.config["teacher_seed"]


def _figures(memories: Mapping[Teacher, np.ndarray], missed: Mapping[Teacher, Mapping[int, float]]) -> list[Figure]:
    memory, errors = [], []
    for k, (kind, title) in enumerate(KINDS.items()):
        chosen = [t for t in memories if t[0] == kind]
        lines = [
            Line(f"seed {t[1]}", np.arange(len(memories[t])), memories[t] / memories[t].max(), colour=i, legend=k == 0)
            for i, t in enumerate(chosen)
        ]
        memory.append(Panel(title, Axis("steps"), Axis("M / largest", log=True, limits=(1e-12, 2)), lines))
        found = [
            Line(f"seed {t[1]}", [*missed[t]], [*missed[t].values()], colour=i, legend=k == 0, markers=True)
            for i, t in enumerate(chosen)
        ]
        errors.append(
            Panel(
                title, Axis("width m", log=True), Axis("error / target", log=True), [*found, Rule("a tenth", y=CLOSE)]
            )
        )
    return [
        Figure("memory", "Memory functions of the teachers: transformers keep theirs, the random RNNs forget.", memory),
        Figure(
            "errors", "Errors of the students by width, as a share of the target less its instantaneous part.", errors
        ),
    ]


EXPERIMENT = Experiment(
    id="iat-fig12",
    where="Figure 12, App. I.2",
    title="A causal transformer as target",
    summary="Tanh RNNs learn what random causal transformers, and random RNNs of exponential memory, make of white noise "
    "beyond the input of the same step.",
    presets=presets(
        {
            **_students.PAPER, "widths": [8, 16, 32, 64], "teacher_seeds": 3, "teacher_width": 256, "gain": 0.5, "shift": 1.0,
            "transformer_width": 64, "depth": 2, "heads": 4, "horizon": 200, "smallest": 1e-4, "doublings": 20, "draws": 3,
        },
        standard={"steps": 3000, "train_size": 4096, "train_steps": 100},
        quick={
            "steps": 150, "train_size": 320, "teacher_width": 64, "transformer_width": 16, "widths": [8, 16],
            "test_size": 16, "horizon": 120, "draws": 1,
        },
    ),
    units=units,
    run=run,
    conclude=conclude,
    cost=lambda config: 3.0 if config["part"] == "memory" else 6 + _students.cost(config),
)  # fmt: skip
